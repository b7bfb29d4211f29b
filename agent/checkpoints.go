package agent

// checkpoints.go - the host's files of checkpoints: which there are, which are fetched from other hosts, which are removed. The
// making of one is in cut.go.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"filippo.io/age"
	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sys/unix"

	"watari/agent/checkpoint"
	"watari/agent/domain"
	"watari/agent/hold"
	v1 "watari/api/watariv1"
	"watari/internal/durable"
)

// Saver saves guests while they run, and restores them (package vm).
type Saver interface {
	// SnapshotPipe returns the path of the named pipe through which a guest is saved.
	SnapshotPipe(name string) (string, error)
	PrepareSnapshot(ctx context.Context, uid, pipe string) (Snapshot, error)
	// EndSnapshot throws away what is left of a snapshot that another process has left.
	EndSnapshot(ctx context.Context, uid, pipe string) error
	// Restore creates a paused domain from a saved state. It changes the file.
	Restore(ctx context.Context, spec domain.Spec, path string) error
	// Holder returns the command of the process that stops guests (package hold).
	Holder(guests []hold.Guest) *exec.Cmd
	// Writer returns the command of a process that writes a state (checkpoint.Serve).
	Writer() *exec.Cmd
}

// Snapshot is a guest's state that is about to be taken, or that is being read.
type Snapshot interface {
	io.Reader
	// Begin takes the state and lets the guest go on.
	Begin(ctx context.Context) error
	// Behind is closed when the reader has become so slow that the guest may soon have to wait for it.
	Behind() <-chan struct{}
	// Close ends it, finished or not.
	Close() error
}

// savedFile describes a file of a checkpoint on disk, beside it.
type savedFile struct {
	Epoch   uint64          `json:"epoch"`
	File    checkpoint.File `json:"file"`
	StoodMS uint32          `json:"stood_ms"`
}

func (f savedFile) proto() *v1.CheckpointFile {
	return &v1.CheckpointFile{Blob: &v1.Blob{Digest: f.File.Digest, Size: uint64(f.File.Size)}, StateBytes: uint64(f.File.State), Base: f.File.Base}
}

// fileOf is the opposite of savedFile.proto.
func fileOf(f *v1.CheckpointFile) checkpoint.File {
	return checkpoint.File{Digest: f.GetBlob().GetDigest(), Size: int64(f.GetBlob().GetSize()), State: int64(f.GetStateBytes()), Base: f.GetBase()}
}

// fileKey identifies a file.
type fileKey struct{ checkpoint, guest string }

// checkpointKeeper follows the manager's orders about checkpoints.
type checkpointKeeper struct {
	agent *Agent
	dir   string
	log   *slog.Logger

	mu       sync.Mutex
	cuts     map[string]*cut         // that are being made, or have failed; by checkpoint
	copies   map[fileKey]*volumeCopy // the same, of volumes
	files    map[fileKey]savedFile
	fetching map[fileKey]context.CancelFunc
	refused  map[fileKey]error // why a file is not fetched: this host has no room for it, or has failed mostFailures times
	verified map[fileKey]*verified

	verifies sync.Mutex // held while a file is verified
}

func newCheckpointKeeper(a *Agent) *checkpointKeeper {
	k := &checkpointKeeper{agent: a, dir: filepath.Join(a.config.StateDir, "checkpoints"), log: a.log, cuts: map[string]*cut{},
		copies: map[fileKey]*volumeCopy{}, files: map[fileKey]savedFile{}, fetching: map[fileKey]context.CancelFunc{}, refused: map[fileKey]error{}, verified: map[fileKey]*verified{}}
	k.load()
	return k
}

func (k *checkpointKeeper) path(key fileKey) string {
	return filepath.Join(k.dir, key.checkpoint, key.guest)
}

const descriptionSuffix = ".json"

// restoredState is the name of the file in a guest's folder that has the guest's memory, in the clear, while it is restored.
const restoredState = "restore.state"

