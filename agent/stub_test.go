package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"watari/agent/domain"
	"watari/agent/machine"
	"watari/agent/volume"
	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// outside is everything outside an agent, in memory. It survives a restart of the agent.
type outside struct {
	t     *testing.T
	dir   string
	agent *Agent

	events chan domain.Event

	mu              sync.Mutex
	domains         map[string]domain.State
	down            bool   // the hypervisor cannot be asked
	broken          string // the uid of a guest that can never continue
	busy            bool   // the hypervisor has a job on every domain
	mute            bool   // no guest's agent answers
	log             []string
	expected        map[string]Expected
	active          map[string]bool
	free            uint64
	storage         map[string][]uint16
	networkProblems []string
	plugged         []string     // the guests whose taps an earlier agent left
	identity        *v1.Identity // of the last Identify
	entropies       map[[64]byte]bool
	template        string
	ending          domain.End // of every domain that ends
	pids            func() []int
	processesErr    error
	bootID          string
	creating        bool            // a create is under way, even if its caller has given up
	confinement     *v1.Confinement // nil: a stock host's
	applied         [][]string      // the local guests of each Apply
	limiter         Limiter
	watchdog        Watchdog
	volumes         VolumeHost        // nil: no guest has a volume
	limits          []*v1.GuestLimits // in the order in which they were set
	limitErr        error

	// What the acts do; nil: they succeed.
	boot      func(ctx context.Context, s domain.Spec) error
	migrate   func(ctx context.Context, uid string) error
	tunnelErr error // why the tunnel broke a connection
	ensure    func(ctx context.Context) error
	fork      func() error
	fetch     func(ctx context.Context) error
}

const (
	run      = v1.GuestRole_GUEST_ROLE_RUN
	absent   = v1.GuestRole_GUEST_ROLE_ABSENT
	incoming = v1.GuestRole_GUEST_ROLE_INCOMING
	outgoing = v1.GuestRole_GUEST_ROLE_OUTGOING
)

func newOutside(t *testing.T) *outside {
	lateCreate = 300 * time.Millisecond
	return &outside{t: t, dir: t.TempDir(), events: make(chan domain.Event, 64), domains: map[string]domain.State{},
		expected: map[string]Expected{}, active: map[string]bool{}, free: 8 << 30, entropies: map[[64]byte]bool{}}
}

// start starts an agent. The returned function ends it; files stay as after a kill.
func (o *outside) start() (stop func()) {
	o.t.Helper()
	load := func() *v1.HostLoad { return &v1.HostLoad{} }
	ctx, cancel := context.WithCancel(context.Background())
	a, err := New(ctx, Config{Name: "here", StateDir: filepath.Join(o.dir, "state"), RunDir: filepath.Join(o.dir, "run"),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Info: &v1.HostInfo{BootId: o.bootID}, Load: load,
		FreeMemory: func() uint64 { return o.free },
		Processes:  o.processes,
		Hypervisor: o, Network: stubNetwork{o}, Images: stubImages{o}, Tunnels: stubTunnels{o}, Limiter: o.limiter, Watchdog: o.watchdog, Dial: o.dial, Volumes: o.volumes})
	if err != nil {
		cancel()
		o.t.Fatal(err)
	}
	o.agent = a
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.Run()
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			<-ended
		})
	}
	o.t.Cleanup(stop)
	return stop
}

func (o *outside) processes(context.Context) (map[string][]int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pids == nil || o.processesErr != nil {
		return nil, o.processesErr
	}
	return map[string][]int{uid: o.pids()}, nil
}

func (o *outside) say(what string) { o.log = append(o.log, what) }

// count returns how often something was done.
func (o *outside) count(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, done := range o.log {
		if done == what {
			n++
		}
	}
	return n
}

// becomes changes a domain's state as the hypervisor would.
func (o *outside) becomes(uid string, state domain.State) {
	o.mu.Lock()
	if state == domain.Absent {
		delete(o.domains, uid)
	} else {
		o.domains[uid] = state
	}
	o.mu.Unlock()
	o.events <- domain.Event{UID: uid, At: time.Now()}
}

