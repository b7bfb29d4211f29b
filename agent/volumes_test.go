package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/volume"
	v1 "watari/api/watariv1"
)

// A host that is cut off, and a host from which the guest has moved away, are readers no more.
func TestAVolumeHasTheReadersThatTheManagerNames(t *testing.T) {
	const uid, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	k := newVolumeKeeper(&Agent{ctx: t.Context(), config: Config{StateDir: t.TempDir(), RunDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)})
	k.held[uid], k.held[other] = &heldVolume{ready: true}, &heldVolume{ready: true}
	orders := func(readers ...*v1.BlobPeer) {
		k.apply(&v1.HostWanted{Volumes: []*v1.VolumeWanted{{Uid: uid, Readers: readers}, {Uid: other}}})
	}
	admitted := func(host, hostUID string) context.Context {
		t.Helper()
		socket, may, err := k.reader(host, hostUID, uid)
		if err != nil || socket == "" || may.Err() != nil {
			t.Fatalf("host %s: %q, %v, %v", host, socket, may, err)
		}
		return may
	}
	a1, a2 := &v1.BlobPeer{Name: "a1", Uid: "uid-of-a1"}, &v1.BlobPeer{Name: "a2", Uid: "uid-of-a2"}
	orders(a1)
	may := admitted("a1", "uid-of-a1")
	for _, who := range []struct{ host, hostUID, uid string }{
		{"a2", "uid-of-a2", uid}, {"a1", "uid-of-an-earlier-a1", uid}, {"a1", "", uid}, {"a1", "uid-of-a1", other}, {"a1", "uid-of-a1", "../../pki"},
	} {
		if socket, _, err := k.reader(who.host, who.hostUID, who.uid); err == nil || !strings.Contains(err.Error(), "may not use volume") {
			t.Errorf("%v: %q, %v", who, socket, err)
		}
	}
	orders(a2, a1)
	if may.Err() != nil {
		t.Error("a host that stays a reader is interrupted")
	}
	orders(a2)
	if may.Err() == nil {
		t.Error("a host that is no reader any more reads on")
	}
	if _, _, err := k.reader("a1", "uid-of-a1", uid); err == nil {
		t.Error("it may begin again")
	}
	may = admitted("a2", "uid-of-a2")
	orders(&v1.BlobPeer{Name: "a2", Uid: "uid-of-a-later-a2"})
	if may.Err() == nil {
		t.Error("a removed host reads on as the later host of its name")
	}
	may = admitted("a2", "uid-of-a-later-a2")
	k.apply(&v1.HostWanted{})
	if may.Err() == nil {
		t.Error("a host reads on though no order names the volume")
	}
}

// Until a volume's disk is there, the host has no word of the manager that it has the volume.
func TestAHostWithoutADiskDoesNotClaimAVolume(t *testing.T) {
	const uid = "00000000-0000-4000-8000-000000000001"
	o := newOutside(t)
	o.volumes = stubVolumes{o}
	o.start()
	generation++
	if err := o.agent.Take(&v1.HostWanted{Term: 1, Generation: generation, Network: &v1.NetworkWanted{Generation: generation},
		Volumes: []*v1.VolumeWanted{{Uid: uid, Facts: &v1.VolumeFacts{Name: "data", Generation: 2, Seal: []byte("two")}}}}); err != nil {
		t.Fatal(err)
	}
	o.await("it has tried to serve the volume", func(h *v1.HostObserved) bool {
		return len(h.Volumes) == 1 && h.Volumes[0].Message != "its disk is being made"
	})
	observed, _ := o.agent.Observed()
	if v := observed.Volumes[0]; v.Ready || v.Facts.Generation != 0 || v.Facts.Seal != nil || v.Facts.Name != "data" {
		t.Errorf("it reports %v", v)
	}
}

