package agent

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

	"watari/guest/initd"
)

const (
	homeReady = "ready"
	// checkEvery is how often at most the mounted home is looked at, while someone asks for its state.
	checkEvery = 10 * time.Second
	// slowAfter is how long looking may take before the state says so.
	slowAfter = 3 * time.Second
	// homePatience is how long what needs the home waits for it.
	homePatience = 30 * time.Second
)

// home is the cluster's shared home in this guest: one guest keeps it in memory and serves it by the kernel's
// NFS server, the others mount it. All that may take long happens in the background.
type home struct {
	log    *slog.Logger
	server *nfsServer

	mu      sync.Mutex
	ready   chan struct{} // closed once the home is ready, and replaced when another one is wanted after that
	state   string
	wanted  homeWanted
	cancel  context.CancelFunc // of the goroutine that works on wanted
	checked time.Time          // when the mounted home was last looked at
	looking time.Time          // since when it is being looked at; zero: it is not
}

// homeWanted is what an identity says of the home.
type homeWanted struct {
	path        string
	uid         uint32
	server, own string // addresses; no server: a home of its own
	peers       string // addresses, each with a blank after it
	guestUID    string
}

func newHome(log *slog.Logger) *home {
	return &home{log: log, state: "not asked for", server: newNFSServer(log), ready: make(chan struct{})}
}

// await waits until the home is ready; it gives up after homePatience, as a guest without is of some use, too.
func (h *home) await(ctx context.Context) {
	h.mu.Lock()
	ready, begun := h.ready, h.cancel != nil
	h.mu.Unlock()
	if !begun {
		return
	}
	select {
	case <-ready:
	case <-ctx.Done():
	case <-time.After(homePatience):
	}
}

// within says whether a path lies in the home.
func (h *home) within(path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	rest, ok := strings.CutPrefix(filepath.Clean(path), h.wanted.path)
	return h.wanted.path != "" && ok && (rest == "" || rest[0] == '/')
}

// status is "ready", or why the home is not there.
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

// look looks whether the mounted home is still there. A server that was started anew has lost it: the old
// mount is dropped, and the new home mounted.
func (h *home) look(w homeWanted) {
	var s unix.Stat_t
	err := unix.Stat(w.path, &s)
	h.mu.Lock()
	defer h.mu.Unlock()
	if w != h.wanted { // it may have taken long
		return
	}
	h.looking, h.checked = time.Time{}, time.Now()
	if errors.Is(err, unix.ESTALE) {
		h.log.Warn("the shared home was lost and is mounted anew", "server", w.server)
		if err := unmountAll(w.path); err != nil {
			h.log.Error("shared home", "error", err)
		}
		h.begin(w)
	}
}

// wantedHome is what an identity says of the home.
func wantedHome(c checked) homeWanted {
	w := homeWanted{
		path: filepath.Join("/home", c.GetUser()), uid: c.GetUid(),
		server: c.GetHomeServer(), own: c.address.String(), guestUID: c.GetGuestUid(),
	}
	for _, p := range c.GetPeers() {
		w.peers += p.GetAddress() + " "
	}
	return w
}

// resume goes on with a home that an agent before this one had brought about. What is mounted stays.
func (h *home) resume(c checked) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begin(wantedHome(c))
}

// want brings about the home of an identity. A guest's own is there at once; serving or mounting one goes on in
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
	if !mounted(w.path) { // a home whose server is away must not hold everything up
		if err := os.MkdirAll(w.path, 0o755); err != nil {
			return err
		}
	}
	// What is mounted stays if only the peers differ.
	same := w
	same.peers = h.wanted.peers
	if same != h.wanted {
		if err := unmountAll(w.path); err != nil {
			return err
		}
		if w.mine() {
			options := fmt.Sprintf("mode=0755,uid=%d,gid=%d", w.uid, w.uid)
			if err := unix.Mount("home", w.path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
				return fmt.Errorf("mount memory on %s: %w", w.path, err)
			}
		}
	}
	h.begin(w)
	return nil
}

// mine says that the home is kept by this guest.
func (w homeWanted) mine() bool { return w.server == "" || w.server == w.own }

// begin starts to work on w; mu is held.
func (h *home) begin(w homeWanted) {
	ctx, cancel := context.WithCancel(context.Background())
	if h.state == homeReady { // else those who wait for the one before wait for this one now
		h.ready = make(chan struct{})
	}
	h.wanted, h.cancel, h.state = w, cancel, "being set up"
	h.looking = time.Time{} // who still looks at another one does not count
	go h.work(ctx, w)
}

// work tries until the home is there or something else is wanted.
func (h *home) work(ctx context.Context, w homeWanted) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := h.try(ctx, w)
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
	}
}

// try serves or mounts the home once.
func (h *home) try(ctx context.Context, w homeWanted) error {
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
	if mounted(w.path) {
		return nil
	}
	return mountHome(w)
}

// unmountAll takes away what is mounted on a path, also while it is in use.
func unmountAll(path string) error {
	for mounted(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the old home at %s: %w", path, err)
		}
	}
	return nil
}

// mountHome mounts the home of another guest. It may wait for that guest for long.
func mountHome(w homeWanted) error {
	// Processes wait for a server that is away (hard), as it may just be moving. What one guest writes others
	// see within a second, and a file that was not there is always asked for again.
	options := fmt.Sprintf("vers=4.2,proto=tcp,sec=sys,hard,timeo=100,actimeo=1,lookupcache=positive,addr=%s,clientaddr=%s", w.server, w.own)
	if err := unix.Mount(w.server+":/", w.path, "nfs4", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		if !knows("nfs4") {
			return errors.New("mount the shared home: the guest's kernel has no NFS client (module nfsv4, which the image ought to hold)")
		}
		return fmt.Errorf("mount the home that guest %s serves: %w", w.server, err)
	}
	return nil
}

// awaitModules waits until init has loaded what modules it could.
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
