package vm

// snapshot.go - saves a guest's memory and devices as they are at one moment, while the guest runs on. It uses QEMU's
// background snapshot: QEMU stops the guest for milliseconds, saves its devices' state, write-protects its memory, and
// resumes it. From then on QEMU sends page after page. It sends a page earlier if the guest is about to write to it.
//
// libvirt has no call for this, so this file sends commands through libvirt to QEMU's monitor. libvirt sees an ordinary
// running guest. QEMU's stream gets the head of libvirt's save files, so that Restore can read it.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"
)

// Settings of a snapshot.
const (
	// snapshotRate bounds the bytes per second that QEMU sends unasked. Pages that the guest is about to write do not
	// count.
	snapshotRate = int64(4 << 30)
	// beginTime is how long QEMU may take from the order to begin until the guest runs again.
	beginTime = 10 * time.Second
	// A snapshot keeps snapshotChunks to mostChunks chunks of snapshotChunk bytes in memory for a reader that is slower than
	// QEMU. More than snapshotChunks are kept only up to a memoryPart-th of the host's free memory.
	snapshotChunks = 256
	mostChunks     = 1024
	memoryPart     = 64
	snapshotChunk  = 256 << 10
	// snapshotRoom is the size of the pipe in the kernel. QEMU does not fill it within a snapshotPause.
	snapshotRoom = 16 << 20
	// unprivilegedRoom is the largest size that needs no privilege. QEMU may have to wait for the rest of a snapshotPause.
	unprivilegedRoom = 1 << 20
	// snapshotPause is how long the pipe fills before it is read again.
	snapshotPause = 2 * time.Millisecond
	// snapshotPatience is how long a reader may make QEMU wait. Meanwhile a guest that writes to its memory is blocked, and
	// QEMU's monitor may be blocked, too.
	snapshotPatience = 5 * time.Second
	// snapshotTime bounds the reading of a snapshot that is discarded.
	snapshotTime = 5 * time.Minute
	// snapshotFD is QEMU's name for its end of the pipe.
	snapshotFD = "watari-snapshot"
	// snapshotPoll is the pause between two queries of QEMU's state.
	snapshotPoll = time.Millisecond
)

// ErrNoSnapshots: this host's QEMU or kernel cannot write a guest's memory while the guest runs.
var ErrNoSnapshots = errors.New("this host cannot save guests while they run")

// Stop stops a running guest. It does nothing to a guest that does not run. The guest stays stopped until Resume, or
// until a snapshot of it begins.
func (l *Libvirt) Stop(ctx context.Context, uid string) error {
	err := l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
		if state, _, err := domain.GetState(); err != nil || state == libvirt.DOMAIN_PAUSED {
			return err
		}
		if ctx.Err() != nil { // see onDomain
			return ctx.Err()
		}
		return domain.Suspend()
	})
	if err != nil {
		return fmt.Errorf("stop domain %s: %w", uid, err)
	}
	return nil
}

// Snapshot is a guest's state that is about to be taken or is being read. One goroutine may use it, and another one may
// read.
//
// QEMU (7.2, and 9 by its source) never releases the memory of a guest whose snapshot fails or is cancelled: the guest hangs
// at its next write. So a snapshot that has begun is always read to its end, even if it is discarded. QEMU writes to a named
// pipe of which it has both ends. So the snapshot does not fail if a reader dies, and another process can read the rest.
type Snapshot struct {
	l      *Libvirt
	uid    string
	fifo   string
	pipe   *os.File      // QEMU writes to it; nil: it could not be made
	head   *bytes.Reader // unread part of the save file's head
	chunks chan []byte   // from QEMU; closed after the last
	taken  []byte        // the chunk being read
	chunk  []byte        // unread part of taken
	free   chan []byte   // chunks to be filled again; its capacity is the number of chunks
	failed error         // why chunks are missing, or nil; set before chunks is closed
	given  chan struct{} // closed when the rest is to be discarded
	begun  chan struct{} // closed when Begin has ended
	void   error         // why Begin failed, or nil; set before begun is closed
	half   chan struct{} // closed when half of the chunks are in use for the first time
	many   bool          // half is closed
	behind chan struct{} // closed when three quarters of the chunks are in use
	late   bool          // behind is closed
	closed bool
}

// SnapshotPipe returns the path of the named pipe for PrepareSnapshot. It makes the folder. It fails with ErrUnavailable
// before the first connection.
func (l *Libvirt) SnapshotPipe(name string) (string, error) {
	path, err := l.qemuPath("c", name)
	if err != nil {
		return "", fmt.Errorf("prepare the snapshot pipe of guest %s: %w", name, err)
	}
	return path, nil
}

