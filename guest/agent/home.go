package agent

// home.go - the cluster's shared home: one guest serves it, the others mount it.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"watari/guest/initd"
)

const (
	homeReady = "ready"
	// checkEvery is the least time between two checks of the mounted home. Requests for its state cause checks.
	checkEvery = 10 * time.Second
	// slowAfter is the duration after which the state reports that a check is slow.
	slowAfter = 3 * time.Second
	// homePatience is how long requests that may need the home wait for it.
	homePatience = 30 * time.Second
	// homeTry is how long the first connections to the home's server may take, and the longest pause between two tries. The
	// time doubles after every homeTries, to longestHomeTry.
	homeTry        = time.Second
	homeTries      = 5
	longestHomeTry = 8 * time.Second
	// homeGrace is how long a guest with a new identity is not ready because its home is not.
	homeGrace = 15 * time.Second
	// nfsType is the type of a mount of another guest's home.
	nfsType = "nfs4"
)

// home is the cluster's shared home in this guest. One guest keeps it in memory and serves it with the kernel's NFS
// server; the others mount it. Slow work runs in the background. Until the home is mounted, an empty read-only file
// system is mounted in its place: a file written there would be hidden by the home, and lost.
type home struct {
	log    *slog.Logger
	server *nfsServer

	mu      sync.Mutex
	ready   chan struct{} // closed when the home is ready; replaced when another home is wanted afterwards
	state   string
	wanted  homeWanted
	cancel  context.CancelFunc // of the goroutine that works on wanted
	since   time.Time          // when the work on wanted began
	checked time.Time          // when the mounted home was last checked
	looking time.Time          // since when a check is under way; zero: none is
}

// homeWanted is the home that an identity wants.
type homeWanted struct {
	path        string
	uid         uint32
	server, own string // addresses; no server: a home of its own
	peers       string // addresses, each with a blank after it
	guestUID    string
	volume      bool // the home is on the guest's volume
}

func newHome(log *slog.Logger) *home {
	return &home{log: log, state: "not asked for", server: newNFSServer(log), ready: make(chan struct{})}
}

// await waits until the home is ready, for homePatience at most, and then says why it is not. For root, the patience is
// counted from the time when the home was wanted: root may look for the reason, and need not wait for each step of that.
func (h *home) await(ctx context.Context, root bool) error {
	h.mu.Lock()
	ready, begun, patience := h.ready, h.cancel != nil, homePatience
	if root {
		patience -= time.Since(h.since)
	}
	h.mu.Unlock()
	if !begun {
		return nil
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(patience):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == homeReady {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("the shared home is not ready: %s; `watari guest list` shows whether the cluster's first guest, which serves it, runs", h.state))
}

// within reports whether a path lies in the home.
func (h *home) within(path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	rest, ok := strings.CutPrefix(filepath.Clean(path), h.wanted.path)
	return h.wanted.path != "" && ok && (rest == "" || rest[0] == '/')
}

// status returns "ready", or why the home is not available.
func (h *home) status() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != homeReady {
		return h.state
	}
	now := time.Now()
	if !h.looking.IsZero() {
		if took := now.Sub(h.looking); took > slowAfter {
			return fmt.Sprintf("guest %s, which serves the home, has not answered for %v", h.wanted.server, took.Round(time.Second))
		}
	} else if now.Sub(h.checked) > checkEvery {
		h.looking = now
		go h.look(h.wanted)
	}
	return h.state
}

// look checks whether the mounted home is still valid. A server that was restarted has lost it. Then look unmounts the
// old home and mounts the new one.
func (h *home) look(w homeWanted) {
	var s unix.Stat_t
	err := unix.Stat(w.path, &s)
	h.mu.Lock()
	defer h.mu.Unlock()
	if w != h.wanted { // another home may be wanted since the check began
		return
	}
	h.looking, h.checked = time.Time{}, time.Now()
	if errors.Is(err, unix.ESTALE) {
		h.log.Warn("the shared home was lost and is mounted anew", "server", w.server)
		if err := prepare(w); err != nil {
			h.log.Error("shared home", "error", err)
		}
		h.begin(w)
	}
}

// wantedHome returns the home that an identity wants.
func wantedHome(c checked) homeWanted {
	w := homeWanted{
		path: filepath.Join("/home", c.GetUser()), uid: c.GetUid(),
		server: c.GetHomeServer(), own: c.address.String(), guestUID: c.GetGuestUid(), volume: c.GetVolume(),
	}
	for _, p := range c.GetPeers() {
		w.peers += p.GetAddress() + " "
	}
	return w
}

// resume takes over the home of an earlier agent. Its mount stays.
func (h *home) resume(c checked) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begin(wantedHome(c))
}

