package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/internal/stamp"
	"watari/manager/store"
	"watari/manager/view"
)

// signed gives the fixture's controller a term that is in the store.
func (f *fixture) signed() (Deps, *ca.Authority) {
	f.t.Helper()
	f.stop()
	a, err := ca.New("test")
	if err != nil {
		f.t.Fatal(err)
	}
	f.store.SignTerms(func(t *v1.Term) error { return stamp.SignTerm(a, t) })
	term, _, err := f.store.Lead(f.t.Context(), "https://m1")
	if err != nil {
		f.t.Fatal(err)
	}
	return Deps{Store: f.store, Sessions: f.hosts, SessionChanges: f.hosts.changed, RunsDir: f.t.TempDir(), Term: term,
		TermID: f.store.Led().Id, Stamps: view.NewStamps(a.Certificate()), Authority: a}, a
}

// shown makes a host show a stamp.
func (f *fixture) shown(host string, a *ca.Authority, term *v1.Term, revision int64) {
	f.t.Helper()
	s, err := stamp.New(a, term, revision)
	if err != nil {
		f.t.Fatal(err)
	}
	f.hosts.with(host, func(h *fakeHost) { h.report.Stamp = s })
}

func TestOrdersAreStampedAndOnlyOfTheTermInForce(t *testing.T) {
	f := newFixture(t, "a1")
	d, a := f.signed()
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), d) }()
	f.until("stamped orders", func(*store.Snapshot) bool { // the fixture's own controller may have sent other orders before
		f.hosts.mu.Lock()
		defer f.hosts.mu.Unlock()
		return f.hosts.hosts["a1"].wanted.GetStamp() != nil
	})
	f.hosts.mu.Lock()
	w := f.hosts.hosts["a1"].wanted
	f.hosts.mu.Unlock()
	if s := w.Stamp; stamp.Verify(a.Certificate(), s) != nil || s.Term != d.Term || s.Id != d.TermID || s.Revision < f.store.Led().Revision {
		t.Errorf("stamp %v", s)
	}
	// Another term begins. No orders are computed from its objects, whose revisions are not of this term.
	if _, _, err := f.store.Lead(t.Context(), "https://m2"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, store.ErrNotLeader) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the deposed controller goes on")
	}
}

// The controller checks the evidence before it decides or sends anything, and stores the evidence before the term ends.
func TestNothingIsToldOnceAStampShowsThatTheStateIsOld(t *testing.T) {
	for name, c := range map[string]struct {
		term  func(d Deps) *v1.Term
		above uint64 // the least difference between the next term's number and this one's
	}{
		"a lower number": {func(Deps) *v1.Term { return &v1.Term{Number: 1, Id: "lost"} }, 0},
		"the same":       {func(d Deps) *v1.Term { return &v1.Term{Number: d.Term, Id: "lost"} }, 0},
		"a higher one":   {func(d Deps) *v1.Term { return &v1.Term{Number: d.Term + 7, Id: "lost"} }, 7},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "a1", "b1")
			f.until("orders before", func(*store.Snapshot) bool {
				f.hosts.mu.Lock()
				defer f.hosts.mu.Unlock()
				return f.hosts.hosts["b1"].wanted != nil
			})
			d, a := f.signed()
			f.shown("b1", a, c.term(d), 400)
			f.hosts.mu.Lock()
			f.hosts.onSend = func(host string, _ *v1.HostWanted) { t.Errorf("host %s is told something", host) }
			f.hosts.mu.Unlock()
			f.cluster("md", 1, 0)
			var again *LeadAgainError
			if err := Run(t.Context(), d); !errors.As(err, &again) || again.Above != d.Term+c.above {
				t.Fatal(err)
			}
			s := f.store.Snapshot()
			if !s.Held() || s.Hold().Evidence[0].Host != "b1" || s.Guests["md-0"].Host != "" {
				t.Fatal(s.Hold(), s.Guests["md-0"])
			}
			// The next term holds even if the host is disconnected.
			f.hosts.with("b1", func(h *fakeHost) { h.connected = false })
			f.store.RaiseTerm(again.Above)
			term, _, err := f.store.Lead(t.Context(), "https://m1")
			if err != nil || term <= again.Above {
				t.Fatal(term, err)
			}
			d.Term, d.TermID = term, f.store.Led().Id
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := Run(ctx, d); !errors.Is(err, context.DeadlineExceeded) || f.store.Snapshot().Guests["md-0"].Host != "" {
				t.Error(err)
			}
		})
	}
}