func (o *outside) state(uid string) domain.State {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s, ok := o.domains[uid]; ok {
		return s
	}
	return domain.Absent
}

// await waits until the host's report has what found looks for.
func (o *outside) await(what string, found func(*v1.HostObserved) bool) *v1.HostObserved {
	o.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		observed, changed := o.agent.Observed()
		if found(observed) {
			return observed
		}
		select {
		case <-changed:
		case <-deadline:
			o.t.Fatalf("not within 30 s: %s; reported %v; done %v", what, observed, o.log)
		}
	}
}

func (o *outside) awaitCondition(uid string, epoch uint64, condition v1.GuestCondition) *v1.GuestObserved {
	o.t.Helper()
	var guest *v1.GuestObserved
	o.await(condition.String(), func(h *v1.HostObserved) bool {
		guest = find(h, uid)
		return guest != nil && guest.Condition == condition && guest.Epoch == epoch
	})
	return guest
}

func find(h *v1.HostObserved, uid string) *v1.GuestObserved {
	i := slices.IndexFunc(h.Guests, func(g *v1.GuestObserved) bool { return g.Uid == uid })
	if i < 0 {
		return nil
	}
	return h.Guests[i]
}

// The hypervisor.

func (o *outside) Events() <-chan domain.Event { return o.events }

func (o *outside) Versions() (string, string, error) { return "9", "7", nil }

func (o *outside) Confinement() *v1.Confinement {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.confinement != nil {
		return proto.CloneOf(o.confinement)
	}
	return &v1.Confinement{User: "libvirt-qemu", SecurityModel: "apparmor"}
}

func (o *outside) MigrateSocket(name string) (string, error) { return "/run/migrate-" + name, nil }

func (o *outside) Support() *v1.GuestSupport {
	return &v1.GuestSupport{Machines: []string{"pc-i440fx-7.2"}}
}

func (o *outside) List(context.Context) ([]domain.Info, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return nil, errors.New("it is down")
	}
	var list []domain.Info
	for uid, state := range o.domains {
		name := uid
		if uid == templateUID(o.template) {
			name = domain.TemplatePrefix + uid
		}
		list = append(list, domain.Info{UID: uid, Name: name, State: state})
	}
	return list, nil
}

func (o *outside) Boot(ctx context.Context, s domain.Spec) error {
	o.mu.Lock()
	o.say("boot " + s.UID)
	boot := o.boot
	o.mu.Unlock()
	if boot != nil {
		if err := boot(ctx, s); err != nil {
			return err
		}
	}
	o.becomes(s.UID, domain.Running)
	return nil
}

func (o *outside) Fork(_ context.Context, s domain.Spec, _ string) error {
	o.mu.Lock()
	o.say("fork " + s.UID)
	fork := o.fork
	o.mu.Unlock()
	if fork != nil {
		if err := fork(); err != nil {
			return err
		}
	}
	o.becomes(s.UID, domain.Running)
	return nil
}

func (o *outside) SaveTemplate(_ context.Context, uid, path string) error {
	o.mu.Lock()
	o.say("save")
	o.mu.Unlock()
	o.becomes(uid, domain.Absent)
	return os.WriteFile(path, []byte("template"), 0o644)
}

func (o *outside) TemplateKey(spec domain.Spec) string {
	if o.template == "" {
		return ""
	}
	return o.template + spec.TemplateOwner
}

func (o *outside) Destroy(_ context.Context, uid string) error {
	o.mu.Lock()
	_, was := o.domains[uid]
	if was {
		o.say("destroy " + uid)
	}
	o.mu.Unlock()
	if was {
		o.becomes(uid, domain.Absent)
	}
	return nil
}

func (o *outside) Resume(_ context.Context, uid string) error {
	o.mu.Lock()
	o.say("resume " + uid)
	broken := o.broken == uid
	o.mu.Unlock()
	if broken {
		return errReset
	}
	o.becomes(uid, domain.Running)
	return nil
}

var errReset = errors.New("the virtual machine would have to be reset")

