package session

import (
	"context"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/hostlink"
)

func TestAReportThatSaysTooMuchIsCut(t *testing.T) {
	long := strings.Repeat("\u00fc", 1<<20)
	many := make([]string, 100_000)
	for i := range many {
		many[i] = strings.Repeat("x", 100)
	}
	whole := &v1.HostObserved{Term: 3, Images: []string{"sha256:x"}, Problems: []string{"its disk is full"},
		Info:   &v1.HostInfo{BootId: "b1", Cores: 8, Acceleration: &v1.Acceleration{Reason: "KVM works"}, GuestSupport: &v1.GuestSupport{Machines: []string{"q35"}}},
		Guests: []*v1.GuestObserved{{Uid: "u", Message: strings.Repeat("m", maxMessage), OutOfMemory: &v1.OutOfMemory{Process: "lmp"}}}}
	for name, change := range map[string]func(*v1.HostObserved){
		"a version":       func(o *v1.HostObserved) { o.Info.LibvirtVersion = long },
		"a nested string": func(o *v1.HostObserved) { o.Info.Acceleration.Reason = long },
		"features": func(o *v1.HostObserved) {
			o.Info.GuestSupport = &v1.GuestSupport{Cpu: &v1.CPU{Features: many}, ModelFeatures: many, Machines: many}
		},
		"a guest's message": func(o *v1.HostObserved) { o.Guests[0].Message = long },
		"a guest's process": func(o *v1.HostObserved) { o.Guests[0].OutOfMemory.Process = long },
		"problems":          func(o *v1.HostObserved) { o.Problems = many },
		"a problem":         func(o *v1.HostObserved) { o.Problems = []string{long} },
		"images":            func(o *v1.HostObserved) { o.Images = append(many, many...) },
		"epochs": func(o *v1.HostObserved) {
			for range 100_000 {
				o.Epochs = append(o.Epochs, &v1.KnownEpoch{})
			}
		},
		"unknown fields": func(o *v1.HostObserved) {
			o.Info.ProtoReflect().SetUnknown(append([]byte{0xfa, 0x7f, 0x80, 0x80, 0x04}, make([]byte, 1<<16)...))
		},
	} {
		o := proto.CloneOf(whole)
		change(o)
		if !bound(o) || proto.Size(o) > 2<<20 || proto.Size(o.Info) > maxInfo {
			t.Errorf("%s: %d bytes are kept, %d of its description", name, proto.Size(o), proto.Size(o.Info))
		}
		if problems := strings.Join(o.Problems, "\n"); !strings.Contains(problems, "more than the manager keeps") {
			t.Errorf("%s: nothing is said of it", name)
		}
		if _, err := proto.Marshal(o); err != nil || o.Info.BootId != "b1" || o.Guests[0].Uid != "u" || o.ProcessesUnknown {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := proto.CloneOf(whole)
	if bound(o) || !proto.Equal(o, whole) {
		t.Errorf("an ordinary report is cut: %v", o)
	}
	for range maxList {
		o.Guests = append(o.Guests, &v1.GuestObserved{})
	}
	if bound(o); len(o.Guests) != maxList || !o.ProcessesUnknown {
		t.Errorf("%d guests are kept, unlisted ones: %v", len(o.Guests), o.ProcessesUnknown)
	}
}

// People read a host's texts on terminals.
func TestTheTextsOfAReportAreEscaped(t *testing.T) {
	o := &v1.HostObserved{Problems: []string{"\x1b]0;title\a", "two\nlines"}, Info: &v1.HostInfo{KernelVersion: "\x1b[2J", Acceleration: &v1.Acceleration{Reason: "a\rb"}},
		Guests: []*v1.GuestObserved{{Message: strings.Repeat("\x1b", maxMessage)}}}
	if bound(o) {
		t.Error("something was cut")
	}
	if o.Problems[0] != `\x1b]0;title\x07` || o.Problems[1] != "two\nlines" || o.Info.KernelVersion != `\x1b[2J` || o.Info.Acceleration.Reason != `a\x0db` {
		t.Errorf("%q, %q, %q", o.Problems, o.Info.KernelVersion, o.Info.Acceleration.Reason)
	}
	if m := o.Guests[0].Message; len(m) != maxMessage || strings.Contains(m, "\x1b") {
		t.Errorf("a message of %d bytes, %.20q", len(m), m)
	}
}

// The web console computes with these numbers, and would show nothing of the other hosts.
func TestNumbersThatAreNoneAreDropped(t *testing.T) {
	idle := math.Inf(1)
	sample := &v1.HostSample{Seconds: 1, CpuOwner: math.NaN(), CpuGuests: 0.5, Owner: &v1.OwnerActivity{InputIdle: &idle}, Guests: []*v1.GuestSample{{Cpu: math.Inf(-1), CpuWait: 0.25}}}
	boundMessage(sample.ProtoReflect(), maxName, maxFacts)
	if g := sample.Guests[0]; sample.CpuOwner != 0 || sample.CpuGuests != 0.5 || sample.Owner.InputIdle != nil || g.Cpu != 0 || g.CpuWait != 0.25 {
		t.Errorf("the sample is %v", sample)
	}
}

func TestAHostThatRepeatsALargeReportWakesNobody(t *testing.T) {
	s := New(nil, nil)
	ses := &session{name: "a1"}
	s.open[ses] = true
	changes := s.Subscribe(t.Context())
	for i := range 3 {
		s.received(ses, &v1.HostObserved{Info: &v1.HostInfo{LibvirtVersion: strings.Repeat("x", 1<<20)}, Load: &v1.HostLoad{CpuBusy: float64(i)}})
		if woken := len(changes) > 0; woken != (i == 0) {
			t.Errorf("report %d wakes: %v", i, woken)
		}
		select {
		case <-changes:
		default:
		}
	}
	if o, _, _ := s.Observed("a1"); len(o.Info.LibvirtVersion) != maxName || len(s.hosts["a1"].fixed) > 1<<16 {
		t.Errorf("%d bytes are kept, and %d", len(o.Info.LibvirtVersion), len(s.hosts["a1"].fixed))
	}
}

// changingAgent sends reports that all differ. It ends its session after some, or never.
type changingAgent struct {
	watariv1connect.UnimplementedAgentServiceHandler
	sent   *atomic.Uint64
	number int // of reports in a session
	stays  bool
}

func (a changingAgent) Sync(ctx context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	for range a.number {
		if err := stream.Send(&v1.HostObserved{Generation: a.sent.Add(1)}); err != nil {
			return err
		}
	}
	if a.stays {
		<-ctx.Done()
	}
	return nil
}

// Each session of the same agent replaces the one before.
func TestReportsAreTakenAtAPaceInSessionsThatReplaceEachOther(t *testing.T) {
	l := newLab(t, nil)
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewAgentServiceHandler(changingAgent{sent: &atomic.Uint64{}, number: 1, stays: true}))
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	begun := time.Now()
	for range 4 {
		go func() {
			for t.Context().Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				go func() {
					defer cancel()
					_ = hostlink.Dial(t.Context(), l.url, config, mux)
				}()
				<-ctx.Done()
			}
		}()
	}
	taken := func() uint64 { o, _, _ := l.sessions.Observed("a1"); return o.GetGeneration() }
	l.await("more reports are taken than need no pause", func() bool { return taken() >= reportBurst+60 })
	if all := time.Since(begun); all < 60*reportPause {
		t.Errorf("%d reports were taken within %v", reportBurst+60, all)
	}
}

