package manager

// recover_test.go - an older copy of the manager's state is restored while a newer cluster runs.

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/core"
	"watari/hostlink"
	"watari/internal/stamp"
	"watari/manager/view"
)

// statefulHost is a host that remembers its guests and the latest stamp over managers, like an agent.
type statefulHost struct {
	watariv1connect.UnimplementedAgentServiceHandler
	t    *testing.T
	name string
	pair ca.KeyPair

	mu     sync.Mutex
	guests map[string]*v1.GuestObserved
	term   uint64
	stamp  *v1.Stamp
	plain  bool              // an agent of an earlier version: no stamp, no facts
	begun  map[string]uint64 // epochs of starts on this host, by guest and epoch
	ended  []string          // guests that this host ended
	orders int               // accepted orders
	told   []string          // refused orders
	stop   func()
}

func newStatefulHost(r *running, name string) *statefulHost {
	r.t.Helper()
	pair, _, err := r.join(r.hostToken(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return &statefulHost{t: r.t, name: name, pair: pair, guests: map[string]*v1.GuestObserved{}, begun: map[string]uint64{}}
}

func (m *statefulHost) report(taken *v1.HostWanted) *v1.HostObserved {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := &v1.HostObserved{Info: &v1.HostInfo{BootId: "boot-" + m.name, Site: "a", Cores: 4, MemoryBytes: 4 << 30, LanAddress: "192.0.2.1", TunnelPort: 7071},
		Load: &v1.HostLoad{}, Term: taken.GetTerm(), Generation: taken.GetGeneration(), NetworkGeneration: taken.GetNetwork().GetGeneration()}
	if !m.plain {
		o.Stamp = m.stamp
	}
	for _, uid := range slices.Sorted(maps.Keys(m.guests)) {
		g := proto.CloneOf(m.guests[uid])
		if m.plain {
			g.Facts = nil
		}
		o.Guests = append(o.Guests, g)
	}
	return o
}

func (m *statefulHost) take(w *v1.HostWanted) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.Term < m.term || w.Term == m.term && m.stamp != nil && w.Stamp.GetId() != m.stamp.Id {
		m.told = append(m.told, fmt.Sprintf("term %d after %d", w.Term, m.term))
		return false
	}
	m.term, m.stamp = w.Term, w.Stamp
	if m.plain {
		m.stamp = nil
	}
	m.orders++
	for _, g := range w.Guests {
		have := m.guests[g.Uid]
		switch {
		case g.Role == v1.GuestRole_GUEST_ROLE_RUN && (have == nil || have.Epoch < g.Epoch):
			key := fmt.Sprintf("%s %d", g.Uid, g.Epoch)
			m.begun[key]++
			if m.begun[key] > 1 {
				m.t.Errorf("host %s: %s is started a second time", m.name, key)
			}
			m.guests[g.Uid] = &v1.GuestObserved{Uid: g.Uid, Name: g.Name, Epoch: g.Epoch, Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING,
				Ready: true, Process: true, BootId: "boot-" + m.name, Facts: g.Facts}
		case g.Role == v1.GuestRole_GUEST_ROLE_ABSENT && have != nil && have.Epoch <= g.Epoch:
			delete(m.guests, g.Uid)
			m.ended = append(m.ended, g.Name)
		}
	}
	return true
}

// Sync reports, and follows orders.
func (m *statefulHost) Sync(_ context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	report := m.report(nil)
	for {
		if err := stream.Send(report); err != nil {
			return err
		}
		w, err := stream.Receive()
		if err != nil {
			return err
		}
		if m.take(w) {
			report = m.report(w)
		}
	}
}

// connect makes the host dial a manager until disconnect, or the test's end.
func (m *statefulHost) connect(r *running) {
	r.t.Helper()
	m.dial(r)
	r.await(m.name+" is connected", func() bool {
		resp, err := r.admin.ListHosts(context.Background(), connect.NewRequest(&v1.ListHostsRequest{Name: m.name}))
		if err != nil || resp.Msg.Hosts[0].State != v1.HostState_HOST_STATE_READY {
			return false
		}
		if resp.Msg.Hosts[0].Info != nil {
			return true // a cluster can be placed there
		}
		status, err := r.admin.GetStatus(context.Background(), connect.NewRequest(&v1.GetStatusRequest{}))
		return err == nil && slices.ContainsFunc(status.Msg.Problems, func(p string) bool { return strings.Contains(p, view.HoldNext) })
	})
}

// dial makes the host try to connect.
func (m *statefulHost) dial(r *running) {
	r.t.Helper()
	config, err := ca.ClientTLS(r.caPEM, m.pair.Certificate, m.pair.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewAgentServiceHandler(m))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			hostlink.Dial(ctx, r.url, config, mux)
			time.Sleep(10 * time.Millisecond)
		}
	}()
	m.stop = sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(m.stop)
}

