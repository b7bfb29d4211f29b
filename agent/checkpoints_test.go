package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"

	"watari/agent/checkpoint"
	v1 "watari/api/watariv1"
)

// newKeeper makes a keeper of files in a folder, for an agent without a hypervisor.
func newKeeper(t *testing.T, dir string) *checkpointKeeper {
	return newCheckpointKeeper(&Agent{ctx: t.Context(), config: Config{StateDir: dir}, log: slog.New(slog.DiscardHandler), images: stubImages{},
		records: NewRecordStore(filepath.Join(dir, "guests")), changed: make(chan struct{})})
}

// written puts a complete file of a checkpoint into a folder.
func written(t *testing.T, k *checkpointKeeper, key fileKey) savedFile {
	if err := k.makeFolder(key); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(k.path(key), []byte("state"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := savedFile{Epoch: 7, File: checkpoint.File{Digest: "sha256:x", Size: 5, State: 9}, StoodMS: 120}
	if err := k.describe(key, f); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestWholeFilesOfCheckpointsAreFoundAgain(t *testing.T) {
	dir := t.TempDir()
	whole, torn := fileKey{"c", "whole"}, fileKey{"c", "torn"}
	k := newKeeper(t, dir)
	written(t, k, whole)
	if err := os.WriteFile(k.path(torn), []byte("sta"), 0o600); err != nil {
		t.Fatal(err)
	}
	k = newKeeper(t, dir)
	list := k.report()
	if len(list) != 1 || list[0].GuestUid != "whole" || list[0].Epoch != 7 || list[0].StoodMs != 120 || list[0].Phase != v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN {
		t.Errorf("reported is %v", list)
	}
	if _, err := os.Stat(k.path(torn)); !os.IsNotExist(err) {
		t.Errorf("a file that is not whole stays: %v", err)
	}
}

func TestMemoryInTheClearIsRemovedAfterAKill(t *testing.T) {
	dir := t.TempDir()
	k := newKeeper(t, dir)
	guest := k.agent.records.GuestDir("g")
	if err := os.MkdirAll(guest, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{restoredState, restoredState + ".part", "record.json"} {
		if err := os.WriteFile(filepath.Join(guest, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newKeeper(t, dir)
	if left, _ := os.ReadDir(guest); len(left) != 1 || left[0].Name() != "record.json" {
		t.Errorf("left: %v", left)
	}
}

func TestDiscardedFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	key := fileKey{"c", "guest"}
	k := newKeeper(t, dir)
	written(t, k, key)
	k = newKeeper(t, dir)
	k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Order: v1.CheckpointOrder_CHECKPOINT_ORDER_DISCARD}})
	if list := k.report(); len(list) != 0 {
		t.Errorf("reported is %v", list)
	}
	if entries, _ := os.ReadDir(filepath.Join(dir, "checkpoints")); len(entries) != 0 {
		t.Errorf("left are %v", entries)
	}
}

// An agent must not continue a checkpoint that an earlier agent began.
func TestAForgottenCheckpointHasFailed(t *testing.T) {
	for _, order := range []v1.CheckpointOrder{v1.CheckpointOrder_CHECKPOINT_ORDER_STOP, v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE} {
		k := newKeeper(t, t.TempDir())
		for range 2 {
			k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Epoch: 7, Order: order}})
		}
		if list := k.report(); len(list) != 1 || list[0].Phase != v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED || list[0].Epoch != 7 || list[0].Busy {
			t.Errorf("%s: reported is %v", order, list)
		}
		k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Order: v1.CheckpointOrder_CHECKPOINT_ORDER_DISCARD}})
		if list := k.report(); len(list) != 0 {
			t.Errorf("%s, discarded: reported is %v", order, list)
		}
	}
}

// failing fails the first fetches.
type failing struct {
	stubImages
	times atomic.Int32
}

func (f *failing) Fetch(_ context.Context, _ *v1.Blob, path string, _ func(string)) error {
	if f.times.Add(-1) >= 0 {
		return errors.New("the other host does not answer")
	}
	return os.WriteFile(path, []byte("state"), 0o600)
}

