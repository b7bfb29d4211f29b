package agent

// storage.go - folders of file servers outside, which the guest mounts through its gateway.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/internal/mounts"
)

const (
	// storagePatience is how long the start of a process waits for storage, counted from the time when it was wanted.
	storagePatience = 30 * time.Second
	// notMounted is the name of an empty read-only file system. It is mounted in the place of storage that is not mounted
	// yet, so that programs cannot write there.
	notMounted = "storage-is-not-mounted-yet"
	// clientName is the file from which the kernel's NFS client reads the name by which servers know it. Guests of two
	// clusters may have the same host name, and a server takes two clients with one name for a client that restarted.
	clientName = "/sys/fs/nfs/net/nfs_client/identifier"
	// connections are files with the addresses to which the kernel's RPC clients connect. Writing to one makes the kernel
	// close the connection and make a new one.
	connections = "/sys/kernel/sunrpc/xprt-switches/*/xprt-*/dstaddr"
)

// storage has the mounts of this guest. Mounting continues in the background, because a server may not answer.
type storage struct {
	log *slog.Logger

	mu     sync.Mutex
	wanted map[string]*mounting     // by at
	going  map[string]chan struct{} // by at: unmounts under way; closed when the unmount has ended
	since  time.Time                // when the present set was wanted
	epoch  uint64                   // of the last identity
	change chan struct{}            // closed when a state changes
}

// mounting is the work on one mount.
type mounting struct {
	mount   *v1.StorageMount
	gateway string
	own     string // this guest's address
	uid     string // this guest's uid
	cancel  context.CancelFunc
	state   string // homeReady, or why it is not mounted
}

func newStorage(log *slog.Logger) *storage {
	return &storage{log: log, wanted: map[string]*mounting{}, going: map[string]chan struct{}{}, change: make(chan struct{})}
}

// source returns the device that the kernel shows for the mount.
func source(m *v1.StorageMount) string { return mounts.Source(m.Server, m.Path) }

// want replaces this guest's mounts by those of an identity. It unmounts the others even while programs use them; operations
// of these programs then fail.
func (s *storage) want(c checked) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]*v1.StorageMount{}
	for _, m := range c.GetMounts() {
		wanted[m.At] = m
	}
	if s.epoch != 0 && s.epoch != c.GetEpoch() && len(s.wanted) > 0 {
		go reconnect(c.gateway.String())
	}
	s.epoch = c.GetEpoch()
	var errs []error
	for at, now := range s.wanted {
		if proto.Equal(now.mount, wanted[at]) {
			continue
		}
		now.cancel()
		delete(s.wanted, at)
		s.going[at] = s.remove(at, s.going[at])
	}
	for at, m := range wanted {
		if s.wanted[at] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		w := &mounting{mount: m, gateway: c.gateway.String(), own: c.address.String(), uid: c.GetGuestUid(), cancel: cancel, state: "being mounted"}
		s.wanted[at], s.since = w, time.Now()
		if from, kind := mountedFrom(at); kind == nfsType && from == source(m) { // an earlier agent did it
			w.state = homeReady
			continue
		} else if s.going[at] == nil && kind == "" {
			if err := hold(at); err != nil {
				errs = append(errs, err)
			}
		}
		go s.work(ctx, w, s.going[at])
	}
	return errors.Join(errs...)
}

// remove unmounts everything at a place, after an earlier removal there has ended. It continues in the background: if the
// server does not answer, the kernel waits for more than a minute to end its session.
func (s *storage) remove(at string, before <-chan struct{}) chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		if err := unmountStorage(at); err != nil {
			s.log.Error("storage", "error", err)
		}
	}()
	return done
}

// reconnect makes the kernel reconnect to the servers behind the gateway, after the guest has moved or gone back to a
// checkpoint. An answer that was under way then never arrives. Unless it has a request to send, the kernel would notice that
// only after a long time.
func reconnect(gateway string) {
	files, _ := filepath.Glob(connections)
	for _, file := range files {
		if address, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(address)) == gateway {
			_ = os.WriteFile(file, []byte(gateway), 0)
		}
	}
}