func (o *outside) Broken(err error) bool { return errors.Is(err, errReset) }

func (o *outside) Migrate(ctx context.Context, uid string, _ domain.MigrateOptions) error {
	o.mu.Lock()
	o.say("migrate " + uid)
	migrate := o.migrate
	o.mu.Unlock()
	if migrate != nil {
		return migrate(ctx, uid)
	}
	o.becomes(uid, domain.Absent)
	return nil
}

func (o *outside) Incoming(_ domain.Spec, xml string) (string, error) { return xml, nil }

func (o *outside) Creating(string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.creating
}

func (o *outside) Busy(context.Context, string) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.busy, nil
}

func (o *outside) Ended(string, string) domain.End {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ending
}

func (o *outside) Progress(context.Context, string) (*v1.MigrationProgress, error) {
	return nil, errors.New("none")
}

// The guests' agents: all are the same, and answer while their domain runs.

func (o *outside) dial(uid, _ string) GuestChannel {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewGuestServiceHandler(stubGuest{o: o}))
	return stubChannel{o, uid, mux}
}

type stubChannel struct {
	o       *outside
	uid     string
	handler http.Handler
}

func (c stubChannel) RoundTrip(r *http.Request) (*http.Response, error) {
	c.o.mu.Lock()
	mute := c.o.mute
	c.o.mu.Unlock()
	if mute || c.o.state(c.uid) != domain.Running {
		return nil, errors.New("nobody answers")
	}
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, r)
	return w.Result(), nil
}

func (c stubChannel) Close() error { return nil }

type stubGuest struct {
	watariv1connect.UnimplementedGuestServiceHandler
	o *outside
}

func (g stubGuest) describe() *v1.DescribeResponse {
	return &v1.DescribeResponse{BootId: "b", GuestUid: g.o.identity.GetGuestUid(), Epoch: g.o.identity.GetEpoch()}
}

func (g stubGuest) Describe(context.Context, *connect.Request[v1.DescribeRequest]) (*connect.Response[v1.DescribeResponse], error) {
	g.o.mu.Lock()
	defer g.o.mu.Unlock()
	return connect.NewResponse(g.describe()), nil
}

func (g stubGuest) Identify(_ context.Context, r *connect.Request[v1.IdentifyRequest]) (*connect.Response[v1.IdentifyResponse], error) {
	g.o.mu.Lock()
	defer g.o.mu.Unlock()
	g.o.identity = r.Msg.Identity
	if entropy := r.Msg.Identity.Entropy; len(entropy) == 64 {
		g.o.entropies[[64]byte(entropy)] = true
	}
	g.o.say("identify")
	return connect.NewResponse(&v1.IdentifyResponse{Description: g.describe()}), nil
}

func (g stubGuest) SetTime(context.Context, *connect.Request[v1.SetTimeRequest]) (*connect.Response[v1.SetTimeResponse], error) {
	g.o.mu.Lock()
	defer g.o.mu.Unlock()
	g.o.say("set time")
	return connect.NewResponse(&v1.SetTimeResponse{}), nil
}

func (g stubGuest) Sync(context.Context, *connect.Request[v1.SyncRequest]) (*connect.Response[v1.SyncResponse], error) {
	g.o.mu.Lock()
	defer g.o.mu.Unlock()
	g.o.say("sync")
	return connect.NewResponse(&v1.SyncResponse{}), nil
}

// stubVolumes gives each guest a socket at which nobody serves a volume.
type stubVolumes struct{ o *outside }

func (v stubVolumes) VolumeSocket(guest string) (string, error) {
	return filepath.Join(v.o.dir, guest), nil
}

func (v stubVolumes) QEMUUser() (volume.User, bool) {
	return volume.User{UID: os.Getuid(), GID: os.Getgid()}, true
}

func (v stubVolumes) Carry(context.Context, net.Conn, *v1.BlobPeer, string) error {
	return errors.New("nobody serves it")
}

// Network, images, tunnels.

type stubNetwork struct{ o *outside }

