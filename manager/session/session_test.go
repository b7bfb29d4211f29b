package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"watari/ca"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/hostlink"
	"watari/internal/protocol"

	"connectrpc.com/connect"
)

// lab is a manager's port and an authority.
type lab struct {
	t         *testing.T
	authority *ca.Authority
	sessions  *Sessions
	url       string
	changed   <-chan struct{}
}

func newLab(t *testing.T, accept func(ca.Identity) error) *lab {
	t.Helper()
	a, err := ca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.IssueServer("m")
	if err != nil {
		t.Fatal(err)
	}
	config, err := ca.ServerTLS(a.CertificatePEM(), pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{hostlink.Protocol}
	l := &lab{t: t, authority: a, sessions: New(accept, nil)}
	l.changed = l.sessions.Subscribe(t.Context())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.url = "https://" + listener.Addr().String()
	server := &http.Server{TLSConfig: config, TLSNextProto: l.sessions.TLSNextProto(), Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	go server.ServeTLS(listener, "", "")
	t.Cleanup(func() {
		l.sessions.Close()
		server.Close()
	})
	return l
}

func (l *lab) tls(id ca.Identity) *tls.Config {
	l.t.Helper()
	pair, err := l.authority.IssueClient(id)
	if err != nil {
		l.t.Fatal(err)
	}
	config, err := ca.ClientTLS(l.authority.CertificatePEM(), pair.Certificate, pair.Key)
	if err != nil {
		l.t.Fatal(err)
	}
	return config
}

// await waits until cond holds, looking after each change.
func (l *lab) await(what string, cond func() bool) {
	l.t.Helper()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-l.changed:
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			l.t.Fatalf("timed out: %s", what)
		}
	}
}

// fakeAgent reports the generation of its last orders, and serves one path beside AgentService.
type fakeAgent struct {
	watariv1connect.UnimplementedAgentServiceHandler
	told     chan *v1.HostWanted
	first    func() // called before the first report
	protocol uint32
	samples  []*v1.HostSample
	boot     string
	instance string
	repeats  bool // it keeps sending reports and reads no orders
	boots    int  // so often it reports another boot at once
}

func (f *fakeAgent) Sync(ctx context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	if f.first != nil {
		f.first()
	}
	report := &v1.HostObserved{Info: &v1.HostInfo{BootId: f.boot}, Protocol: f.protocol, Instance: f.instance}
	if err := stream.Send(report); err != nil {
		return err
	}
	for boot := range f.boots {
		if err := stream.Send(&v1.HostObserved{Info: &v1.HostInfo{BootId: fmt.Sprint("boot ", boot)}, Instance: f.instance}); err != nil {
			return err
		}
	}
	for f.repeats {
		time.Sleep(10 * time.Millisecond)
		if err := stream.Send(report); err != nil {
			return err
		}
	}
	for {
		w, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.told <- w
		if err := stream.Send(&v1.HostObserved{Generation: w.Generation, Term: w.Term, Protocol: f.protocol}); err != nil {
			return err
		}
	}
}

func newFakeAgent() *fakeAgent { return &fakeAgent{told: make(chan *v1.HostWanted, 1000), boot: "b1"} }

func (f *fakeAgent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewAgentServiceHandler(f))
	mux.HandleFunc("/guest/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	return mux
}

func (l *lab) connected(name string) func() bool {
	return func() bool { _, _, c := l.sessions.Observed(name); return c }
}