// hold mounts an empty read-only file system in the place of storage.
func hold(at string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(notMounted, at, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "mode=0555,size=4k"); err != nil {
		return fmt.Errorf("mount memory on %s: %w", at, err)
	}
	return nil
}

// unmountStorage removes all mounts at a place.
func unmountStorage(at string) error {
	for {
		from, kind := mountedFrom(at)
		if kind != nfsType && from != notMounted {
			return nil
		}
		if kind == nfsType { // requests that wait for the server end with an error
			_ = unix.Unmount(at, unix.MNT_FORCE)
		}
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
}

// work tries until storage is mounted or no longer wanted. It begins when the unmount of the earlier storage has ended.
func (s *storage) work(ctx context.Context, w *mounting, before <-chan struct{}) {
	if before != nil {
		<-before
		if err := hold(w.mount.At); err != nil {
			s.log.Error("storage", "error", err)
		}
	}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := awaitModules(ctx)
		if err == nil {
			err = w.try()
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			s.mu.Unlock()
			if err == nil && s.unwanted(w.mount.At) {
				_ = unmountStorage(w.mount.At)
			}
			return
		}
		before := w.state
		if w.state = homeReady; err != nil {
			w.state = err.Error()
		}
		if w.state != before {
			close(s.change)
			s.change = make(chan struct{})
			s.log.Info("storage", "what", source(w.mount), "at", w.mount.At, "state", w.state)
		}
		s.mu.Unlock()
		if err == nil {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// unwanted reports whether no storage is wanted at a place.
func (s *storage) unwanted(at string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted[at] == nil
}

// try mounts once. It blocks while the server does not answer.
func (w *mounting) try() error {
	if err := os.WriteFile(clientName, []byte(w.uid), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("name this guest to file servers: %w", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if w.mount.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	var err error
	for _, version := range []string{"4.2", "4.1"} { // 4.0 has no sessions, so a server may carry out a repeated request twice
		// hard: programs wait for a server that does not answer, because the server or the guest may be moving.
		options := fmt.Sprintf("vers=%s,proto=tcp,port=%d,sec=sys,hard,timeo=150,addr=%s,clientaddr=%s", version, w.mount.GatewayPort, w.gateway, w.own)
		err = unix.Mount(source(w.mount), w.mount.At, nfsType, flags, options)
		if !errors.Is(err, unix.EPROTONOSUPPORT) {
			break
		}
	}
	switch {
	case err == nil:
		return nil
	case !knows(nfsType):
		return errors.New("the guest's kernel has no NFS client (module nfsv4, which the image ought to hold)")
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("the server does not speak NFS 4.1 or later: %w", err)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("the server has no folder %s, or does not export it to the guests' hosts: %w", w.mount.Path, err)
	}
	return err
}

// status returns "ready", or why some storage is not mounted.
func (s *storage) status() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem()
}

// problem is status; the caller holds mu.
func (s *storage) problem() string {
	problem := ""
	for at, w := range s.wanted {
		text := fmt.Sprintf("storage %s is not mounted at %s: %s", source(w.mount), at, w.state)
		if w.state != homeReady && (problem == "" || text < problem) {
			problem = text
		}
	}
	if problem == "" {
		return homeReady
	}
	return problem
}

// await waits until all storage is mounted. Without it, a program might miss its input and compute wrong results.
func (s *storage) await(ctx context.Context) error {
	for {
		s.mu.Lock()
		problem, change, left := s.problem(), s.change, storagePatience-time.Since(s.since)
		s.mu.Unlock()
		if problem == homeReady {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(left):
			return errors.New(problem + "; `watari status` shows whether hosts reach the server")
		}
	}
}

// mountedFrom returns the device and the type of the file system that was mounted last on a path; empty: none is mounted.
func mountedFrom(path string) (device, kind string) {
	b, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && unescape(f[1]) == path {
			device, kind = unescape(f[0]), f[2]
		}
	}
	return device, kind
}

// unescape decodes blanks and other characters that the kernel escapes in its list of mounts.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(text)
}