// load reads the descriptions of files, and removes files without one: they are not whole. It removes what an agent has left that
// was killed during a restore.
func (k *checkpointKeeper) load() {
	left, _ := filepath.Glob(k.agent.records.GuestDir("*") + "/" + restoredState + "*")
	for _, path := range left {
		_ = os.Remove(path)
	}
	folders, _ := os.ReadDir(k.dir)
	for _, folder := range folders {
		entries, _ := os.ReadDir(filepath.Join(k.dir, folder.Name()))
		for _, entry := range entries {
			guest, described := strings.CutSuffix(entry.Name(), descriptionSuffix)
			key := fileKey{folder.Name(), guest}
			var f savedFile
			if described {
				text, err := os.ReadFile(k.path(key) + descriptionSuffix)
				if err == nil && json.Unmarshal(text, &f) == nil {
					k.files[key] = f
				}
			}
		}
		for _, entry := range entries {
			guest := strings.TrimSuffix(strings.TrimSuffix(entry.Name(), descriptionSuffix), checkpoint.IndexSuffix)
			if _, whole := k.files[fileKey{folder.Name(), guest}]; !whole {
				_ = os.Remove(filepath.Join(k.dir, folder.Name(), entry.Name()))
			}
		}
		_ = os.Remove(filepath.Join(k.dir, folder.Name())) // fails if it has files
	}
}

// want takes up the manager's orders. It does not wait.
func (k *checkpointKeeper) want(orders []*v1.CheckpointWanted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	begin := map[string][]*v1.CheckpointWanted{}
	kept := map[fileKey]bool{}
	for _, w := range orders {
		if !validUID(w.CheckpointId) || !validUID(w.GuestUid) {
			continue
		}
		key := fileKey{w.CheckpointId, w.GuestUid}
		c := k.cuts[w.CheckpointId]
		_, whole := k.files[key]
		switch w.Order {
		case v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE:
			switch {
			case whole:
			case w.Volume && k.copies[key] == nil:
				k.copies[key] = beginCopy(k, key, w)
			case !w.Volume && c == nil:
				begin[w.CheckpointId] = append(begin[w.CheckpointId], w)
			}
		case v1.CheckpointOrder_CHECKPOINT_ORDER_STOP, v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE:
			switch {
			case whole:
			case w.Volume && k.copies[key] == nil:
				k.copies[key] = &volumeCopy{key: key, over: true, phase: v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED, message: agentIsNew}
			case w.Volume && k.copies[key].over: // it has failed
			case w.Volume:
				k.copies[key].set(w.Order)
			default:
				if c == nil { // its agent has died
					c = &cut{keeper: k, id: w.CheckpointId, over: true}
					k.cuts[w.CheckpointId] = c
				}
				c.take(w)
			}
		case v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP:
			kept[key] = true
			k.keep(key, w)
		case v1.CheckpointOrder_CHECKPOINT_ORDER_DISCARD:
			k.discard(key)
		}
	}
	for key, cancel := range k.fetching {
		if !kept[key] {
			cancel() // it is not to be here any more
		}
	}
	for id, wanted := range begin {
		k.cuts[id] = beginCut(k, id, wanted)
	}
}

// validUID reports whether a uid can be the name of a file.
func validUID(uid string) bool {
	return uid != "" && uid != "." && uid != ".." && !strings.ContainsAny(uid, "/\x00")
}

// fetchAgain is the pause before a file that could not be fetched is fetched again.
const fetchAgain = 2 * time.Second

// mostFailures is after how many failures a host says that it cannot keep a copy, so that another one is asked. It goes on trying while
// it is ordered to: a guest that is to be restored here may have no better place.
const mostFailures = 5

