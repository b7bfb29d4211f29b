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
	// notMounted is the name of the empty read-only file system in the place of storage that is not mounted yet: a program must not
	// write there.
	notMounted = "storage-is-not-mounted-yet"
	// clientName is where the kernel's NFS client reads by what name servers know it. Guests of two clusters may have one host name, and a
	// server takes two clients of one name for one that was restarted.
	clientName = "/sys/fs/nfs/net/nfs_client/identifier"
	// connections are files with the addresses to which the kernel's RPC clients connect. Writing one ends the connection, and makes another.
	connections = "/sys/kernel/sunrpc/xprt-switches/*/xprt-*/dstaddr"
)

// storage is what this guest mounts. Mounting goes on in the background, because a server may not answer.
type storage struct {
	log *slog.Logger

	mu     sync.Mutex
	wanted map[string]*mounting     // by at
	going  map[string]chan struct{} // what is being unmounted, by at; closed when that is done
	since  time.Time                // when the present set was wanted
	epoch  uint64                   // of the last identity
	change chan struct{}            // closed when a state changes
}

// mounting is the work on one mount.
type mounting struct {
	mount   *v1.StorageMount
	gateway string
	own     string // this guest's address
	uid     string // and its uid
	cancel  context.CancelFunc
	state   string // homeReady, or why it is not mounted
}

func newStorage(log *slog.Logger) *storage {
	return &storage{log: log, wanted: map[string]*mounting{}, going: map[string]chan struct{}{}, change: make(chan struct{})}
}

// source returns what the kernel shows as the mount's device.
func source(m *v1.StorageMount) string { return mounts.Source(m.Server, m.Path) }

// want makes the mounts of an identity those of this guest. Others are unmounted, even while programs use them: what these do fails then.
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

// remove unmounts what is at a place, after an earlier removal there. It goes on in the background: if the server does not answer, the kernel waits for
// more than a minute when it wants to take its leave.
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

// reconnect makes the kernel connect anew to the servers behind the gateway. The guest has moved, or gone back to a checkpoint: an answer under way then
// never comes, and without a request that is still to be sent the kernel would notice only when it has waited for long.
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

// work tries until storage is mounted, or no longer wanted. It begins when what was there before is unmounted.
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

// unwanted reports whether nothing is to be mounted at a place.
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
	for _, version := range []string{"4.2", "4.1"} { // 4.0 has no sessions, in which a server answers a repeated request without doing it again
		// hard: programs wait for a server that does not answer, because it, the guest or the way may just be moving.
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

// status returns "ready", or why not all storage is mounted.
func (s *storage) status() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem()
}

// problem is status with mu held.
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

// await waits until all storage is mounted. A program that ran without it might find its input missing, and be wrong.
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

// unescape undoes how the kernel writes blanks and such in its list of mounts.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(text)
}
