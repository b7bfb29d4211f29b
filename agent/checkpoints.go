package agent

// checkpoints.go - the host's files of checkpoints: lists, fetches and removes them. cut.go makes a guest's file,
// volume_copy.go a volume's.

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
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"watari/agent/checkpoint"
	"watari/agent/domain"
	"watari/agent/hold"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/internal/durable"
)

// Saver saves guests while they run, and restores them (package vm).
type Saver interface {
	// SnapshotPipe returns the path of the named pipe through which a guest is saved.
	SnapshotPipe(name string) (string, error)
	PrepareSnapshot(ctx context.Context, uid, pipe string) (Snapshot, error)
	// EndSnapshot discards a snapshot that another process left unfinished.
	EndSnapshot(ctx context.Context, uid, pipe string) error
	// Restore creates a paused domain from a saved state. It changes the file.
	Restore(ctx context.Context, spec domain.Spec, path string) error
	// Holder returns the command of the process that stops guests (package hold).
	Holder(guests []hold.Guest) *exec.Cmd
	// Writer returns the command of a process that writes a state (checkpoint.Serve).
	Writer() *exec.Cmd
}

// Snapshot is a guest's state that is about to be taken or is being read.
type Snapshot interface {
	io.Reader
	// Begin takes the state and lets the guest go on.
	Begin(ctx context.Context) error
	// Behind is closed when the reader is so slow that the guest may soon have to wait for it.
	Behind() <-chan struct{}
	// Close ends the snapshot, finished or not.
	Close() error
}

// savedFile describes a file of a checkpoint. Its description is stored beside the file.
type savedFile struct {
	Epoch   uint64          `json:"epoch"`
	File    checkpoint.File `json:"file"`
	StoodMS uint32          `json:"stood_ms"`
}

func (f savedFile) proto() *v1.CheckpointFile {
	return &v1.CheckpointFile{Blob: &v1.Blob{Digest: f.File.Digest, Size: uint64(f.File.Size)}, StateBytes: uint64(f.File.State), Base: f.File.Base}
}

// fileOf is the inverse of savedFile.proto.
func fileOf(f *v1.CheckpointFile) checkpoint.File {
	return checkpoint.File{Digest: f.GetBlob().GetDigest(), Size: int64(f.GetBlob().GetSize()), State: int64(f.GetStateBytes()), Base: f.GetBase()}
}

// fileKey identifies a file.
type fileKey struct{ checkpoint, guest string }

// fileFetch is the fetch of a file under way.
type fileFetch struct {
	cancel    context.CancelFunc
	cancelled bool
	next      *v1.CheckpointWanted // the order that came after it was cancelled; nil: none
}

// stop cancels the fetch.
func (f *fileFetch) stop() {
	f.cancel()
	f.cancelled, f.next = true, nil
}

// checkpointKeeper carries out the manager's orders about checkpoints.
type checkpointKeeper struct {
	agent *Agent
	dir   string
	log   *slog.Logger

	leftKnown chan struct{} // closed when it is known which guests an earlier agent left in the middle of a checkpoint

	mu       sync.Mutex
	turns    uint64                  // numbers what was begun
	left     map[string]bool         // guests that an earlier agent left in the middle of a checkpoint, by uid
	cuts     map[string]*cut         // being made, or failed; by checkpoint
	copies   map[fileKey]*volumeCopy // volumes' copies that are being made, or have failed
	files    map[fileKey]savedFile
	fetching map[fileKey]*fileFetch
	refused  map[fileKey]error // why a file is not fetched: no room on this host, or mostFailures failures
	verified map[fileKey]*verified

	taken    int64      // bytes of the disk for states that restores write, or are loading
	verifies sync.Mutex // held while a file is verified, or a guest restored on trial
}

func newCheckpointKeeper(a *Agent) *checkpointKeeper {
	k := &checkpointKeeper{agent: a, dir: filepath.Join(a.config.StateDir, "checkpoints"), log: a.log, cuts: map[string]*cut{},
		copies: map[fileKey]*volumeCopy{}, files: map[fileKey]savedFile{}, fetching: map[fileKey]*fileFetch{}, refused: map[fileKey]error{}, verified: map[fileKey]*verified{},
		leftKnown: make(chan struct{}), left: map[string]bool{}}
	k.load()
	return k
}