func (m *statefulHost) running() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.guests {
		names = append(names, g.Name)
	}
	slices.Sort(names)
	return names
}

// counts are the starts, ends and orders so far.
func (m *statefulHost) counts() [3]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return [3]int{len(m.begun), len(m.ended), m.orders}
}

func (r *running) create(name string, guests uint32) {
	r.t.Helper()
	if _, err := r.admin.CreateCluster(bounded(r.t), connect.NewRequest(&v1.CreateClusterRequest{Name: name, Spec: spec(guests)})); err != nil {
		r.t.Fatal(err)
	}
	r.ready(name)
}

func (r *running) ready(name string) {
	r.t.Helper()
	r.await("cluster "+name+" is ready", func() bool {
		resp, err := r.admin.ListClusters(context.Background(), connect.NewRequest(&v1.ListClustersRequest{Name: name}))
		return err == nil && resp.Msg.Clusters[0].State == v1.ClusterState_CLUSTER_STATE_READY
	})
}

func (r *running) statusText() string {
	status, err := r.admin.GetStatus(context.Background(), connect.NewRequest(&v1.GetStatusRequest{}))
	if err != nil {
		return ""
	}
	return strings.Join(status.Msg.Problems, "\n")
}

// term is the number of the term in which the manager leads.
func (r *running) term() uint64 { return r.deps.Load().Term }

func (r *running) holds() bool { return strings.Contains(r.statusText(), "watari recover") }

// recovery requests a recovery.
func (r *running) recovery(request *v1.RecoverRequest) (*v1.RecoverResponse, error) {
	resp, err := r.admin.Recover(context.Background(), connect.NewRequest(request))
	if err != nil {
		return nil, err
	}
	return resp.Msg, nil
}

func (r *running) guests(cluster string) map[string]*v1.Guest {
	r.t.Helper()
	resp, err := r.admin.ListGuests(context.Background(), connect.NewRequest(&v1.ListGuestsRequest{Cluster: cluster}))
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]*v1.Guest{}
	for _, g := range resp.Msg.Guests {
		all[g.Meta.Name] = g
	}
	return all
}