// PrepareSnapshot prepares Begin, so that a stopped guest waits only briefly. fifo is the path of the named pipe that it
// makes for QEMU. It fails with ErrNoSnapshots if the host cannot do it. If it succeeds, the caller must close the snapshot.
func (l *Libvirt) PrepareSnapshot(ctx context.Context, uid, fifo string) (*Snapshot, error) {
	if busy, err := l.Busy(ctx, uid); err != nil || busy {
		return nil, fmt.Errorf("prepare a snapshot of domain %s: %w", uid, cmp.Or(err, errBusy))
	}
	n := chunksFor(availableMemory())
	s := &Snapshot{l: l, uid: uid, fifo: fifo, chunks: make(chan []byte, n), given: make(chan struct{}), begun: make(chan struct{}), half: make(chan struct{}),
		behind: make(chan struct{}), free: make(chan []byte, n+2)}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a snapshot of domain %s: %w", uid, err), s.Close())
	}
	return s, nil
}

// chunksFor returns how many chunks a snapshot may keep on a host with this much free memory, in bytes.
func chunksFor(memory uint64) int {
	return int(min(max(memory/memoryPart/snapshotChunk, snapshotChunks), mostChunks))
}

// availableMemory returns the memory that new programs could have, bytes; 0: it is not known.
func availableMemory() uint64 {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	memory, err := fs.Meminfo()
	if err != nil || memory.MemAvailableBytes == nil {
		return 0
	}
	return *memory.MemAvailableBytes
}

// Behind is closed when the reader is so slow that the guest may soon have to wait for it.
func (s *Snapshot) Behind() <-chan struct{} { return s.behind }

var errBusy = errors.New("libvirt has a job on it, such as a migration")

func (s *Snapshot) prepare(ctx context.Context) error {
	var text string
	if err := s.l.withDomain(ctx, s.uid, func(domain *libvirt.Domain) (err error) {
		text, err = domain.GetXMLDesc(libvirt.DOMAIN_XML_SECURE | libvirt.DOMAIN_XML_MIGRATABLE)
		return err
	}); err != nil {
		return err
	}
	s.head = bytes.NewReader(newSaveHead(text))
	if err := s.passPipe(ctx); err != nil {
		return fmt.Errorf("give QEMU a pipe to write to: %w", err)
	}
	end, err := hostUserfaults.allow()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoSnapshots, err)
	}
	if err = s.l.setSnapshots(ctx, s.uid, true); err != nil {
		err = fmt.Errorf("%w: %w", ErrNoSnapshots, err)
	}
	return errors.Join(err, end())
}

// passPipe makes the pipe, and passes QEMU a descriptor of both ends. AppArmor lets QEMU receive it because of its path
// (confinement.go).
func (s *Snapshot) passPipe(ctx context.Context) error {
	if err := os.Remove(s.fifo); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := unix.Mkfifo(s.fifo, 0o600); err != nil {
		return err
	}
	if o := s.l.hostFacts().owner; o != (owner{}) {
		if err := os.Chown(s.fifo, o.uid, o.gid); err != nil {
			return err
		}
	}
	var err error
	if s.pipe, err = openPipe(s.fifo); err != nil {
		return err
	}
	both, err := os.OpenFile(s.fifo, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = s.l.monitor(ctx, s.uid, "getfd", map[string]any{"fdname": snapshotFD}, nil, *both)
	if !errors.Is(err, ErrUnavailable) { // after ErrUnavailable, libvirt may still pass the pipe
		_ = both.Close()
	}
	return err
}

// openPipe opens a named pipe for reading, with a large buffer if the kernel allows it.
func openPipe(path string) (*os.File, error) {
	pipe, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	conn, err := pipe.SyscallConn() // Fd would make it blocking
	if err == nil {
		err = conn.Control(func(fd uintptr) {
			if _, err := unix.FcntlInt(fd, unix.F_SETPIPE_SZ, snapshotRoom); err != nil {
				_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, unprivilegedRoom)
			}
		})
	}
	if err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	return pipe, nil
}

// Begin takes the guest's state and lets the guest go on, whether it ran or was stopped before. It returns when the
// guest runs again. The snapshot must then be read without delay. If Begin fails, the guest may be stopped; the caller
// closes the snapshot and resumes the guest.
func (s *Snapshot) Begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	defer close(s.begun)
	if err := s.begin(ctx); err != nil {
		s.void = fmt.Errorf("begin a snapshot of domain %s: %w", s.uid, err)
	}
	return s.void
}