func TestAgentConnectsReportsAndIsTold(t *testing.T) {
	l := newLab(t, nil)
	ctx, stop := context.WithCancel(context.Background())
	f := newFakeAgent()
	ended := make(chan error, 1)
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	go func() { ended <- hostlink.Dial(ctx, l.url, config, f.handler()) }()
	l.await("a1 connects", l.connected("a1"))
	if o, _, _ := l.sessions.Observed("a1"); o.Info.GetBootId() != "b1" {
		t.Fatalf("observed %v", o)
	}
	l.sessions.Send("a1", &v1.HostWanted{Term: 2, Generation: 7})
	l.sessions.Send("a1", &v1.HostWanted{Term: 1, Generation: 9}) // from an earlier leader
	l.await("a1 reports generation 7", func() bool { o, _, _ := l.sessions.Observed("a1"); return o.Generation == 7 })

	client, err := l.sessions.HTTPClient("a1")
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequest("GET", hostlink.BaseURL+"/guest/u1", nil)
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if string(body) != "/guest/u1" {
		t.Fatalf("the agent answered %q", body)
	}

	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	l.await("a1 is gone", func() bool { return !l.connected("a1")() })
	if o, since, _ := l.sessions.Observed("a1"); o.GetGeneration() != 7 || since.IsZero() {
		t.Fatal("what a1 said last was forgotten")
	}
	if _, err := l.sessions.HTTPClient("a1"); err == nil {
		t.Fatal("there is a client of a host that is gone")
	}
}

// A sample that comes early because an owner came back is taken at once, but a host cannot flood the manager.
func TestSamplesAreTakenAtAPace(t *testing.T) {
	if reportPause != time.Second/50 || samplePause != time.Second/2 { // the page on threats gives these numbers
		t.Errorf("a report each %v, a sample each %v", reportPause, samplePause)
	}
	early := samplePause
	for try := 0; try < 5 && early >= samplePause; try++ { // a machine that stands still may make one try late
		l := newLab(t, nil)
		times := make(chan time.Time, 100)
		l.sessions.Sampled = func(string, *v1.HostSample) { times <- time.Now() }
		f := newFakeAgent()
		for range 100 {
			f.samples = append(f.samples, &v1.HostSample{})
		}
		begun := time.Now()
		go hostlink.Dial(t.Context(), l.url, l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"}), f.handler())
		l.await("a1 connects", l.connected("a1"))
		l.await("five samples are taken", func() bool { return len(times) >= 5 })
		if all := time.Since(begun); all < (5-sampleBurst)*samplePause {
			t.Errorf("five samples were taken within %v", all)
		}
		first := <-times
		early = (<-times).Sub(first)
	}
	if early >= samplePause {
		t.Errorf("the second sample was taken after %v", early)
	}
}

func TestSamplesAreTakenAtAPaceInHoweverManySessions(t *testing.T) {
	l := newLab(t, nil)
	times := make(chan time.Time, 1000)
	l.sessions.Sampled = func(string, *v1.HostSample) { times <- time.Now() }
	f := newFakeAgent()
	f.samples = []*v1.HostSample{{}, {}, {}, {}}
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	begun := time.Now()
	go func() {
		for t.Context().Err() == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 2*samplePause)
			go func() {
				defer cancel()
				_ = hostlink.Dial(ctx, l.url, config, f.handler())
			}()
			<-ctx.Done()
		}
	}()
	l.await("eight samples are taken, in several sessions", func() bool { return len(times) >= 8 })
	if all := time.Since(begun); all < (8-sampleBurst)*samplePause {
		t.Errorf("eight samples were taken within %v", all)
	}
}