// copyState copies a stopped manager's state.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	// etcd refuses a folder that others may read.
	if err := filepath.WalkDir(to, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// rolledBack starts a manager on a restored state: the copy knows the cluster md, and a newer cluster lu runs.
func rolledBack(t *testing.T) (*running, *statefulHost) {
	t.Helper()
	dir := t.TempDir()
	state, backup := filepath.Join(dir, "manager"), filepath.Join(dir, "backup")
	r := start(t, dir)
	r.image("mpi")
	host := newStatefulHost(r, "a1")
	host.connect(r)
	r.create("md", 1)
	host.stop()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	copyState(t, state, backup)
	r = start(t, dir)
	host.connect(r)
	r.create("lu", 2)
	host.stop()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	copyState(t, backup, state)
	return start(t, dir), host
}

func TestAManagerWhoseStateWasPutBackHoldsAndRecovers(t *testing.T) {
	r, host := rolledBack(t)
	before := host.counts()
	host.connect(r)
	r.await("the manager holds", r.holds)
	if text := r.statusText(); !strings.Contains(text, "host a1 took up orders of term") {
		t.Error(text)
	}
	ctx := bounded(t)
	_, err := r.admin.DeleteCluster(ctx, connect.NewRequest(&v1.DeleteClusterRequest{Name: "md"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "watari recover")
	_, err = r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "new", Spec: spec(1)}))
	wantCode(t, err, connect.CodeFailedPrecondition, "watari recover")
	list, err := r.admin.ListImages(ctx, connect.NewRequest(&v1.ListImagesRequest{}))
	if err != nil || len(list.Msg.Images) == 0 {
		t.Fatal(list, err)
	}
	other := proto.CloneOf(list.Msg.Images[0]) // a lost cluster may need what the name stands for
	other.Meta, other.Digest, other.KernelArgs = &v1.Meta{Name: other.Meta.Name}, "", "other"
	_, err = r.admin.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: other}))
	wantCode(t, err, connect.CodeFailedPrecondition, "watari recover")

	// The host disconnects, and the manager restarts: it still holds.
	host.stop()
	r.await("a1 is away", func() bool { return strings.Contains(r.statusText(), "host a1 is not reachable") })
	if !r.holds() {
		t.Fatal("the hold ended with the connection of the host that had shown the stamp")
	}
	dir := r.dir
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, dir)
	if !r.holds() {
		t.Fatal("the hold ended with the manager")
	}
	host.connect(r)
	time.Sleep(300 * time.Millisecond) // the controller decides meanwhile
	if after := host.counts(); after != before {
		t.Fatalf("starts, ends and orders were %v and are %v", before, after)
	}

	plan, err := r.recovery(&v1.RecoverRequest{})
	if err != nil || plan.Done || len(plan.Obstacles) > 0 || len(plan.Clusters) != 1 || plan.Clusters[0].Cluster != "lu" {
		t.Fatal(plan, err)
	}
	if !r.holds() || host.counts() != before {
		t.Fatal("the preview did something")
	}
	if plan, err = r.recovery(&v1.RecoverRequest{Apply: true}); err != nil || !plan.Done {
		t.Fatal(plan, err)
	}
	r.ready("lu")
	r.ready("md")
	if got := host.running(); !slices.Equal(got, []string{"lu-0", "lu-1", "md-0"}) {
		t.Fatalf("running: %v", got)
	}
	r.await("orders are given again", func() bool { return host.counts()[2] > before[2] })
	if after := host.counts(); after[0] != before[0] || after[1] != before[1] {
		t.Fatalf("starts, ends and orders were %v and are %v", before, after)
	}
	if r.holds() {
		t.Fatal("it still holds")
	}
	for name, g := range r.guests("lu") {
		if g.LastEpoch < g.Epoch+core.EpochGap || g.Host != "a1" || g.Meta.Uid != core.GuestUID(plan.Clusters[0].Uid, g.Index) {
			t.Errorf("%s: %v", name, g)
		}
	}
	// From here on the cluster is like any other, also after restarts.
	host.stop()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, dir)
	host.connect(r)
	r.ready("lu")
	if r.holds() {
		t.Fatal("it holds again")
	}
	if _, err := r.admin.DeleteCluster(ctx, connect.NewRequest(&v1.DeleteClusterRequest{Name: "lu"})); err != nil {
		t.Fatal(err)
	}
	r.await("lu is gone", func() bool { return slices.Equal(host.running(), []string{"md-0"}) })
	if len(host.told) > 0 {
		t.Errorf("orders were refused: %v", host.told)
	}
}