// The file system with a disk was mounted after the agent had begun.
func TestADiskThatAppearsLateKeepsItsDescription(t *testing.T) {
	k := newVolumeKeeper(&Agent{ctx: t.Context(), config: Config{StateDir: t.TempDir(), RunDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)})
	disk, held := volume.Open(k.folder, k.sockets, uid), &heldVolume{facts: volume.Facts{Name: "data"}}
	if err := k.find(held, disk); err != nil || held.facts.Generation != 0 {
		t.Errorf("without a disk: %+v, %v", held.facts, err)
	}
	folder := filepath.Join(k.folder, uid)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	facts := volume.Facts{Name: "data", Generation: 3, Seal: []byte("three"), GivenUp: &volume.GivenUp{Target: "there"}}
	if err := volume.Describe(k.folder, uid, facts); err != nil {
		t.Fatal(err)
	}
	if err := k.find(held, disk); err != nil || held.facts.Generation != 3 || held.facts.GivenUp == nil {
		t.Errorf("with a disk: %+v, %v", held.facts, err)
	}
	if err := os.WriteFile(filepath.Join(folder, "volume.json"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.find(&heldVolume{}, disk); err == nil {
		t.Error("a damaged description passes for none")
	}
}

// A manager that works with an older copy of its state orders a restore from before this disk.
func TestALaterDiskIsNotPutBack(t *testing.T) {
	k := newVolumeKeeper(&Agent{ctx: t.Context(), config: Config{StateDir: t.TempDir(), RunDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)})
	order := &v1.VolumeWanted{Restore: &v1.RestoreOrder{Id: "r1"}, Facts: &v1.VolumeFacts{Generation: 2}}
	for _, test := range []struct {
		restored []string
		later    bool
	}{{nil, true}, {[]string{"r1", "r2"}, true}, {[]string{"r0", "r1"}, false}} {
		err := k.restore(t.Context(), order, &heldVolume{facts: volume.Facts{Generation: 3, Restored: test.restored}}, volume.User{})
		if errors.Is(err, errLater) != test.later || !test.later && err != nil {
			t.Errorf("put back to %v before: %v", test.restored, err)
		}
	}
	var tried tries
	for range 2 {
		if tried.note(errLater); tried.failed || !tried.failing.IsZero() || tried.message == "" {
			t.Errorf("the manager would ask another host: %+v", tried)
		}
	}
}

// An order on disk may be from before this host got the volume back: the last orders could not be written.
func TestALaterDiskIsNotDeleted(t *testing.T) {
	folder := t.TempDir()
	disk := volume.Open(folder, t.TempDir(), uid)
	if err := os.MkdirAll(filepath.Join(folder, uid), 0o700); err != nil {
		t.Fatal(err)
	}
	held := &heldVolume{facts: volume.Facts{Name: "data", Generation: 3}}
	if err := volume.Describe(folder, uid, held.facts); err != nil {
		t.Fatal(err)
	}
	order := &v1.VolumeWanted{Uid: uid, Discard: true, Facts: &v1.VolumeFacts{Generation: 2}}
	if err := discard(order, held, disk); !errors.Is(err, errLater) {
		t.Errorf("an order about an earlier disk: %v", err)
	}
	if _, err := disk.Facts(); err != nil {
		t.Fatalf("an order about an earlier disk deletes the disk: %v", err)
	}
	order.Facts.Generation = 3
	if err := discard(order, held, disk); err != nil {
		t.Error(err)
	}
	if _, err := disk.Facts(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an order about the disk does not delete it: %v", err)
	}
}

// Orders that could not be written are written later, although they do not change.
func TestOrdersAboutVolumesAreWrittenLater(t *testing.T) {
	state := t.TempDir()
	path := filepath.Join(state, ordersFile)
	if err := os.MkdirAll(path, 0o700); err != nil { // so that the file cannot be written
		t.Fatal(err)
	}
	k := newVolumeKeeper(&Agent{ctx: t.Context(), config: Config{StateDir: state, RunDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)})
	k.host = stubVolumes{}
	k.want(&v1.HostWanted{Volumes: []*v1.VolumeWanted{{Uid: "odd"}}})
	if !k.unsaved {
		t.Fatal("the orders were written")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	k.step(t.Context())
	text, err := os.ReadFile(path)
	written := &v1.HostWanted{}
	if err != nil || proto.Unmarshal(text, written) != nil || len(written.Volumes) != 1 {
		t.Errorf("on disk: %v, %v", written, err)
	}
}

// A guest that is ordered to end writes its home to its volume first, although it is no longer ready. A guest whose agent has
// never answered ends at once.
func TestAGuestWritesItsHomeBeforeItEnds(t *testing.T) {
	for _, mute := range []bool{false, true} {
		o := newOutside(t)
		o.volumes, o.mute = stubVolumes{o}, mute
		o.start()
		wish := guestWish(uid, run, 1)
		wish.Volume = &v1.VolumeSource{Uid: "00000000-0000-4000-8000-000000000002", Host: &v1.BlobPeer{Name: "there"}}
		o.take(wish)
		if mute {
			o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_RUNNING)
		} else {
			o.awaitReady(1)
		}
		down := func(is bool) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.down = is
		}
		down(true)                                                                 // the guest ends only when the domains have been listed
		o.take(&v1.GuestWanted{Uid: uid, Name: wish.Name, Role: absent, Epoch: 1}) // as the manager orders it: without an identity
		for deadline := time.Now().Add(10 * time.Second); o.agent.guest(uid).identity.ready(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the guest is ready although it is to end")
			}
		}
		down(false)
		o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
		o.mu.Lock()
		log := slices.Clone(o.log)
		o.mu.Unlock()
		written, ended := slices.Index(log, "sync"), slices.Index(log, "destroy "+uid)
		if mute && written >= 0 || !mute && (written < 0 || written > ended) {
			t.Errorf("the agent is mute: %v; it was done: %q", mute, log)
		}
	}
}

// The sockets of both guests have one path.
func TestTheNextGuestOfANameHasItsVolume(t *testing.T) {
	o := newOutside(t)
	k := newVolumeKeeper(&Agent{ctx: t.Context(), config: Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Volumes: stubVolumes{o}}, log: slog.New(slog.DiscardHandler)})
	for _, uid := range []string{"00000000-0000-4000-8000-000000000003", "00000000-0000-4000-8000-000000000004"} {
		k.apply(&v1.HostWanted{Guests: []*v1.GuestWanted{{Uid: uid, Name: "md-0", Volume: &v1.VolumeSource{Uid: "00000000-0000-4000-8000-000000000002", Host: &v1.BlobPeer{Name: "there"}}}}})
		k.step(t.Context())
		path, _ := stubVolumes{o}.VolumeSocket("md-0")
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("guest %s: %v", uid, err)
		}
		conn.Close()
	}
}

// A disk counts as failed when all tries have failed for a while. To wait is no failure.
func TestTriesFailAfterAWhile(t *testing.T) {
	var seen tries
	full := errors.New("no space left on device")
	seen.note(full)
	if seen.failed || seen.message != full.Error() {
		t.Errorf("after one try: %+v", seen)
	}
	seen.failing = seen.failing.Add(-failedAfter)
	seen.note(full)
	if !seen.failed {
		t.Errorf("after %s: %+v", failedAfter, seen)
	}
	for _, err := range []error{nil, errFetching, fmt.Errorf("%w to host b1", errGivenUp)} {
		waits := seen
		if waits.note(err); waits.failed || !waits.failing.IsZero() || (waits.message != "") != (err != nil) {
			t.Errorf("%v: %+v", err, waits)
		}
	}
}