func (s *Snapshot) begin(ctx context.Context) error {
	end, err := hostUserfaults.allow()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoSnapshots, err)
	}
	defer func() { _ = end() }()
	if on, err := s.l.snapshots(ctx, s.uid); err != nil || !on {
		return cmp.Or(err, errors.New("an earlier snapshot of it was just ended")) // the holder of a killed agent may have done that
	}
	// QEMU's monitor may hang while nobody reads, so the reader begins first.
	go s.receive()
	if err := s.l.monitor(ctx, s.uid, "migrate", map[string]any{"uri": "fd:" + snapshotFD}, nil); err != nil {
		return err
	}
	for {
		state, err := s.l.migrationState(ctx, s.uid)
		if err == nil {
			err = state.failure()
		}
		if err != nil {
			return err
		}
		if state.pages() > 0 || state.Status == "completed" {
			// QEMU up to 8.1 resumes the guest in any case; later versions leave a stopped guest stopped.
			return s.l.Resume(ctx, s.uid)
		}
		if !sleep(ctx, snapshotPoll) {
			return ctx.Err()
		}
	}
}

// receive reads QEMU's stream to its end. QEMU writes each page by a separate call. A reader that waited for each page would
// be woken each time, which costs more than the page itself. So when the pipe is empty, receive lets it fill for a while.
func (s *Snapshot) receive() {
	defer close(s.chunks)
	for {
		var chunk []byte
		select {
		case chunk = <-s.free:
		default:
			chunk = make([]byte, 0, snapshotChunk)
		}
		var err error
		for err == nil && len(chunk) < cap(chunk) {
			var n int
			n, err = s.pipe.Read(chunk[len(chunk):cap(chunk)])
			chunk = chunk[:len(chunk)+n]
			if err == nil && len(chunk) < cap(chunk) {
				time.Sleep(snapshotPause)
			}
		}
		if s.failed == nil && len(chunk) > 0 {
			s.failed = s.keep(chunk)
		}
		if err != nil {
			if err != io.EOF {
				s.failed = cmp.Or(s.failed, err)
			}
			return
		}
	}
}

// keep stores a chunk for the snapshot's reader. It fails if the reader is too slow, or has given the snapshot up.
func (s *Snapshot) keep(chunk []byte) error {
	late := time.NewTimer(snapshotPatience)
	defer late.Stop()
	select {
	case s.chunks <- chunk:
		if !s.many && len(s.chunks) >= cap(s.chunks)/2 {
			s.many = true
			close(s.half)
		}
		if !s.late && len(s.chunks) >= cap(s.chunks)/4*3 {
			s.late = true
			close(s.behind)
		}
		return nil
	case <-s.given:
		return os.ErrClosed
	case <-late.C:
		return fmt.Errorf("it was not read for %v; the guest could not wait any longer", snapshotPatience)
	}
}

// Read reads the snapshot as a save file of libvirt's, which Restore restores. It returns io.EOF only if QEMU reports that
// it has written everything. It may be called before Begin, and fails if Begin fails. While Begin waits, Read returns no
// chunks until half of them are in use, because the stopped guest needs the processors. Then it reads, because otherwise
// QEMU and its monitor might wait for the reader.
func (s *Snapshot) Read(p []byte) (int, error) {
	if s.head.Len() > 0 {
		return s.head.Read(p)
	}
	select {
	case <-s.begun:
		if s.void != nil {
			return 0, s.void
		}
	case <-s.half:
	}
	for len(s.chunk) == 0 {
		var more bool
		if s.taken != nil {
			s.free <- s.taken[:0]
		}
		if s.taken, more = s.next(); !more {
			return 0, s.ended()
		}
		s.chunk = s.taken
	}
	n := copy(p, s.chunk)
	s.chunk = s.chunk[n:]
	return n, nil
}

// next returns the next chunk; false: there are no more, or Begin has failed.
func (s *Snapshot) next() (chunk []byte, more bool) {
	select {
	case chunk, more = <-s.chunks:
		return chunk, more
	case <-s.begun:
	}
	if s.void != nil {
		return nil, false
	}
	chunk, more = <-s.chunks
	return chunk, more
}

// ended returns io.EOF if QEMU has written everything.
func (s *Snapshot) ended() error {
	select {
	case <-s.begun:
		if s.void != nil {
			return s.void
		}
	default: // QEMU has written everything before Begin knows it
	}
	err := s.failed
	if err == nil {
		ctx, cancel := context.WithTimeout(s.l.ctx, quickTime)
		defer cancel()
		err = s.l.snapshotWritten(ctx, s.uid)
	}
	if err == nil {
		return io.EOF
	}
	return fmt.Errorf("read the memory of domain %s: %w", s.uid, err)
}