// A guest ends during the hold, and its host returns without it: the manager starts it again, with a new epoch.
func TestAGuestThatEndedIsStartedUnderANewEpoch(t *testing.T) {
	r, host := rolledBack(t)
	for uid, g := range host.guests {
		if g.Name == "lu-1" {
			delete(host.guests, uid)
		}
	}
	host.connect(r)
	r.await("the manager holds", r.holds)
	if _, err := r.recovery(&v1.RecoverRequest{Apply: true}); err != nil {
		t.Fatal(err)
	}
	r.ready("lu")
	if g := r.guests("lu")["lu-1"]; g.Epoch <= core.EpochGap {
		t.Errorf("%v", g)
	}
}

// A host that was disconnected during the recovery shows a newer stamp later: the manager holds again.
func TestAHostThatComesBackAfterARecoveryHasTheManagerHoldAgain(t *testing.T) {
	dir := t.TempDir()
	state, backup := filepath.Join(dir, "manager"), filepath.Join(dir, "backup")
	r := start(t, dir)
	r.image("mpi")
	a1, b1 := newStatefulHost(r, "a1"), newStatefulHost(r, "b1")
	a1.connect(r)
	b1.connect(r)
	a1.stop()
	b1.stop()
	r.stop()
	copyState(t, state, backup)
	r = start(t, dir)
	a1.connect(r)
	r.create("lu", 1)
	b1.connect(r)
	r.create("md", 1) // on b1, which has more free memory
	if !slices.Equal(b1.running(), []string{"md-0"}) {
		t.Fatal(b1.running())
	}
	a1.stop()
	b1.stop()
	r.stop()
	copyState(t, backup, state)

	r = start(t, dir)
	a1.connect(r)
	r.await("the manager holds", r.holds)
	plan, err := r.recovery(&v1.RecoverRequest{Apply: true})
	if err != nil || len(plan.Hosts) != 1 || plan.Hosts[0].Host != "b1" || plan.Hosts[0].Vouched {
		t.Fatal(plan, err)
	}
	r.ready("lu")
	b1.connect(r)
	r.await("the manager holds again", r.holds)
	if plan, err = r.recovery(&v1.RecoverRequest{Apply: true}); err != nil || len(plan.Clusters) != 1 || plan.Clusters[0].Cluster != "md" {
		t.Fatal(plan, err)
	}
	r.ready("md")
	if ends := a1.counts()[1] + b1.counts()[1]; ends > 0 {
		t.Errorf("%d guests were ended", ends)
	}
}

// A host joined after the copy of the state was made, and a guest has moved there since: the manager does not start the
// guest elsewhere.
func TestAHostThatJoinedAfterTheCopyMayRunGuests(t *testing.T) {
	dir := t.TempDir()
	state, backup := filepath.Join(dir, "manager"), filepath.Join(dir, "backup")
	r := start(t, dir)
	r.image("mpi")
	a1 := newStatefulHost(r, "a1")
	a1.connect(r)
	r.create("md", 1)
	a1.stop()
	r.stop()
	copyState(t, state, backup)
	r = start(t, dir)
	b1 := newStatefulHost(r, "b1")
	a1.connect(r)
	b1.connect(r)
	r.await("both have orders", func() bool { return b1.counts()[2] > 0 && a1.counts()[2] > 0 })
	a1.stop()
	b1.stop()
	r.stop()
	for uid, g := range a1.guests {
		g.Epoch, g.BootId = g.Epoch+1, "boot-b1"
		b1.guests[uid] = g
		delete(a1.guests, uid)
	}
	copyState(t, backup, state)

	r = start(t, dir)
	a1.connect(r)
	b1.dial(r)
	r.await("the manager holds", r.holds)
	var plan *v1.RecoverResponse
	r.await("the manager knows of b1", func() bool {
		var err error
		if plan, err = r.recovery(&v1.RecoverRequest{}); err != nil {
			t.Fatal(err)
		}
		return len(plan.Hosts) == 1
	})
	if h := plan.Hosts[0]; h.Host != "b1" || h.Vouched || !strings.Contains(h.Reason, "join it again") {
		t.Error(h)
	}
	if len(plan.Guests) != 1 || plan.Guests[0].Act != v1.RecoveryAct_RECOVERY_ACT_HOLD {
		t.Error(plan.Guests)
	}
	b1.stop()
	pair, _, err := r.join(r.hostToken(), "b1")
	if err != nil {
		t.Fatal(err)
	}
	b1.pair = pair
	b1.connect(r)
	if plan, err = r.recovery(&v1.RecoverRequest{Apply: true}); err != nil || len(plan.Hosts) > 0 {
		t.Fatal(plan, err)
	}
	r.ready("md")
	if !slices.Equal(b1.running(), []string{"md-0"}) || b1.counts()[1] > 0 || a1.counts()[0] != 1 {
		t.Error(b1.running(), b1.counts(), a1.counts())
	}
}