// A checkpoint waits for one of the same guest or volume that was begun before and has not ended on this host, and for no later one.
func TestACheckpointWaitsForTheOneBefore(t *testing.T) {
	k := newKeeper(t, t.TempDir())
	first, other, second := newOrdered(k), newOrdered(k), newOrdered(k)
	k.cuts["first"] = &cut{ordered: first, members: []*member{{wanted: &v1.CheckpointWanted{GuestUid: "g"}}}}
	k.copies[fileKey{"other", "v"}] = &volumeCopy{ordered: other}
	k.cuts["second"] = &cut{ordered: second, members: []*member{{wanted: &v1.CheckpointWanted{GuestUid: "g"}}}}
	k.cuts["an earlier agent's"] = &cut{over: true}
	for _, c := range []struct {
		uid   string
		turn  uint64
		waits bool
	}{{"g", first.turn, false}, {"g", second.turn, true}, {"v", other.turn, false}, {"v", second.turn, true}, {"x", second.turn, false}} {
		if waits := k.earlier(c.uid, c.turn); waits != c.waits {
			t.Errorf("%s at turn %d waits: %v", c.uid, c.turn, waits)
		}
	}
	k.left["x"] = true
	if !k.earlier("x", second.turn) {
		t.Error("it does not wait for what an earlier agent left")
	}
	ended := make(chan error)
	go func() { ended <- k.awaitEarlier(t.Context(), "g", second.turn) }()
	select {
	case err := <-ended:
		t.Errorf("it does not wait: %v", err)
	case <-time.After(150 * time.Millisecond):
	}
	k.mu.Lock()
	k.cuts["first"].over = true
	k.mu.Unlock()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A failed fetch causes no new orders from the manager.
func TestAFileThatCouldNotBeFetchedIsFetchedAgain(t *testing.T) {
	k := newKeeper(t, t.TempDir())
	images := &failing{}
	images.times.Store(1)
	k.agent.images = images
	k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Epoch: 7, Order: v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP,
		File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:x", Size: 5}}}})
	for end := time.Now().Add(10 * fetchAgain); len(k.report()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the file is not fetched")
		}
	}
}

// A file that no order names any more is no longer fetched.
func TestAFileThatIsNotWantedAnyMoreIsNotFetched(t *testing.T) {
	k := newKeeper(t, t.TempDir())
	images := &failing{}
	images.times.Store(1000)
	k.agent.images = images
	k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Order: v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP,
		File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:x", Size: 5}}}})
	k.want(nil)
	for end := time.Now().Add(10 * fetchAgain); ; time.Sleep(10 * time.Millisecond) {
		k.mu.Lock()
		left := len(k.fetching)
		k.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it is still being fetched")
		}
	}
}

// slow ends each fetch only when it is told to, even if it was cancelled, as while a file is being verified.
type slow struct {
	stubImages
	begun, end chan struct{}
}

func (s *slow) Fetch(ctx context.Context, _ *v1.Blob, path string, _ func(string)) error {
	s.begun <- struct{}{}
	<-s.end
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return os.WriteFile(path, []byte("state"), 0o600)
}

// A file may be wanted again before its cancelled fetch has ended. No new order would come.
func TestAFileThatIsWantedAgainIsFetchedAgain(t *testing.T) {
	k := newKeeper(t, t.TempDir())
	images := &slow{begun: make(chan struct{}), end: make(chan struct{})}
	k.agent.images = images
	wanted := []*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Order: v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP,
		File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:x", Size: 5}}}}
	k.want(wanted)
	<-images.begun
	k.want(nil)
	k.want(wanted)
	images.end <- struct{}{}
	select {
	case <-images.begun:
		close(images.end)
	case <-time.After(10 * fetchAgain):
		t.Fatal("the file is not fetched again")
	}
	for end := time.Now().Add(10 * fetchAgain); len(k.report()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the file is not kept")
		}
	}
}

// A restore goes to another host if this one cannot reach the hosts that have its files.
func TestAHostThatCannotFetchACheckpointRefusesTheGuest(t *testing.T) {
	k := newKeeper(t, t.TempDir())
	k.agent.config.Saver = struct{ Saver }{}
	images := &failing{}
	images.times.Store(1000)
	k.agent.images = images
	file := &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:x", Size: 5}}
	k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Order: v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP, File: file}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*mostFailures*fetchAgain)
	defer cancel()
	var refused *refusedError
	if err := k.awaitFile(ctx, &v1.GuestWanted{Uid: "guest", Restore: &v1.RestoreOrder{CheckpointId: "c", File: file}}, func(string) {}); !errors.As(err, &refused) {
		t.Errorf("it waits for its file: %v", err)
	}
}