func (f *fakeAgent) Samples(ctx context.Context, _ *connect.Request[v1.SamplesRequest], stream *connect.ServerStream[v1.HostSample]) error {
	for _, sample := range f.samples {
		if err := stream.Send(sample); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestSamplesComeBesideTheReports(t *testing.T) {
	l := newLab(t, nil)
	samples := make(chan *v1.HostSample, 3)
	l.sessions.Sampled = func(host string, sample *v1.HostSample) {
		if host != "a1" {
			t.Errorf("a sample of host %s", host)
		}
		samples <- sample
	}
	f := newFakeAgent()
	f.samples = []*v1.HostSample{{CpuOwner: 1, Owner: &v1.OwnerActivity{Users: []string{strings.Repeat("x", 1<<16)}}}, {CpuOwner: 2}}
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	go hostlink.Dial(t.Context(), l.url, config, f.handler())
	l.await("a1 connects", l.connected("a1"))
	for _, want := range []float64{1, 2} {
		select {
		case got := <-samples:
			if got.CpuOwner != want {
				t.Errorf("a sample of %v, want %v", got.CpuOwner, want)
			}
			if users := got.GetOwner().GetUsers(); len(users) > 0 && len(users[0]) > maxName {
				t.Errorf("a name of %d bytes is kept", len(users[0]))
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no sample came")
		}
	}
}

// A host that reconnects may have rebooted. The manager does not repeat earlier orders by itself, and sends nothing before
// the host has reported in the new session.
func TestNothingIsSentBeforeTheFirstReport(t *testing.T) {
	l := newLab(t, nil)
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	ctx, stop := context.WithCancel(t.Context())
	go hostlink.Dial(ctx, l.url, config, newFakeAgent().handler())
	l.await("a1 connects", l.connected("a1"))
	l.sessions.Send("a1", &v1.HostWanted{Term: 1, Generation: 1})
	stop()
	l.await("a1 is gone", func() bool { return !l.connected("a1")() })

	again := newFakeAgent()
	reached, goOn := make(chan bool), make(chan bool)
	again.first = func() { reached <- true; <-goOn }
	go hostlink.Dial(t.Context(), l.url, config, again.handler())
	<-reached
	l.sessions.Send("a1", &v1.HostWanted{Term: 1, Generation: 2})
	close(goOn)
	l.await("a1 is back", l.connected("a1"))
	l.sessions.Send("a1", &v1.HostWanted{Term: 1, Generation: 3})
	if w := <-again.told; w.Generation != 3 {
		t.Errorf("told generation %d first, want 3", w.Generation)
	}
}

// The first orders of a session are complete. Later orders contain only the changes, if the agent supports that.
func TestOrdersSayWhatHasChanged(t *testing.T) {
	peers := []*v1.Peer{{Name: "md-0"}, {Name: "md-1"}}
	order := func(generation uint64, guests ...*v1.GuestWanted) *v1.HostWanted {
		return &v1.HostWanted{Term: 1, Generation: generation, Guests: guests,
			Network: &v1.NetworkWanted{Clusters: []*v1.ClusterNetwork{{Name: "md", Peers: peers}}}}
	}
	a := &v1.GuestWanted{Uid: "a", Cluster: "md", Identity: &v1.Identity{Name: "md-0"}}
	b := &v1.GuestWanted{Uid: "b", Cluster: "md", Identity: &v1.Identity{Name: "md-1"}}
	for version, changes := range map[uint32]bool{protocol.Changes - 1: false, protocol.Changes: true} {
		l := newLab(t, nil)
		f := newFakeAgent()
		f.protocol = version
		dial := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				hostlink.Dial(ctx, l.url, l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"}), f.handler())
				close(ended)
			}()
			l.await("connected", l.connected("a1"))
			return func() { cancel(); <-ended; l.await("gone", func() bool { return !l.connected("a1")() }) }
		}
		stop := dial()
		l.sessions.Send("a1", order(1, a))
		if w := <-f.told; w.BaseGeneration != 0 || len(w.Guests) != 1 || len(w.Guests[0].Identity.Peers) == 0 == !changes {
			t.Errorf("version %d, at first: %v", version, w)
		}
		l.sessions.Send("a1", order(2, a, b))
		if w := <-f.told; changes && (w.BaseGeneration != 1 || len(w.Guests) != 1 || w.Guests[0].Uid != "b") || !changes && (w.BaseGeneration != 0 || len(w.Guests) != 2) {
			t.Errorf("version %d, then: %v", version, w)
		}
		stop()
		dial()
		l.sessions.Send("a1", order(3, a, b))
		if w := <-f.told; w.BaseGeneration != 0 || len(w.Guests) != 2 {
			t.Errorf("version %d, in the next session: %v", version, w)
		}
	}
}

func TestAReportOfOtherLoadIsTheSame(t *testing.T) {
	l := newLab(t, nil)
	f := newFakeAgent()
	go hostlink.Dial(t.Context(), l.url, l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"}), f.handler())
	l.await("a1 connects", l.connected("a1"))
	l.sessions.Send("a1", &v1.HostWanted{Generation: 1})
	l.await("a1 reports generation 1", func() bool { o, _, _ := l.sessions.Observed("a1"); return o.Generation == 1 })
	first, _, _ := l.sessions.Observed("a1")
	l.sessions.mu.Lock()
	ses := l.sessions.hosts["a1"].session
	l.sessions.mu.Unlock()
	report := func(generation uint64, busy float64) {
		l.sessions.received(ses, &v1.HostObserved{Generation: generation, Load: &v1.HostLoad{CpuBusy: busy}})
	}
	report(1, 3)
	if second, _, _ := l.sessions.Observed("a1"); second != first || l.sessions.Load("a1").CpuBusy != 3 {
		t.Errorf("%v after %v, load %v", second, first, l.sessions.Load("a1"))
	}
	report(2, 4)
	if third, _, _ := l.sessions.Observed("a1"); third.Generation != 2 || l.sessions.Load("a1").CpuBusy != 4 {
		t.Errorf("%v, load %v", third, l.sessions.Load("a1"))
	}
}

func TestNewestSessionWins(t *testing.T) {
	l := newLab(t, nil)
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	ended := make(chan error, 1)
	go func() { ended <- hostlink.Dial(t.Context(), l.url, config, newFakeAgent().handler()) }()
	l.await("the first connects", l.connected("a1"))
	f := newFakeAgent()
	go hostlink.Dial(t.Context(), l.url, config, f.handler()) // as after a restart of the agent
	if err := <-ended; err == nil {
		t.Fatal("no error")
	}
	l.await("the second connects", l.connected("a1"))
	l.sessions.Send("a1", &v1.HostWanted{Term: 1})
	<-f.told
}

// Each boot of a host ends its guests. A host that reports many causes events without end.
func TestAHostsBootsAreCounted(t *testing.T) {
	if bootBurst != 20 || bootPause != 10*time.Minute { // the page on threats gives these numbers
		t.Errorf("%d boots, and then one in %v", bootBurst, bootPause)
	}
	l := newLab(t, nil)
	told := make(chan error, 10)
	l.sessions.OnSession = func(_ ca.Identity, _ string, err error) { told <- err }
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	f := newFakeAgent()
	f.boots = 30
	ended := make(chan error, 1)
	go func() { ended <- hostlink.Dial(t.Context(), l.url, config, f.handler()) }()
	for range 2 { // it begins and is refused, in any order
		if err := <-told; err != nil && !strings.Contains(err.Error(), "has booted 20 times and more in a short time: its next boot counts in 10m0s") {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil {
		t.Fatal("its session goes on")
	}
	l.await("it is not connected", func() bool { _, _, is := l.sessions.Observed("a1"); return !is })
	if report, _, _ := l.sessions.Observed("a1"); report.Info.BootId != "boot 19" {
		t.Errorf("its last report is of %s", report.Info.BootId)
	}
	go hostlink.Dial(t.Context(), l.url, config, copyOf("boot 19").handler())
	l.await("the host connects in the boot that counts", l.connected("a1"))
}

// copyOf returns another agent with the given boot id.
func copyOf(boot string) *fakeAgent {
	f := newFakeAgent()
	f.boot, f.repeats = boot, true
	return f
}

// TestACopyOfAHostWaits starts a second machine with the disk of the first. It has the same key and another boot id.
func TestACopyOfAHostWaits(t *testing.T) {
	l := newLab(t, nil)
	told := make(chan error, 10)
	l.sessions.OnSession = func(_ ca.Identity, _ string, err error) { told <- err }
	config, other := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"}), l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	first, cancel := context.WithCancel(t.Context())
	f := newFakeAgent()
	f.instance = "one"
	go hostlink.Dial(first, l.url, config, f.handler())
	l.await("the first connects", l.connected("a1"))
	if err := <-told; err != nil {
		t.Fatal(err)
	}
	_, since, _ := l.sessions.Observed("a1")
	for boot, config := range map[string]*tls.Config{"another boot": config, "b1": config, "b1, with another key": other} {
		boot, _, _ := strings.Cut(boot, ",")
		copied, end := context.WithCancel(t.Context())
		go hostlink.Dial(copied, l.url, config, copyOf(boot).handler())
		if err := <-told; err == nil || !strings.Contains(err.Error(), "waits until that one ends") {
			t.Fatalf("boot %q: %v", boot, err)
		}
		if report, now, connected := l.sessions.Observed("a1"); report.Info.BootId != "b1" || now != since || !connected {
			t.Fatalf("boot %q: the copy's report counts: %v", boot, report)
		}
		end()
	}
	l.sessions.Send("a1", &v1.HostWanted{Term: 1})
	<-f.told
	if report, _, _ := l.sessions.Observed("a1"); report.Instance != "" {
		t.Error("others can see by what the agent is known")
	}
	go hostlink.Dial(t.Context(), l.url, config, copyOf("another boot").handler())
	if err := <-told; err == nil {
		t.Fatal("the copy did not wait")
	}
	cancel()
	l.await("the first ends", func() bool { _, _, is := l.sessions.Observed("a1"); return !is })
	l.await("the other machine connects", func() bool {
		report, _, is := l.sessions.Observed("a1")
		return is && report.Info.BootId == "another boot"
	})
}

// The sessions of a machine that connects again and again, and of copies of a host, fill the manager's memory.
func TestAHostHasEightSessionsAtMost(t *testing.T) {
	l := newLab(t, nil)
	told := make(chan error, 20)
	l.sessions.OnSession = func(_ ca.Identity, _ string, err error) { told <- err }
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	for i := range 8 {
		go hostlink.Dial(t.Context(), l.url, config, copyOf(fmt.Sprint("boot ", i)).handler())
		if err := <-told; (err == nil) != (i == 0) {
			t.Fatalf("session %d: %v", i, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var refusal *hostlink.Refusal
	if err := hostlink.Dial(ctx, l.url, config, copyOf("another boot").handler()); !errors.As(err, &refusal) || refusal.Reason != "host a1 has 8 sessions already" {
		t.Errorf("the ninth session: %v", err)
	}
	go hostlink.Dial(t.Context(), l.url, l.tls(ca.Identity{Kind: ca.KindHost, Name: "a2"}), newFakeAgent().handler())
	l.await("another host connects", l.connected("a2"))
}

func TestConnectedOnlyOnceReported(t *testing.T) {
	l := newLab(t, nil)
	f := newFakeAgent()
	reached, goOn := make(chan bool), make(chan bool)
	f.first = func() { reached <- true; <-goOn }
	go hostlink.Dial(t.Context(), l.url, l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"}), f.handler())
	<-reached
	if l.connected("a1")() {
		t.Fatal("connected before it reported")
	}
	close(goOn)
	l.await("a1 connects", l.connected("a1"))
}

func TestRefusalIsTold(t *testing.T) {
	l := newLab(t, func(id ca.Identity) error {
		if id.Name == "a1" {
			return &hostlink.Refusal{Reason: "m2 leads", Leader: "https://m2:7070"}
		}
		return fmt.Errorf("host %s was removed", id.Name)
	})
	f := newFakeAgent()
	var to *hostlink.Refusal
	err := hostlink.Dial(t.Context(), l.url, l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"}), f.handler())
	if !errors.As(err, &to) || to.Leader != "https://m2:7070" {
		t.Fatalf("%v", err)
	}
	err = hostlink.Dial(t.Context(), l.url, l.tls(ca.Identity{Kind: ca.KindHost, Name: "a2"}), f.handler())
	if !errors.As(err, &to) || to.Reason != "host a2 was removed" {
		t.Fatalf("%v", err)
	}
	err = hostlink.Dial(t.Context(), l.url, l.tls(ca.Identity{Kind: ca.KindUser, Name: "a1"}), f.handler())
	if !errors.As(err, &to) {
		t.Fatalf("a user passed for a host: %v", err)
	}
	if err := hostlink.Dial(t.Context(), "http://x", &tls.Config{}, nil); err == nil {
		t.Fatal("a plain URL was dialled")
	}
}

func TestAHostWithoutACertificateGetsNoSession(t *testing.T) {
	l := newLab(t, nil)
	l.sessions.OnSession = func(id ca.Identity, _ string, err error) { t.Errorf("a session of %v: %v", id, err) }
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	config.Certificates = nil
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	f := newFakeAgent()
	f.first = func() { t.Error("the manager calls the agent") }
	if err := hostlink.Dial(ctx, l.url, config, f.handler()); err == nil || ctx.Err() != nil {
		t.Errorf("the connection stays: %v", err)
	}
	l.sessions.mu.Lock()
	defer l.sessions.mu.Unlock()
	if len(l.sessions.open)+len(l.sessions.hosts) > 0 {
		t.Errorf("sessions %v, hosts %v", l.sessions.open, l.sessions.hosts)
	}
}

// Who follows what happens has to hear that this manager no longer leads, and ask the one that does.
func TestAResetIsAChange(t *testing.T) {
	l := newLab(t, nil)
	l.sessions.Reset()
	select {
	case <-l.changed:
	case <-time.After(5 * time.Second):
		t.Error("nobody is told")
	}
}

func TestAnAgentAcceptedJustBeforeAllIsResetDoesNotStay(t *testing.T) {
	asked, answer := make(chan bool), make(chan bool)
	l := newLab(t, func(ca.Identity) error {
		asked <- true
		<-answer
		return nil
	})
	ended, config := make(chan error, 1), l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	go func() { ended <- hostlink.Dial(t.Context(), l.url, config, newFakeAgent().handler()) }()
	<-asked
	reset := make(chan bool)
	go func() {
		l.sessions.Reset()
		close(reset)
	}()
	select {
	case <-reset: // Reset did not wait for the session that is about to begin
	case <-time.After(50 * time.Millisecond):
	}
	answer <- true
	<-reset
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the agent stays with a manager that does not lead")
	}
}

// TestSilenceIsNoticed cuts the path without closing anything, like a crashed host or a broken WAN.
func TestSilenceIsNoticed(t *testing.T) {
	l := newLab(t, nil)
	var cut atomic.Bool
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	target := l.url[len("https://"):]
	go func() {
		for {
			c, err := proxy.Accept()
			if err != nil {
				return
			}
			m, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			go forward(c, m, &cut)
			go forward(m, c, &cut)
		}
	}()
	ended := make(chan error, 1)
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	go func() {
		ended <- hostlink.Dial(t.Context(), "https://"+proxy.Addr().String(), config, newFakeAgent().handler())
	}()
	l.await("a1 connects", l.connected("a1"))
	cut.Store(true)
	begin := time.Now()
	l.await("the silence is noticed", func() bool { return !l.connected("a1")() })
	if d := time.Since(begin); d > 18*time.Second {
		t.Fatalf("only after %v", d)
	}
	<-ended // the agent notices, too
}

// forward copies data until cut is set, and then drops it.
func forward(from, to net.Conn, cut *atomic.Bool) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if !cut.Load() {
			to.Write(buf[:n])
		}
	}
}