// keep fetches a file if it is not here, until it is here or not wanted any more. k.mu is held.
func (k *checkpointKeeper) keep(key fileKey, w *v1.CheckpointWanted) {
	wanted := savedFile{Epoch: w.Epoch, File: fileOf(w.File)}
	have, whole := k.files[key]
	if whole && have.File == wanted.File && (w.Verify != "" || w.Trial != nil) {
		k.verify(key, w)
	}
	if whole && have.File == wanted.File || k.fetching[key] != nil || wanted.File.Digest == "" {
		return
	}
	ctx, cancel := context.WithCancel(k.agent.ctx)
	k.fetching[key] = cancel
	go func() {
		defer cancel()
		failures := 0
		begun := false // what has been fetched already needs no room any more
		_, err := backoff.Retry(ctx, func() (bool, error) { return true, k.fetch(ctx, key, wanted, w.File.Blob, &begun) },
			backoff.WithBackOff(backoff.NewConstantBackOff(fetchAgain)), backoff.WithMaxElapsedTime(0),
			backoff.WithNotify(func(err error, _ time.Duration) {
				k.log.Warn("a file of a checkpoint was not fetched", "checkpoint", key.checkpoint, "guest", w.Guest, "error", err)
				failures++
				k.refuse(key, err, ctx.Err() == nil && (errors.Is(err, checkpoint.ErrNoRoom) || failures >= mostFailures))
			}))
		k.mu.Lock()
		delete(k.fetching, key)
		delete(k.refused, key)
		if err == nil {
			k.files[key] = wanted
		}
		k.mu.Unlock()
		k.agent.publish()
	}()
}

// refuse notes why a file is not fetched, or that nothing is to be said of that.
func (k *checkpointKeeper) refuse(key fileKey, why error, refused bool) {
	k.mu.Lock()
	before := k.refused[key] != nil
	if delete(k.refused, key); refused {
		k.refused[key] = why
	}
	k.mu.Unlock()
	if refused != before {
		k.agent.publish()
	}
}

// fetch fetches a file if there is room for it. begun says that there was at an earlier attempt, of which a part may be here.
func (k *checkpointKeeper) fetch(ctx context.Context, key fileKey, f savedFile, blob *v1.Blob, begun *bool) error {
	if err := k.makeFolder(key); err != nil {
		return err
	}
	if free, spare := k.room(); !*begun && free < f.File.Size+spare {
		return fmt.Errorf("%w: it has %d MiB, the disk has %d MiB free, of which %d are to stay free", checkpoint.ErrNoRoom, f.File.Size>>20, free>>20, spare>>20)
	}
	*begun = true
	err := k.agent.images.Fetch(ctx, blob, k.path(key), func(string) {})
	if durable.IsFull(err) {
		return fmt.Errorf("%w: %w", checkpoint.ErrNoRoom, err)
	}
	if err != nil {
		return err
	}
	return k.describe(key, f)
}

func (k *checkpointKeeper) makeFolder(key fileKey) error {
	return os.MkdirAll(filepath.Dir(k.path(key)), 0o700)
}

// mostSpare is the most that stays free on the disk, bytes; on a small disk a tenth of it does.
const mostSpare = 1 << 30

// room returns the free bytes of the disk, and how many of them are to stay free.
func (k *checkpointKeeper) room() (free, spare int64) {
	var disk unix.Statfs_t
	if unix.Statfs(k.dir, &disk) != nil && unix.Statfs(k.agent.config.StateDir, &disk) != nil { // k.dir is made with the first file
		return 0, mostSpare
	}
	return int64(disk.Bavail) * disk.Bsize, min(mostSpare, int64(disk.Blocks)*disk.Bsize/10)
}

// describe writes a file's description, which makes the file count as whole.
func (k *checkpointKeeper) describe(key fileKey, f savedFile) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return writeFile(k.path(key)+descriptionSuffix, text)
}

// describeNew describes a file that was made here, so that other hosts can fetch it.
func (k *checkpointKeeper) describeNew(key fileKey, f savedFile) error {
	if err := k.describe(key, f); err != nil {
		return err
	}
	if err := k.agent.images.Adopt(f.File.Digest, k.path(key)); err != nil {
		k.log.Warn("a file of a checkpoint stays on one host", "checkpoint", key.checkpoint, "guest", key.guest, "error", err)
	}
	return nil
}