func (n stubNetwork) Problems() []string {
	n.o.mu.Lock()
	defer n.o.mu.Unlock()
	return n.o.networkProblems
}

func (n stubNetwork) Paths() []*v1.PathObserved { return nil }

func (n stubNetwork) PlugGuest(_ context.Context, g machine.Tap, _ uint32) (string, error) {
	n.o.mu.Lock()
	defer n.o.mu.Unlock()
	n.o.say("plug " + g.UID)
	return "wt" + g.UID, nil
}

func (n stubNetwork) Plugged() []string { return slices.Clone(n.o.plugged) }

func (n stubNetwork) UnplugGuest(_ context.Context, uid string) error {
	n.o.mu.Lock()
	defer n.o.mu.Unlock()
	n.o.say("unplug " + uid)
	return nil
}

func (n stubNetwork) Apply(_ context.Context, _ *v1.NetworkWanted, local []machine.Tap) error {
	n.o.mu.Lock()
	defer n.o.mu.Unlock()
	var uids []string
	for _, g := range local {
		n.o.say("route " + g.UID)
		uids = append(uids, g.UID)
	}
	n.o.applied = append(n.o.applied, uids)
	return nil
}

func (n stubNetwork) OpenStorage(_ context.Context, ports map[string][]uint16) error {
	n.o.mu.Lock()
	defer n.o.mu.Unlock()
	n.o.storage = ports
	return nil
}

type stubImages struct{ o *outside }

func (i stubImages) Ensure(ctx context.Context, image *v1.Image, step func(string)) (ImageFiles, error) {
	i.o.mu.Lock()
	i.o.say("ensure " + image.Digest)
	ensure := i.o.ensure
	i.o.mu.Unlock()
	if ensure != nil {
		step("fetching image 40 %")
		if err := ensure(ctx); err != nil {
			return ImageFiles{}, err
		}
	}
	return ImageFiles{"k", "i", "r"}, nil
}

func (i stubImages) Held() []string                 { return []string{"sha256:1"} }
func (i stubImages) Prune(func(digest string) bool) {}

func (i stubImages) Share(bool, []*v1.BlobShare) {}
func (i stubImages) Blobs() []*v1.BlobObserved   { return nil }
func (i stubImages) Rate() uint64                { return 0 }

func (i stubImages) Fetch(ctx context.Context, blob *v1.Blob, path string, _ func(string)) error {
	i.o.mu.Lock()
	i.o.say("fetch " + blob.Digest)
	fetch := i.o.fetch
	i.o.mu.Unlock()
	if fetch != nil {
		if err := fetch(ctx); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte("template"), 0o644)
}

func (i stubImages) Adopt(string, string) error { return nil }

func (i stubImages) Forget(string) {}

func (i stubImages) Pack(_ context.Context, from, path string) (*v1.Blob, error) {
	data, err := os.ReadFile(from)
	if err != nil {
		return nil, err
	}
	i.o.mu.Lock()
	i.o.say("pack")
	i.o.mu.Unlock()
	return &v1.Blob{Digest: "sha256:packed", Size: uint64(len(data))}, os.WriteFile(path, data, 0o644)
}

func (i stubImages) Unpack(_ context.Context, packed, path string, _ int64) error {
	return os.Rename(packed, path)
}

type stubTunnels struct{ o *outside }

func (s stubTunnels) Expect(e Expected) func() {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	s.o.expected[e.Migration] = e
	return func() {
		s.o.mu.Lock()
		defer s.o.mu.Unlock()
		delete(s.o.expected, e.Migration)
	}
}

func (s stubTunnels) Drop(migration string) {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	s.o.say("drop " + migration)
}

func (s stubTunnels) Revoke(map[string]uint32) {}

func (s stubTunnels) Active(migration string) bool {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	return s.o.active[migration]
}

func (s stubTunnels) Open(context.Context, *v1.MigrationOrder, string) (OutgoingTunnel, error) {
	return OutgoingTunnel{Close: func() {}, Err: func() error { return s.o.tunnelErr }, Sent: func() uint64 { return 0 }}, nil
}