func (k *checkpointKeeper) path(key fileKey) string {
	return filepath.Join(k.dir, key.checkpoint, key.guest)
}

const descriptionSuffix = ".json"

// restoredState is the name of a file in a guest's folder. During a restore it has the guest's memory in plain text.
const restoredState = "restore.state"

// load reads the descriptions of files, and removes files without a description, which are incomplete. It removes the plain
// states that an agent left when it was killed during a restore.
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

// want takes the manager's orders. It does not wait.
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
			case w.Volume && k.copies[key].over: // the copy has failed
			case w.Volume:
				k.copies[key].set(w.Order)
			default:
				if c == nil { // the agent that made it has died
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
	for key, fetch := range k.fetching {
		if !kept[key] {
			fetch.stop() // this host is no longer to have the file
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

// fetchAgain is the pause after a failed fetch of a file.
const fetchAgain = 2 * time.Second

// mostFailures is the number of failures after which the host reports that it cannot keep a copy; the manager then asks
// another host. This host goes on trying while it is ordered to: a volume may have no better place for its restore.
const mostFailures = 5

// keep fetches a missing file. It tries until the file is here or no longer wanted. k.mu is held.
func (k *checkpointKeeper) keep(key fileKey, w *v1.CheckpointWanted) {
	wanted := savedFile{Epoch: w.Epoch, File: fileOf(w.File)}
	have, whole := k.files[key]
	if whole && have.File == wanted.File && (w.Verify != "" || w.Trial != nil) {
		k.verify(key, w)
	}
	if whole && have.File == wanted.File || wanted.File.Digest == "" {
		return
	}
	if before := k.fetching[key]; before != nil {
		if before.cancelled {
			before.next = w
		}
		return
	}
	ctx, cancel := context.WithCancel(k.agent.ctx)
	this := &fileFetch{cancel: cancel}
	k.fetching[key] = this
	go func() {
		defer cancel()
		failures := 0
		begun := false // an earlier attempt found room; a part of the file may be here
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
		if this.next != nil {
			k.keep(key, this.next)
		}
		k.mu.Unlock()
		k.agent.publish()
	}()
}

// refuse records why a file is not fetched, or deletes the record if refused is false.
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

// fetch fetches a file if there is room for it. If begun is true, an earlier attempt found room and may have left a part, so
// fetch does not check again.
func (k *checkpointKeeper) fetch(ctx context.Context, key fileKey, f savedFile, blob *v1.Blob, begun *bool) error {
	if err := k.makeFolder(key); err != nil {
		return err
	}
	if free, spare := k.room(); !*begun && free < f.File.Size+spare {
		return fmt.Errorf("%w: it has %s, the disk has %s free, of which %s must stay free", checkpoint.ErrNoRoom, humanize.IBytes(uint64(f.File.Size)), roughly(free), humanize.IBytes(uint64(spare)))
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

// mostSpare bounds how many bytes of the disk stay free; on a small disk a tenth of it stays free.
const mostSpare = 1 << 30

// room returns the free bytes of the disk, and how many bytes must stay free.
func (k *checkpointKeeper) room() (free, spare int64) {
	var disk unix.Statfs_t
	if unix.Statfs(k.dir, &disk) != nil && unix.Statfs(k.agent.config.StateDir, &disk) != nil { // k.dir is made with the first file
		return 0, mostSpare
	}
	return int64(disk.Bavail) * disk.Bsize, min(mostSpare, int64(disk.Blocks)*disk.Bsize/10)
}

// describe writes a file's description. With a description, the file counts as complete.
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

// base returns the file on which a new file may build; nil: this host has none.
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

// supersede removes the index of the file on which f builds. The next file builds on f, so the old index is not needed.
func (k *checkpointKeeper) supersede(w *v1.CheckpointWanted, f checkpoint.File) {
	if f.Base != "" {
		checkpoint.RemoveIndex(k.path(fileKey{w.Base, w.GuestUid}))
	}
}

// discard cancels the making or the fetching of a file, or removes the file. k.mu is held.
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
			return // it stays in the report until it has ended
		}
		delete(k.cuts, key.checkpoint)
	}
	if fetch := k.fetching[key]; fetch != nil {
		fetch.stop()
		return
	}
	k.remove(key)
}

// remove removes a file from disk, its description first. k.mu is held.
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
	_ = os.Remove(filepath.Dir(k.path(key))) // fails if the folder has other files
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

// recover resumes guests that an earlier agent left in the middle of a checkpoint. It is called once. Until then, no checkpoint of a
// guest begins.
func (k *checkpointKeeper) recover(ctx context.Context) {
	left := map[string]machine.View{} // by pipe
	saver := k.agent.config.Saver
	if saver != nil {
		k.agent.mu.Lock()
		guests := k.agent.machine.Guests()
		k.agent.mu.Unlock()
		for _, g := range guests {
			pipe, err := saver.SnapshotPipe(g.Name)
			if err != nil {
				continue
			}
			if _, err := os.Stat(pipe); err == nil {
				left[pipe] = g
			}
		}
	}
	k.mu.Lock()
	for _, g := range left {
		k.left[g.UID] = true
	}
	k.mu.Unlock()
	close(k.leftKnown)
	var group sync.WaitGroup
	for pipe, g := range left { // one that hangs keeps none of the others waiting
		group.Go(func() {
			k.log.Warn("a checkpoint was interrupted; the guest is resumed", "guest", g.Name)
			err := saver.EndSnapshot(ctx, g.UID, pipe)
			if g.Record != nil { // the manager's orders resume a guest whose record cannot be read now
				err = errors.Join(err, k.agent.resumeStarted(ctx, g.UID, g.Record.Epoch))
			}
			if err != nil {
				k.log.Error("discard an interrupted checkpoint", "guest", g.Name, "error", err)
			}
			k.mu.Lock()
			delete(k.left, g.UID)
			k.mu.Unlock()
		})
	}
	group.Wait()
}

// awaitEarlier waits until no checkpoint of a guest or volume that was begun before is under way. It may have been given up, and QEMU
// makes one snapshot at a time.
func (k *checkpointKeeper) awaitEarlier(ctx context.Context, uid string, turn uint64) error {
	for k.earlier(uid, turn) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("an earlier checkpoint of it has not ended: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// earlier reports whether a checkpoint of a guest or volume that was begun before is under way.
func (k *checkpointKeeper) earlier(uid string, turn uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left[uid] {
		return true
	}
	for _, c := range k.cuts {
		if !c.over && c.turn < turn && c.has(uid) {
			return true
		}
	}
	for key, c := range k.copies {
		if !c.over && c.turn < turn && key.guest == uid {
			return true
		}
	}
	return false
}

// restore creates a guest's paused domain from a file of a checkpoint.
func (k *checkpointKeeper) restore(ctx context.Context, g *guest, w *v1.GuestWanted) error {
	g.setStep("reading its checkpoint")
	plain := filepath.Join(k.agent.records.GuestDir(g.uid), restoredState)
	err := k.withState(ctx, w.Restore, w.Uid, plain, func() error {
		g.setStep("restoring it")
		return k.agent.config.Saver.Restore(ctx, k.agent.spec(w, g.prepared), plain)
	})
	if err != nil {
		return fmt.Errorf("restore guest %s: %w", w.Name, err)
	}
	return nil
}

// withState writes a state to the file plain for as long as use runs. Meanwhile its room on the disk is taken.
func (k *checkpointKeeper) withState(ctx context.Context, from *v1.RestoreOrder, uid, plain string, use func() error) error {
	done, err := k.takeRoom(ctx, from)
	if err != nil {
		return err
	}
	defer done()
	defer os.Remove(plain)
	if err := k.readChain(ctx, from, uid, plain); err != nil {
		return err
	}
	return use()
}

// read writes the state in the file of a guest or a volume to the file to, if there is room for it.
func (k *checkpointKeeper) read(ctx context.Context, from *v1.RestoreOrder, uid, to string) error {
	done, err := k.takeRoom(ctx, from)
	if err != nil {
		return err
	}
	defer done()
	return k.readChain(ctx, from, uid, to)
}

// readChain writes the state in the file of a guest or a volume to the file to. It removes a damaged file of the chain.
func (k *checkpointKeeper) readChain(ctx context.Context, from *v1.RestoreOrder, uid, to string) error {
	identity, err := age.ParseX25519Identity(from.Key)
	if err != nil {
		return err
	}
	var chain []checkpoint.Stored
	keys := chainOf(from, uid)
	for _, f := range keys {
		chain = append(chain, checkpoint.Stored{Path: k.path(f.key), File: f.file})
	}
	err = checkpoint.Read(ctx, chain, identity, to)
	var damage *checkpoint.DamagedError
	if errors.As(err, &damage) {
		k.mu.Lock()
		k.remove(keys[damage.Index].key) // another host may have an intact copy
		k.mu.Unlock()
	}
	return err
}

// stateRoom returns the size on disk of what is written for a restore. Reading a chain needs the previous state on disk, too.
func stateRoom(from *v1.RestoreOrder) int64 {
	return int64(min(1+len(from.Bases), 2)) * int64(from.File.GetStateBytes())
}

// takeRoom waits until the states of other restores leave room for one more. done gives the room back.
func (k *checkpointKeeper) takeRoom(ctx context.Context, from *v1.RestoreOrder) (done func(), err error) {
	for {
		if done, err = k.tryRoom(from); done != nil || err != nil {
			return done, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tryRoom is takeRoom without the wait: it returns neither done nor an error if there may be room once other restores are over.
func (k *checkpointKeeper) tryRoom(from *v1.RestoreOrder) (done func(), err error) {
	need := stateRoom(from)
	free, spare := k.room()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case free >= k.taken+need+spare:
		k.taken += need
		return func() {
			k.mu.Lock()
			k.taken -= need
			k.mu.Unlock()
		}, nil
	case k.taken > 0:
		return nil, nil
	}
	return nil, fmt.Errorf("%w for its state: the disk has %s free, of which %s must stay free", checkpoint.ErrNoRoom, roughly(free), humanize.IBytes(uint64(spare)))
}

// roughly returns a size for a message that must not change with each byte: a new report would follow each change.
func roughly(bytes int64) string { return humanize.IBytes(uint64(bytes >> 24 << 24)) }

// neededFile is a file that a restore needs.
type neededFile struct {
	key  fileKey
	file checkpoint.File
}

// chainOf returns the files from which a guest or a volume is restored. Each file builds on the one before.
func chainOf(from *v1.RestoreOrder, uid string) (list []neededFile) {
	for _, b := range from.Bases {
		list = append(list, neededFile{fileKey{b.CheckpointId, uid}, fileOf(b.File)})
	}
	return append(list, neededFile{fileKey{from.CheckpointId, uid}, fileOf(from.File)})
}

// has reports whether this host has all files from which a guest or a volume is restored.
func (k *checkpointKeeper) has(from *v1.RestoreOrder, uid string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !slices.ContainsFunc(chainOf(from, uid), func(n neededFile) bool { return !validUID(n.key.checkpoint) || k.files[n.key].File != n.file })
}

// lacks returns why this host does not get a file from which a guest or a volume is restored; nil: it tries.
func (k *checkpointKeeper) lacks(from *v1.RestoreOrder, uid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range chainOf(from, uid) {
		if err := k.refused[n.key]; err != nil {
			return err
		}
	}
	return nil
}

// awaitFile waits until this host has the files from which a guest is restored. It refuses the guest if this host cannot get
// them, or has no room for its state: another host may.
func (k *checkpointKeeper) awaitFile(ctx context.Context, w *v1.GuestWanted, step func(string)) error {
	if k.agent.config.Saver == nil {
		return errors.New("this host cannot restore guests")
	}
	step("fetching its checkpoint")
	for {
		if k.has(w.Restore, w.Uid) {
			done, err := k.tryRoom(w.Restore)
			if err != nil {
				return fmt.Errorf("read its checkpoint: %w", &refusedError{err.Error()})
			}
			if done != nil {
				done() // restore takes it
			}
			return nil
		}
		if err := k.lacks(w.Restore, w.Uid); err != nil {
			return fmt.Errorf("fetch its checkpoint: %w", &refusedError{err.Error()})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