// base returns the file on which a new one may build; nil: it is not here.
func (k *checkpointKeeper) base(w *v1.CheckpointWanted) *checkpoint.Stored {
	key := fileKey{w.Base, w.GuestUid}
	k.mu.Lock()
	f, is := k.files[key]
	k.mu.Unlock()
	if !is {
		return nil
	}
	return &checkpoint.Stored{Path: k.path(key), File: f.File}
}

// supersede removes the index of the file on which a new one builds: the next one builds on the new one.
func (k *checkpointKeeper) supersede(w *v1.CheckpointWanted, f checkpoint.File) {
	if f.Base != "" {
		checkpoint.RemoveIndex(k.path(fileKey{w.Base, w.GuestUid}))
	}
}

// discard ends the making of a checkpoint, and removes a file. k.mu is held.
func (k *checkpointKeeper) discard(key fileKey) {
	if c := k.copies[key]; c != nil {
		if !c.over {
			c.cancel()
			return
		}
		delete(k.copies, key)
	}
	if c := k.cuts[key.checkpoint]; c != nil {
		if !c.over {
			c.cancel()
			return // the report tells of it until it has ended
		}
		delete(k.cuts, key.checkpoint)
	}
	if cancel := k.fetching[key]; cancel != nil {
		cancel()
		return
	}
	k.remove(key)
}

// remove removes a file from disk. Its description goes first. k.mu is held.
func (k *checkpointKeeper) remove(key fileKey) {
	digest := k.files[key].File.Digest
	delete(k.files, key)
	delete(k.verified, key)
	checkpoint.RemoveIndex(k.path(key))
	for _, path := range []string{k.path(key) + descriptionSuffix, k.path(key), k.path(key) + checkpoint.PartSuffix} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			k.log.Warn("a file of a checkpoint stays on disk", "error", err)
		}
	}
	_ = os.Remove(filepath.Dir(k.path(key))) // fails if it has other files
	if digest != "" {
		go k.agent.images.Forget(digest)
	}
}

// report returns the checkpoints' part of the host's report.
func (k *checkpointKeeper) report() (list []*v1.CheckpointObserved) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.cuts {
		list = append(list, c.report()...)
	}
	for _, c := range k.copies {
		list = append(list, c.report())
	}
	for key, f := range k.files {
		o := &v1.CheckpointObserved{CheckpointId: key.checkpoint, GuestUid: key.guest, Epoch: f.Epoch,
			Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN, File: f.proto(), StoodMs: f.StoodMS}
		if v := k.verified[key]; v != nil {
			o.Verified, o.Tried, o.TriedError = v.read, v.tried, v.triedError
		}
		list = append(list, o)
	}
	for key, err := range k.refused {
		list = append(list, &v1.CheckpointObserved{CheckpointId: key.checkpoint, GuestUid: key.guest, Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED, Message: err.Error()})
	}
	slices.SortFunc(list, func(a, b *v1.CheckpointObserved) int {
		return cmp.Or(strings.Compare(a.CheckpointId, b.CheckpointId), strings.Compare(a.GuestUid, b.GuestUid))
	})
	return list
}

// recover lets guests go on that an earlier agent has left in the middle of a checkpoint.
func (k *checkpointKeeper) recover(ctx context.Context) {
	saver := k.agent.config.Saver
	if saver == nil {
		return
	}
	k.agent.mu.Lock()
	guests := k.agent.machine.Guests()
	k.agent.mu.Unlock()
	for _, g := range guests {
		pipe, err := saver.SnapshotPipe(g.Name)
		if err != nil {
			continue
		}
		if _, err := os.Stat(pipe); err != nil || k.taking(g.UID) {
			continue
		}
		k.log.Warn("a checkpoint was broken off; the guest goes on", "guest", g.Name)
		if err := errors.Join(saver.EndSnapshot(ctx, g.UID, pipe), k.agent.hypervisor.Resume(ctx, g.UID)); err != nil {
			k.log.Error("end what is left of a checkpoint", "guest", g.Name, "error", err)
		}
	}
}