// A complete file is never made again: the other files of its checkpoint belong to it.
func TestAWholeFileIsNotMadeAgain(t *testing.T) {
	dir := t.TempDir()
	k := newKeeper(t, dir)
	written(t, k, fileKey{"c", "guest"})
	k = newKeeper(t, dir)
	for _, order := range []v1.CheckpointOrder{v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE, v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE} {
		k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Epoch: 7, Order: order}})
	}
	if list := k.report(); len(list) != 1 || list[0].Phase != v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN || len(k.cuts) != 0 {
		t.Errorf("reported is %v", list)
	}
}

func TestNamesThatLeaveTheFolderAreRefused(t *testing.T) {
	k := newKeeper(t, t.TempDir())
	for _, uid := range []string{"", ".", "..", "../x", "a/b"} {
		k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: uid, Order: v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE},
			{CheckpointId: uid, GuestUid: "guest", Order: v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE}})
	}
	if list := k.report(); len(list) != 0 {
		t.Errorf("reported is %v", list)
	}
}

// If a file is to be read for two orders, in whatever order that happens, the report names the later one. No new order would
// come.
func TestALaterVerificationIsReported(t *testing.T) {
	k := newKeeper(t, t.TempDir())
	key := fileKey{"c", "guest"}
	f := written(t, k, key)
	f.File.Digest = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("state")))
	k.files[key] = f
	for round := range 200 {
		last := fmt.Sprint(round, " b")
		k.want(toVerify(f, fmt.Sprint(round, " a")))
		k.want(toVerify(f, last))
		k.agent.acting.Wait()
		if list := k.report(); len(list) != 1 || list[0].Verified != last {
			t.Fatalf("%q is ordered, and reported is %v", last, list)
		}
	}
}

// toVerify returns orders to keep a file, and to read it again.
func toVerify(f savedFile, verification string) []*v1.CheckpointWanted {
	return []*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Epoch: f.Epoch, Order: v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP, Verify: verification,
		File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: f.File.Digest, Size: uint64(f.File.Size)}, StateBytes: uint64(f.File.State)}}}
}

// A guest is not restored on a host without room for its file: another host may have room.
func TestAHostWithoutRoomForACheckpointRefusesTheGuest(t *testing.T) {
	k := newKeeper(t, t.TempDir())
	k.agent.config.Saver = struct{ Saver }{}
	file := &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:x", Size: 1 << 60}, StateBytes: 1 << 60}
	k.want([]*v1.CheckpointWanted{{CheckpointId: "c", GuestUid: "guest", Epoch: 7, Order: v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP, File: file}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*fetchAgain)
	defer cancel()
	order := &v1.RestoreOrder{CheckpointId: "c", File: file}
	var refused *refusedError
	err := k.awaitFile(ctx, &v1.GuestWanted{Uid: "guest", Restore: order}, func(string) {})
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "the disk has") {
		t.Errorf("it waits for its file: %v", err)
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	order.Key = key.String()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := k.read(ctx, order, "guest", plain); !errors.Is(err, checkpoint.ErrNoRoom) {
		t.Errorf("its state, which does not fit, is written: %v", err)
	}
}

// An order to restore that names no checkpoint waits for a file that never comes.
func TestAnOrderWithoutACheckpointRestoresNothing(t *testing.T) {
	dir := t.TempDir()
	k := newKeeper(t, dir)
	key := fileKey{"c", "g"}
	f := written(t, k, key)
	k = newKeeper(t, dir)
	order := &v1.RestoreOrder{Id: "r", CheckpointId: "c", File: f.proto()}
	if !k.has(order, "g") {
		t.Error("the file is not here")
	}
	order.CheckpointId = ""
	if k.has(order, "g") || k.lacks(order, "g") != nil {
		t.Error("the host does not wait")
	}
}

// A copy that waits for its grant is not resumed on behalf of a checkpoint of the copy that was here before.
func TestACheckpointResumesOnlyTheGuestThatItHasStopped(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	before := o.count("resume " + uid)
	if err := o.agent.resumeStarted(t.Context(), uid, 2); err != nil || o.count("resume "+uid) != before {
		t.Errorf("a guest of another epoch is resumed: %v", err)
	}
	if err := o.agent.resumeStarted(t.Context(), "00000000-0000-4000-8000-00000000abcd", 1); err != nil || o.count("resume "+uid) != before {
		t.Errorf("an unknown guest is resumed: %v", err)
	}
	if err := o.agent.resumeStarted(t.Context(), uid, 1); err != nil || o.count("resume "+uid) != before+1 {
		t.Errorf("the guest is not resumed: %v", err)
	}
}
