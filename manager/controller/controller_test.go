package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/core"
	"watari/core/lifecycle"
	"watari/manager/store"
	"watari/manager/view"
)

// fakeHosts are hosts that carry out orders at once, unless a test delays them.
type fakeHosts struct {
	mu      sync.Mutex
	hosts   map[string]*fakeHost
	changed chan struct{}
	running map[string]string                   // guest uid: host; a second copy is a failure
	client  func() (connect.HTTPClient, error)  // nil: there is none
	onSend  func(host string, w *v1.HostWanted) // called for orders that a host takes; nil: they are not inspected
	t       *testing.T
}

type fakeHost struct {
	report    *v1.HostObserved
	connected bool
	since     time.Time
	wanted    *v1.HostWanted
	// deaf: the host ignores orders. failStart, failSend: how starts and sends end.
	deaf, failStart, failSend bool
}

func newFakeHosts(t *testing.T, names ...string) *fakeHosts {
	f := &fakeHosts{hosts: map[string]*fakeHost{}, changed: make(chan struct{}, 1), running: map[string]string{}, t: t}
	for _, name := range names {
		f.hosts[name] = &fakeHost{connected: true, since: time.Now(), report: &v1.HostObserved{Info: &v1.HostInfo{
			BootId: name + "-boot-1", Site: name[:1], Cores: 2, MemoryBytes: 4 << 30, LanAddress: "198.18.0.1", TunnelPort: 7071}}}
	}
	return f
}

func (f *fakeHosts) Observed(name string) (*v1.HostObserved, time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.hosts[name]
	if h == nil {
		return nil, time.Time{}, false
	}
	return proto.CloneOf(h.report), h.since, h.connected
}

func (f *fakeHosts) Cut(string, uint32) {}

func (f *fakeHosts) HTTPClient(string) (connect.HTTPClient, error) {
	if f.client != nil {
		return f.client()
	}
	return nil, errors.New("no guests here")
}

func (f *fakeHosts) Send(name string, w *v1.HostWanted) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.hosts[name]
	if w.BootId != "" && w.BootId != h.report.GetInfo().GetBootId() {
		return // sent before the host rebooted; agents refuse it, too
	}
	if f.onSend != nil {
		f.onSend(name, w)
	}
	h.wanted = w
	f.act(name)
}

// with changes a host and lets all hosts act.
func (f *fakeHosts) with(name string, change func(*fakeHost)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.hosts[name])
	for name := range f.hosts {
		f.act(name)
	}
}

func (f *fakeHosts) act(name string) {
	h := f.hosts[name]
	if h.deaf || !h.connected || h.wanted == nil {
		return
	}
	for _, w := range h.wanted.Guests {
		f.guest(name, h, w)
	}
	h.report.Term, h.report.Generation = h.wanted.Term, h.wanted.Generation
	h.report.NetworkGeneration = h.wanted.Network.Generation
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *fakeHosts) set(h *fakeHost, uid string, epoch uint64, condition v1.GuestCondition) {
	h.report.Guests = slices.DeleteFunc(h.report.Guests, func(g *v1.GuestObserved) bool { return g.Uid == uid })
	h.report.Guests = append(h.report.Guests, &v1.GuestObserved{Uid: uid, Epoch: epoch, Condition: condition,
		Ready: condition == v1.GuestCondition_GUEST_CONDITION_RUNNING, Message: "as the test says"})
}

func (f *fakeHosts) run(name, uid string) {
	if at, found := f.running[uid]; found && at != name {
		f.t.Errorf("guest %s runs on %s and is started on %s", uid, at, name)
	}
	f.running[uid] = name
}

func (f *fakeHosts) guest(name string, h *fakeHost, w *v1.GuestWanted) {
	seen := core.GuestOn(h.report, w.Uid)
	switch w.Role {
	case v1.GuestRole_GUEST_ROLE_RUN:
		switch {
		case h.failStart && seen.GetEpoch() != w.Epoch:
			f.set(h, w.Uid, w.Epoch, v1.GuestCondition_GUEST_CONDITION_FAILED)
		case seen.GetEpoch() != w.Epoch || seen.Condition == v1.GuestCondition_GUEST_CONDITION_RECEIVED || seen.Condition == v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
			f.run(name, w.Uid)
			f.set(h, w.Uid, w.Epoch, v1.GuestCondition_GUEST_CONDITION_RUNNING)
		}
	case v1.GuestRole_GUEST_ROLE_INCOMING:
		if seen.GetEpoch() != w.Epoch {
			f.set(h, w.Uid, w.Epoch, v1.GuestCondition_GUEST_CONDITION_RESERVED)
		}
	case v1.GuestRole_GUEST_ROLE_OUTGOING:
		if seen.GetCondition() != v1.GuestCondition_GUEST_CONDITION_RUNNING {
			return
		}
		if h.failSend || w.Migration.Cancel {
			f.set(h, w.Uid, w.Epoch, v1.GuestCondition_GUEST_CONDITION_SEND_FAILED)
			return
		}
		delete(f.running, w.Uid)
		f.set(h, w.Uid, w.Epoch, v1.GuestCondition_GUEST_CONDITION_SENT)
		target := f.hosts[w.Migration.TargetHost]
		f.set(target, w.Uid, w.Epoch+1, v1.GuestCondition_GUEST_CONDITION_RECEIVED)
	case v1.GuestRole_GUEST_ROLE_ABSENT:
		if f.running[w.Uid] == name {
			delete(f.running, w.Uid)
		}
		h.report.Guests = slices.DeleteFunc(h.report.Guests, func(g *v1.GuestObserved) bool { return g.Uid == w.Uid && g.Epoch <= w.Epoch })
	}
}