// taking reports whether this agent makes a checkpoint of a guest.
func (k *checkpointKeeper) taking(uid string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.cuts {
		if !c.over && slices.ContainsFunc(c.members, func(m *member) bool { return m.wanted.GuestUid == uid }) {
			return true
		}
	}
	return false
}

// restore creates a guest's paused domain from a file of a checkpoint.
func (k *checkpointKeeper) restore(ctx context.Context, g *guest, w *v1.GuestWanted) error {
	g.setStep("reading its checkpoint")
	plain := filepath.Join(k.agent.records.GuestDir(g.uid), restoredState)
	defer os.Remove(plain)
	if err := k.read(ctx, w.Restore, w.Uid, plain); err != nil {
		return fmt.Errorf("restore guest %s: %w", w.Name, err)
	}
	g.setStep("restoring it")
	return k.agent.config.Saver.Restore(ctx, k.agent.spec(w, g.prepared), plain)
}

// read writes the state in the file of a guest or a volume to a file of its own. A damaged file is removed.
func (k *checkpointKeeper) read(ctx context.Context, from *v1.RestoreOrder, uid, to string) error {
	identity, err := age.ParseX25519Identity(from.Key)
	if err != nil {
		return err
	}
	var chain []checkpoint.Stored
	keys := chainOf(from, uid)
	for _, f := range keys {
		chain = append(chain, checkpoint.Stored{Path: k.path(f.key), File: f.file})
	}
	states := int64(min(len(chain), 2)) // of a chain, the state before is on disk, too
	if free, spare := k.room(); free < states*int64(from.File.GetStateBytes())+spare {
		return fmt.Errorf("%w for its state: the disk has %d MiB free, of which %d are to stay free", checkpoint.ErrNoRoom, free>>20, spare>>20)
	}
	err = checkpoint.Read(ctx, chain, identity, to)
	var damage *checkpoint.DamagedError
	if errors.As(err, &damage) {
		k.mu.Lock()
		k.remove(keys[damage.Index].key) // another host may have it whole
		k.mu.Unlock()
	}
	return err
}

// neededFile is a file that a restore needs.
type neededFile struct {
	key  fileKey
	file checkpoint.File
}

// chainOf returns the files from which a guest or a volume is restored; each builds on the one before.
func chainOf(from *v1.RestoreOrder, uid string) (list []neededFile) {
	for _, b := range from.Bases {
		list = append(list, neededFile{fileKey{b.CheckpointId, uid}, fileOf(b.File)})
	}
	return append(list, neededFile{fileKey{from.CheckpointId, uid}, fileOf(from.File)})
}

// has reports whether the files from which a guest or a volume is restored are here.
func (k *checkpointKeeper) has(from *v1.RestoreOrder, uid string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !slices.ContainsFunc(chainOf(from, uid), func(n neededFile) bool { return !validUID(n.key.checkpoint) || k.files[n.key].File != n.file })
}

// lacksRoom returns why a file from which a guest is restored does not fit on this host; nil: nothing says so.
func (k *checkpointKeeper) lacksRoom(from *v1.RestoreOrder, uid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range chainOf(from, uid) {
		if err := k.refused[n.key]; errors.Is(err, checkpoint.ErrNoRoom) {
			return err
		}
	}
	return nil
}

// awaitFile waits until the file from which a guest is restored is here.
func (k *checkpointKeeper) awaitFile(ctx context.Context, w *v1.GuestWanted, step func(string)) error {
	if k.agent.config.Saver == nil {
		return errors.New("this host cannot restore guests")
	}
	step("fetching its checkpoint")
	for {
		if k.has(w.Restore, w.Uid) {
			return nil
		}
		if err := k.lacksRoom(w.Restore, w.Uid); err != nil {
			return fmt.Errorf("fetch its checkpoint: %w", &refusedError{err.Error()}) // another host may have room
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