// A stamp that the authority has not signed is reported, and causes no hold, whatever its content.
func TestAForgedStampCausesNoHold(t *testing.T) {
	r := start(t, t.TempDir())
	host := newStatefulHost(r, "a1")
	other, err := ca.New("another")
	if err != nil {
		t.Fatal(err)
	}
	if host.stamp, err = stamp.New(other, &v1.Term{Number: 99, Id: "forged"}, 1<<40); err != nil {
		t.Fatal(err)
	}
	host.term = 99 // it refuses orders of lower terms
	host.connect(r)
	r.await("the forged stamp is named", func() bool {
		return strings.Contains(r.statusText(), "host a1 shows a stamp that is not genuine")
	})
	if r.holds() {
		t.Fatal("the manager holds")
	}
	r.image("mpi")
	host.mu.Lock()
	host.term, host.stamp = 0, nil
	host.mu.Unlock()
	host.stop()
	host.connect(r)
	r.create("md", 1)
}

// Two terms have the same number: only their ids distinguish the histories.
func TestTermsOfOneNumberAreToldApart(t *testing.T) {
	r, host := rolledBack(t)
	leader, shown := r.term(), host.stamp
	if leader != shown.Term {
		t.Fatalf("the manager leads in term %d, the host knows %d: the test tests nothing", leader, shown.Term)
	}
	host.connect(r)
	r.await("the manager holds", r.holds)
	r.await("a higher term begins", func() bool { return r.term() > shown.Term })
	if _, err := r.recovery(&v1.RecoverRequest{Apply: true}); err != nil {
		t.Fatal(err)
	}
	r.ready("lu")
	if len(host.told) > 0 {
		t.Errorf("orders were refused: %v", host.told)
	}
}

// The state and the agents are of a version that kept no terms.
func TestAStateAndAgentsOfAnEarlierVersionDoNotHold(t *testing.T) {
	dir, etcd := t.TempDir(), outsideEtcd(t)
	r := start(t, dir, etcd)
	r.image("mpi")
	host := newStatefulHost(r, "a1")
	host.plain = true
	host.connect(r)
	r.create("md", 1)
	host.stop()
	r.stop()
	forgetTerms(t, etcd)
	before := host.counts()
	r = start(t, dir, etcd)
	host.connect(r)
	r.ready("md")
	if r.holds() || host.counts()[0] != before[0] || host.counts()[1] != before[1] {
		t.Fatal(r.statusText(), before, host.counts())
	}
	// The agent is upgraded, and then the manager is restarted.
	host.stop()
	host.plain = false
	host.connect(r)
	r.await("it has a stamp", func() bool { host.mu.Lock(); defer host.mu.Unlock(); return host.stamp != nil })
	host.stop()
	r.stop()
	r = start(t, dir, etcd)
	host.connect(r)
	r.ready("md")
	if r.holds() {
		t.Fatal(r.statusText())
	}
}

// forgetTerms reduces an etcd to the state of a version that keeps no terms.
func forgetTerms(t *testing.T, endpoint string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Delete(t.Context(), "/watari/terms/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), "/watari/leader/term", `{"term":41,"leader":"https://old"}`); err != nil {
		t.Fatal(err)
	}
}