// want provides the home of an identity. A guest's own home is ready at once. Serving or mounting a home continues in
// the background.
func (h *home) want(c checked) error {
	w := wantedHome(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wanted == w {
		return nil
	}
	if h.cancel != nil {
		h.cancel()
	}
	if mounted(w.path) == "" { // do not touch a mounted home: its server may not answer
		if err := os.MkdirAll(w.path, 0o755); err != nil {
			return err
		}
	}
	// The mount stays if only the peers differ.
	same := w
	same.peers = h.wanted.peers
	if same != h.wanted {
		if err := prepare(w); err != nil {
			return err
		}
	}
	h.begin(w)
	return nil
}

// prepare unmounts the old home and mounts what is there before the work on w begins: this guest's own home, or an
// empty read-only file system in the place of another guest's.
func prepare(w homeWanted) error {
	if err := unmountAll(w.path); err != nil {
		return err
	}
	if w.mine() && w.volume {
		return mountVolume(w)
	}
	source, flags, options := "home", uintptr(0), fmt.Sprintf("mode=0755,uid=%d,gid=%d", w.uid, w.uid)
	if !w.mine() {
		source, flags, options = "home-is-not-mounted-yet", unix.MS_RDONLY, "mode=0555,size=4k"
	}
	if err := unix.Mount(source, w.path, "tmpfs", flags|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount memory on %s: %w", w.path, err)
	}
	return nil
}

// mine reports whether this guest keeps the home.
func (w homeWanted) mine() bool { return w.server == "" || w.server == w.own }

// begin starts to work on w; mu is held.
func (h *home) begin(w homeWanted) {
	ctx, cancel := context.WithCancel(context.Background())
	if h.state == homeReady { // otherwise the waiting callers now wait for this home
		h.ready = make(chan struct{})
	}
	if h.state == homeReady || h.since.IsZero() { // otherwise nobody waits longer because the home changes
		h.since = time.Now()
	}
	h.wanted, h.cancel, h.state = w, cancel, "being set up"
	h.looking = time.Time{} // ignore a check of another home
	go h.work(ctx, w)
}

// work tries until the home is ready or another home is wanted.
func (h *home) work(ctx context.Context, w homeWanted) {
	wait, patience := 100*time.Millisecond, homeTry
	for n := 1; ; n++ {
		err := h.try(ctx, w, patience)
		h.mu.Lock()
		if ctx.Err() != nil {
			h.mu.Unlock()
			return
		}
		if err == nil {
			h.state, h.checked = homeReady, time.Now()
			close(h.ready)
		} else {
			if h.state != err.Error() {
				h.log.Warn("shared home", "error", err)
			}
			h.state = err.Error()
		}
		h.mu.Unlock()
		if err == nil {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if wait = min(2*wait, homeTry); n%homeTries == 0 {
			patience = min(2*patience, longestHomeTry)
		}
	}
}

// try serves or mounts the home once. A server has to accept a connection within patience.
func (h *home) try(ctx context.Context, w homeWanted, patience time.Duration) error {
	if w.server == "" {
		return nil
	}
	if err := awaitModules(ctx); err != nil {
		return err
	}
	if w.mine() {
		if err := h.server.export(w); err != nil {
			return fmt.Errorf("serve the home: %w", err)
		}
		return nil
	}
	if mounted(w.path) == nfsType {
		return nil
	}
	return mountHome(w, patience)
}

// unmountAll removes all mounts on a path, even while they are in use.
func unmountAll(path string) error {
	for mounted(path) != "" {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the old home at %s: %w", path, err)
		}
	}
	return nil
}

// mountHome mounts the home of another guest. It may block for long if that guest stops answering meanwhile.
func mountHome(w homeWanted, patience time.Duration) error {
	// A mount that begins before the server can be reached goes on only when the kernel repeats its request for a
	// connection, 15 or 31 s after the first.
	conn, err := net.DialTimeout("tcp4", net.JoinHostPort(w.server, strconv.Itoa(nfsPort)), patience)
	if err != nil {
		return fmt.Errorf("mount the home that guest %s serves: %w", w.server, err)
	}
	conn.Close()
	// hard: processes wait for a server that does not answer, because it may be moving. actimeo and lookupcache: other
	// guests see a write within a second, and the absence of a file is not cached.
	options := fmt.Sprintf("vers=4.2,proto=tcp,sec=sys,hard,timeo=100,actimeo=1,lookupcache=positive,addr=%s,clientaddr=%s", w.server, w.own)
	if err := unix.Mount(w.server+":/", w.path, nfsType, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		if !knows(nfsType) {
			return errors.New("mount the shared home: the guest's kernel has no NFS client (module nfsv4, which the image ought to hold)")
		}
		return fmt.Errorf("mount the home that guest %s serves: %w", w.server, err)
	}
	return nil
}

// awaitModules waits until init has loaded the modules that it can load.
func awaitModules(ctx context.Context) error {
	for {
		if _, err := os.Stat(initd.ModulesLoaded); err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