func TestReportsAreTakenAtAPaceInHoweverManySessions(t *testing.T) {
	l := newLab(t, nil)
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewAgentServiceHandler(changingAgent{sent: &atomic.Uint64{}, number: 50}))
	config := l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"})
	begun := time.Now()
	go func() {
		for t.Context().Err() == nil {
			_ = hostlink.Dial(t.Context(), l.url, config, mux)
		}
	}()
	taken := func() uint64 { o, _, _ := l.sessions.Observed("a1"); return o.GetGeneration() }
	l.await("more reports are taken than need no pause, in another session, too", func() bool { return taken() >= reportBurst+60 })
	if all := time.Since(begun); all < 60*reportPause {
		t.Errorf("%d reports were taken within %v", reportBurst+60, all)
	}
}

// floodingAgent sends a large report.
type floodingAgent struct {
	watariv1connect.UnimplementedAgentServiceHandler
	size  int // of the report
	ended chan error
}

func (f *floodingAgent) Sync(ctx context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	report := &v1.HostObserved{Problems: []string{strings.Repeat("x", f.size-10)}}
	report.Problems[0] += strings.Repeat("x", f.size-proto.Size(report))
	stream.Send(report)
	_, err := stream.Receive()
	f.ended <- err
	return err
}

func TestAReportThatIsLargerThanAnyEndsTheSession(t *testing.T) {
	for size, taken := range map[int]bool{16 << 20: true, 16<<20 + 1: false} {
		l := newLab(t, nil)
		f := &floodingAgent{size: size, ended: make(chan error, 100)}
		mux := http.NewServeMux()
		mux.Handle(watariv1connect.NewAgentServiceHandler(f))
		go hostlink.Dial(t.Context(), l.url, l.tls(ca.Identity{Kind: ca.KindHost, Name: "a1"}), mux)
		if taken {
			l.await("the report is taken", l.connected("a1"))
			continue
		}
		select {
		case <-f.ended:
		case <-time.After(10 * time.Second):
			t.Error("the manager goes on")
		}
		if o, _, _ := l.sessions.Observed("a1"); o != nil {
			t.Errorf("%d bytes were taken up", proto.Size(o))
		}
	}
}