type fixture struct {
	t     *testing.T
	store *store.Store
	hosts *fakeHosts
	term  uint64
	stop  func()
}

func newFixture(t *testing.T, hosts ...string) *fixture {
	s, err := store.Open(t.Context(), store.Config{Dir: filepath.Join(t.TempDir(), "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	f := &fixture{t: t, store: s, hosts: newFakeHosts(t, hosts...)}
	for _, name := range hosts {
		f.txn(store.Create(&v1.Host{Meta: &v1.Meta{Name: name}}))
	}
	f.lead()
	t.Cleanup(func() { f.stop() })
	return f
}

// lead starts a controller of a new term, after the one before has ended.
func (f *fixture) lead() {
	if f.stop != nil {
		f.stop()
	}
	f.term++
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(ctx, Deps{Store: f.store, Sessions: f.hosts, SessionChanges: f.hosts.changed, RunsDir: f.t.TempDir(), Term: f.term})
	}()
	f.stop = func() { cancel(); <-done }
}

func (f *fixture) txn(ops ...store.Op) {
	f.t.Helper()
	if err := f.store.Txn(f.t.Context(), ops...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) cluster(name string, guests int, spread v1.Spread, changes ...func(*v1.ClusterSpec)) {
	authority, err := ca.New(name)
	if err != nil {
		f.t.Fatal(err)
	}
	shape := &v1.GuestShape{Vcpus: 1, MemoryBytes: 512 << 20}
	spec := &v1.ClusterSpec{Guests: uint32(guests), Shape: shape, Image: "mpi", Spread: spread}
	for _, change := range changes {
		change(spec)
	}
	f.txn(store.Create(&v1.Cluster{Meta: &v1.Meta{Name: name}, Prefix: "10.77.1.0/24", Mtu: 1420, ImageDigest: "sha256:x",
		Spec:          spec,
		CaCertificate: authority.CertificatePEM(), CaKey: authority.KeyPEM()}))
	for i := range guests {
		f.txn(store.Create(&v1.Guest{Meta: &v1.Meta{Name: fmt.Sprintf("%s-%d", name, i)}, Cluster: name, Index: uint32(i),
			Shape: shape, ImageDigest: "sha256:x", Address: fmt.Sprintf("10.77.1.%d", 10+i)}))
	}
}

func (f *fixture) until(what string, condition func(s *store.Snapshot) bool) {
	f.t.Helper()
	deadline := time.After(20 * time.Second)
	changes := f.store.Subscribe(f.t.Context())
	for !condition(f.store.Snapshot()) {
		select {
		case <-changes:
		case <-time.After(10 * time.Millisecond): // reports do not change the store
		case <-deadline:
			for _, g := range view.Guests(f.store.Snapshot(), f.hosts, "") {
				f.t.Logf("%v", g)
			}
			for _, m := range f.store.Snapshot().Migrations {
				f.t.Logf("%v", m)
			}
			f.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func (f *fixture) clusterIs(name string, state v1.ClusterState) func(*store.Snapshot) bool {
	return func(s *store.Snapshot) bool { return view.Cluster(s, f.hosts, name).GetState() == state }
}

func (f *fixture) migrate(guest, to string) string {
	f.t.Helper()
	s := f.store.Snapshot()
	m, _, err := core.PlanMove(s, f.hosts, s.Guests[guest], to, "")
	if err != nil {
		f.t.Fatal(err)
	}
	f.txn(store.Create(m))
	return m.Meta.Name
}

func (f *fixture) migrationIs(name string, state v1.MigrationState) func(*store.Snapshot) bool {
	return func(s *store.Snapshot) bool { return s.Migrations[name].GetState() == state }
}

func TestClusterStartsSpreadMovesAndIsDeleted(t *testing.T) {
	f := newFixture(t, "a1", "a2", "b1", "b2")
	f.until("hosts have joined", func(s *store.Snapshot) bool {
		return s.Hosts["b2"].GetInfo() != nil && s.Hosts["a1"].GetInfo() != nil && s.Hosts["a2"].GetInfo() != nil && s.Hosts["b1"].GetInfo() != nil
	})
	f.cluster("md", 4, v1.Spread_SPREAD_SITE)
	f.until("cluster ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	seen := map[string]int{}
	for _, g := range f.store.Snapshot().Guests {
		seen[g.Host]++
	}
	if len(seen) != 4 {
		t.Errorf("guests per host: %v, want one each", seen)
	}
	before := f.store.Snapshot().Guests["md-0"]
	target := map[string]string{"a1": "b1", "a2": "b1", "b1": "a1", "b2": "a1"}[before.Host]
	name := f.migrate("md-0", target)
	f.until("move done", f.migrationIs(name, v1.MigrationState_MIGRATION_STATE_DONE))
	if g := f.store.Snapshot().Guests["md-0"]; g.Host != target || g.Epoch != before.Epoch+1 {
		t.Errorf("after the move: host %s epoch %d, want %s, %d", g.Host, g.Epoch, target, before.Epoch+1)
	}
	cluster := proto.CloneOf(f.store.Snapshot().Clusters["md"])
	cluster.Meta.Deleting = timestamppb.Now()
	f.txn(store.Update(cluster))
	f.until("cluster gone", func(s *store.Snapshot) bool { return len(s.Clusters) == 0 && len(s.Guests) == 0 })
	if len(f.hosts.running) != 0 {
		t.Errorf("still running: %v", f.hosts.running)
	}
}

func TestFailedSendRollsBackAndNextEpochIsNew(t *testing.T) {
	f := newFixture(t, "a1", "b1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	source := f.store.Snapshot().Guests["md-0"].Host
	target := map[string]string{"a1": "b1", "b1": "a1"}[source]
	f.hosts.with(source, func(h *fakeHost) { h.failSend = true })
	name := f.migrate("md-0", target)
	f.until("failed", f.migrationIs(name, v1.MigrationState_MIGRATION_STATE_FAILED))
	f.until("runs on at the source", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	if g := f.store.Snapshot().Guests["md-0"]; g.Host != source || g.Epoch != 1 || g.LastEpoch != 2 {
		t.Errorf("after the failed move: %v", g)
	}
}

func TestGuestOfARestartedHostIsStartedAnew(t *testing.T) {
	f := newFixture(t, "a1", "b1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	g := f.store.Snapshot().Guests["md-0"]
	f.hosts.with(g.Host, func(h *fakeHost) { h.connected = false })
	f.until("degraded", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_DEGRADED))
	f.hosts.with(g.Host, func(h *fakeHost) {
		delete(f.hosts.running, g.Meta.Uid)
		h.report.Info.BootId, h.report.Guests, h.connected, h.since = "boot-2", nil, true, time.Now()
	})
	f.until("ready again", func(s *store.Snapshot) bool {
		return f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY)(s) && s.Guests["md-0"].Epoch == 2
	})
}

func TestManagerStartedAnewInMidMove(t *testing.T) {
	f := newFixture(t, "a1", "b1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	source := f.store.Snapshot().Guests["md-0"].Host
	target := map[string]string{"a1": "b1", "b1": "a1"}[source]
	f.hosts.with(source, func(h *fakeHost) { h.deaf = true })
	name := f.migrate("md-0", target)
	f.until("transferring", f.migrationIs(name, v1.MigrationState_MIGRATION_STATE_TRANSFERRING))
	f.lead()
	f.hosts.with(source, func(h *fakeHost) { h.deaf = false })
	f.until("done", f.migrationIs(name, v1.MigrationState_MIGRATION_STATE_DONE))
}

func TestDrainMovesEverythingAway(t *testing.T) {
	f := newFixture(t, "a1", "b1")
	f.cluster("md", 4, v1.Spread_SPREAD_HOST)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	h := proto.CloneOf(f.store.Snapshot().Hosts["a1"])
	h.Draining = true
	f.txn(store.Update(h))
	f.until("drained", func(s *store.Snapshot) bool {
		return view.Host(s, f.hosts, "a1").State == v1.HostState_HOST_STATE_DRAINED
	})
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
}

func TestFailedStartGoesElsewhere(t *testing.T) {
	f := newFixture(t, "a1", "b1")
	f.hosts.with("a1", func(h *fakeHost) { h.failStart = true })
	f.cluster("md", 2, v1.Spread_SPREAD_HOST)
	f.until("ready on b1", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	for name, g := range f.store.Snapshot().Guests {
		if g.Host != "b1" {
			t.Errorf("%s is on %s", name, g.Host)
		}
	}
}

func TestAGuestThatRanWellForLongIsStartedAnew(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	begun := f.store.Snapshot().Guests["md-0"].Started.AsTime()
	if age := time.Since(begun); age < 0 || age > time.Minute {
		t.Errorf("it was started %v ago", age)
	}
	f.changeGuest("md-0", func(g *v1.Guest) {
		g.Restarts, g.Started = lifecycle.MaxRestarts, timestamppb.New(begun.Add(-lifecycle.WellAfter))
	})
	g := f.store.Snapshot().Guests["md-0"]
	f.hosts.with("a1", func(h *fakeHost) {
		delete(f.hosts.running, g.Meta.Uid)
		f.hosts.set(h, g.Meta.Uid, g.Epoch, v1.GuestCondition_GUEST_CONDITION_GONE)
	})
	f.until("started anew", func(s *store.Snapshot) bool { return s.Guests["md-0"].Epoch > g.Epoch })
	if g := f.store.Snapshot().Guests["md-0"]; g.Restarts != 1 || g.Failure != "" {
		t.Errorf("%v", g)
	}
}