// Close ends the snapshot, finished or not, and makes QEMU ready for migrations again. The guest runs on. If QEMU is
// still writing, Close waits until it has ended. Close may be called again.
func (s *Snapshot) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	close(s.given)
	ctx, cancel := context.WithTimeout(s.l.ctx, snapshotTime)
	defer cancel()
	if err := s.l.EndSnapshot(ctx, s.uid, s.fifo); err != nil {
		return err // the pipe stays open: receive continues as long as QEMU writes
	}
	if s.pipe != nil {
		_ = s.pipe.Close()
	}
	return nil
}

// EndSnapshot ends a snapshot that another process left, and makes QEMU ready for migrations again. It discards the rest of
// the snapshot. A missing domain, or one without a snapshot, is no error.
func (l *Libvirt) EndSnapshot(ctx context.Context, uid, fifo string) error {
	if pipe, err := openPipe(fifo); err == nil {
		defer pipe.Close()
		go func() { _, _ = io.Copy(io.Discard, pipe) }() // ends when QEMU or this function closes the pipe
	}
	for {
		// Do this first, so that no late request can begin to write to the pipe.
		_ = l.monitor(ctx, uid, "closefd", map[string]any{"fdname": snapshotFD}, nil)
		on, err := l.snapshots(ctx, uid)
		if err == nil && on {
			err = l.setSnapshots(ctx, uid, false) // QEMU refuses while it is still writing
		}
		if err == nil || errors.Is(err, ErrNotFound) {
			_ = os.Remove(fifo)
			return nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("end the snapshot of domain %s: %w", uid, err)
		}
	}
}

// setSnapshots tells QEMU whether its next migration is a snapshot.
func (l *Libvirt) setSnapshots(ctx context.Context, uid string, on bool) error {
	if on {
		if err := l.monitor(ctx, uid, "migrate-set-parameters", map[string]any{"max-bandwidth": snapshotRate}, nil); err != nil {
			return err
		}
	}
	capability := map[string]any{"capability": "background-snapshot", "state": on}
	return l.monitor(ctx, uid, "migrate-set-capabilities", map[string]any{"capabilities": []any{capability}}, nil)
}

// snapshots reports whether QEMU's next migration is a snapshot.
func (l *Libvirt) snapshots(ctx context.Context, uid string) (bool, error) {
	var all []struct {
		Capability string
		State      bool
	}
	if err := l.monitor(ctx, uid, "query-migrate-capabilities", nil, &all); err != nil {
		return false, err
	}
	for _, c := range all {
		if c.Capability == "background-snapshot" {
			return c.State, nil
		}
	}
	return false, nil
}

// snapshotWritten waits until QEMU reports how its snapshot ended, and returns nil if the snapshot is complete.
func (l *Libvirt) snapshotWritten(ctx context.Context, uid string) error {
	for {
		state, err := l.migrationState(ctx, uid)
		if err == nil {
			err = state.failure()
		}
		if err != nil {
			return fmt.Errorf("it ended early: %w", err)
		}
		if state.Status == "completed" {
			return nil
		}
		if !sleep(ctx, 10*snapshotPoll) {
			return fmt.Errorf("QEMU has closed its pipe, but is still %s", state.Status)
		}
	}
}

// qemuMigration is QEMU's status of its migration: the last snapshot, or one under way.
type qemuMigration struct {
	Status string
	Reason string `json:"error-desc"`
	RAM    struct{ Normal, Duplicate uint64 }
}

// pages returns how many pages QEMU has sent. QEMU sends the first page after the moment whose state is taken.
func (q *qemuMigration) pages() uint64 { return q.RAM.Normal + q.RAM.Duplicate }

func (q *qemuMigration) failure() error {
	switch q.Status {
	case "failed", "cancelled", "cancelling":
		return fmt.Errorf("QEMU's snapshot is %s: %s", q.Status, cmp.Or(q.Reason, "no reason is given"))
	}
	return nil
}

func (l *Libvirt) migrationState(ctx context.Context, uid string) (*qemuMigration, error) {
	state := &qemuMigration{}
	return state, l.monitor(ctx, uid, "query-migrate", nil, state)
}

// monitor executes a command of QEMU's monitor, and passes it files. If answer is not nil, it gets the result.
func (l *Libvirt) monitor(ctx context.Context, uid, command string, arguments map[string]any, answer any, files ...os.File) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	var reply struct {
		Return json.RawMessage
		Error  *struct{ Desc string }
	}
	err = l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
		said, _, err := domain.QemuMonitorCommandWithFiles(string(text), files, libvirt.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(said), &reply)
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", command, err)
	case reply.Error != nil:
		return fmt.Errorf("%s: QEMU says: %s", command, reply.Error.Desc)
	case answer != nil:
		return json.Unmarshal(reply.Return, answer)
	}
	return nil
}
