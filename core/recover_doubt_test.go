package core

// recover_doubt_test.go - reports that do not let a recovery conclude that a guest runs nowhere.

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "watari/api/watariv1"
)

const (
	receivingThere = v1.GuestCondition_GUEST_CONDITION_RECEIVING
	reservedThere  = v1.GuestCondition_GUEST_CONDITION_RESERVED
)

// newDoubt is an old state in which a1 runs md-1, and nobody is known to run md-0.
func newDoubt() *oldState {
	w := newOldState()
	w.sees("a1", "md-1", 4, runningThere)
	return w
}

func process(g *v1.GuestObserved) { g.Process = true }

// sawProcess makes a host report the process of a guest whose record its agent has not read yet.
func (w *oldState) sawProcess(host, uid string) {
	w.reports[host].Guests = append(w.reports[host].Guests, &v1.GuestObserved{Uid: uid, Process: true})
}

// wantObstacle checks that nothing is carried out, and that an obstacle contains these words.
func wantObstacle(t *testing.T, p RecoveryPlan, words ...string) {
	t.Helper()
	text := strings.Join(p.Obstacles, "\n")
	for _, word := range append(words, "") {
		if len(p.Obstacles) == 0 || !strings.Contains(text, word) {
			t.Errorf("obstacles are %q, without %q; the plan: %v", p.Obstacles, word, p.Guests)
		}
	}
	for _, g := range p.Guests {
		if g.Act == waitAct && g.Object != nil {
			t.Errorf("%v waits, and is written down", g)
		}
	}
}

func TestAProcessWithoutARecordHasTheRecoveryWait(t *testing.T) {
	w := newDoubt()
	w.sawProcess("b1", "md-0-uid")
	p := w.plan()
	wantObstacle(t, p, "guest md-0 on b1", "has not read its record")
	planRow(t, p, "md-0", waitAct)

	// The same for an unknown guest of a cluster that is made again.
	w = newDoubt()
	w.sees("a1", "md-0", 3, runningThere)
	w.sees("a1", "lu-0", 2, runningThere, newer(0))
	w.sawProcess("b1", GuestUID("lu-uid", 1))
	p = w.plan()
	wantObstacle(t, p, GuestUID("lu-uid", 1)+" on b1")
	for _, g := range p.Guests {
		if g.Guest == "lu-1" {
			t.Errorf("lu-1 is started while b1 has its process: %v", g)
		}
	}
}

func TestAReportThatIsNotBelievedDoesNotSayThatAGuestIsNowhere(t *testing.T) {
	for name, change := range map[string]func(*v1.GuestObserved){
		"a bad name":            func(g *v1.GuestObserved) { g.Name = "../md" },
		"an impossible epoch":   func(g *v1.GuestObserved) { g.Epoch = maxEpoch },
		"an unbelievable epoch": func(g *v1.GuestObserved) { g.Epoch = 3 + lostEpochs + 1 },
	} {
		w := newDoubt()
		w.sees("b1", "md-0", 5, runningThere, change)
		p := w.plan()
		t.Run(name, func(t *testing.T) { wantObstacle(t, p, "guest md-0 on b1", "--without b1") })

		w = newDoubt()
		w.sees("a1", "md-0", 3, runningThere)
		w.sees("a1", "lu-0", 2, runningThere, newer(0))
		w.sees("b1", "lu-1", 2, runningThere, newer(1), change, func(g *v1.GuestObserved) { g.Epoch += 3 }) // the window of an unknown guest
		p = w.plan()
		t.Run(name+", of an unknown guest", func(t *testing.T) { wantObstacle(t, p, "guest lu-1 on b1"); planRow(t, p, "lu-1", waitAct) })
	}
}

func TestAHostThatCouldNotLookAtItsProcessesMayRunAnyGuest(t *testing.T) {
	w := newDoubt()
	w.reports["b1"].ProcessesUnknown = true
	p := w.plan()
	wantObstacle(t, p, "host b1 could not look at its processes", "try again")
	if planRow(t, p, "md-0", holdAct); len(p.Hosts) != 1 || p.Hosts[0].Host != "b1" || !strings.Contains(p.Hosts[0].Reason, "processes") {
		t.Error(p.Hosts)
	}
	w.choices.Without = []string{"b1"} // nobody can vouch for a connected host
	p = w.plan()
	wantObstacle(t, p, "leave out --without b1")
	planRow(t, p, "md-0", holdAct)
}

func TestACopyThatIsEndedHoldsTheStartBack(t *testing.T) {
	for name, c := range map[string]struct {
		epoch     uint64
		condition v1.GuestCondition
	}{
		"no record":                     {0, runningThere},
		"an earlier epoch":              {2, runningThere},
		"a move that brought it":        {9, receivedThere},
		"a move that room was made for": {9, reservedThere},
	} {
		w := newDoubt()
		w.sees("b1", "md-0", c.epoch, c.condition, process)
		p := w.plan()
		if e := planRow(t, p, "md-0", endAct); e.Host != "b1" || len(p.Obstacles) > 0 {
			t.Errorf("%s: %v, obstacles %q", name, e, p.Obstacles)
		}
		g := planRow(t, p, "md-0", restartAct)
		if !strings.Contains(g.Reason, "waits for the end of its copy on b1") || g.Object.LastEpoch < c.epoch+EpochGap {
			t.Errorf("%s: %v", name, g)
		}
	}
}

func TestAGuestThatWasSentIsNotStartedElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		condition v1.GuestCondition
		process   bool
	}{
		"it is being received":                 {receivingThere, true},
		"its process is not seen":              {receivingThere, false},
		"its host says less than has happened": {reservedThere, true},
	} {
		for _, stopped := range []bool{false, true} {
			w := newDoubt()
			w.objects.Guests["md-0"].Stopped = stopped
			w.sees("a1", "md-0", 3, sentThere)
			w.sees("b1", "md-0", 5, c.condition, func(g *v1.GuestObserved) { g.Process, g.MigrationId = c.process, "m" })
			p := w.plan()
			if g := planRow(t, p, "md-0", waitAct); g.Host != "b1" {
				t.Errorf("%s: %v", name, g)
			}
			wantObstacle(t, p, "guest md-0 on b1", "a move is bringing it")
		}
	}
	// Two copies of moves: the state does not tell which one is newer.
	w := newDoubt()
	w.sees("a1", "md-0", 5, receivedThere, process)
	w.sees("b1", "md-0", 7, receivedThere, process)
	p := w.plan()
	planRow(t, p, "md-0", conflictAct)
	wantObstacle(t, p, "--keep md-0=HOST")
}

func TestNoHostExhaustsEpochs(t *testing.T) {
	w := newDoubt()
	w.sees("a1", "md-0", 3, runningThere)
	epochs := func(known ...uint64) {
		for _, epoch := range known {
			w.reports["b1"].Epochs = append(w.reports["b1"].Epochs, &v1.KnownEpoch{Uid: "md-0-uid", Epoch: epoch})
		}
	}
	epochs(maxEpoch-1, 3+lostEpochs+1)
	if g := planRow(t, w.plan(), "md-0", keepAct).Object; g.LastEpoch != 3+EpochGap {
		t.Error(g)
	}
	epochs(3 + lostEpochs)
	if g := planRow(t, w.plan(), "md-0", keepAct).Object; g.LastEpoch != 3+lostEpochs+EpochGap {
		t.Error(g)
	}
	w.objects.Guests["md-0"].LastEpoch = maxEpoch - 2
	if g := planRow(t, w.plan(), "md-0", keepAct).Object; g.LastEpoch != maxEpoch-1 {
		t.Error(g)
	}
}

func TestHostsThatTheStateDoesNotKnowMayRunAnyGuest(t *testing.T) {
	w := newDoubt()
	w.choices.Unknown = []string{"k9", "k9"}
	p := w.plan()
	if g := planRow(t, p, "md-0", holdAct).Object; !strings.Contains(g.Failure, "k9") || len(p.Obstacles) > 0 {
		t.Error(g, p.Obstacles)
	}
	if len(p.Hosts) != 1 || p.Hosts[0].Host != "k9" || !strings.Contains(p.Hosts[0].Reason, "join it again") {
		t.Error(p.Hosts)
	}
	w.choices.Without = []string{"k9"}
	if p = w.plan(); !p.Hosts[0].Vouched || len(p.Obstacles) > 0 {
		t.Error(p.Hosts, p.Obstacles)
	}
	planRow(t, p, "md-0", restartAct)

	// A known host has the same name, so nobody can vouch for one of the two alone.
	w.choices = RecoveryChoices{Unknown: []string{"b1"}, Without: []string{"b1"}}
	p = w.plan()
	planRow(t, p, "md-0", holdAct)
	wantObstacle(t, p, "leave out --without b1")
	w.away("b1")
	if p = w.plan(); len(p.Hosts) != 1 || !p.Hosts[0].Vouched {
		t.Error(p.Hosts)
	}
	w.choices.Without = nil
	if p = w.plan(); len(p.Hosts) != 1 || !strings.Contains(p.Hosts[0].Reason, "another host of its name") {
		t.Error(p.Hosts)
	}
	planRow(t, p, "md-0", holdAct)
}

func TestStoppedAndGivenUpGuestsAreHeldBackWhileHostsAreAway(t *testing.T) {
	w := newOldState()
	w.objects.Guests["md-0"].Stopped, w.objects.Guests["md-0"].Host = true, ""
	w.objects.Guests["md-1"].Host, w.objects.Guests["md-1"].Failure = "", "given up"
	w.away("b1")
	for range 2 { // the next recovery finds what this one has written
		p := w.plan()
		for name, before := range map[string]string{"md-0": "it was stopped", "md-1": "before: given up"} {
			g := planRow(t, p, name, holdAct).Object
			if !strings.Contains(g.Failure, "may still run on b1") || !strings.Contains(g.Failure, "administrators") || !strings.Contains(g.Failure, "guest start "+name) ||
				strings.Count(g.Failure, before) != 1 {
				t.Errorf("%s: %q", name, g.Failure)
			}
			w.objects.Guests[name] = g
		}
	}
	if !w.objects.Guests["md-0"].Stopped {
		t.Error("md-0 is not stopped any more")
	}
}

// large gives a cluster's facts the prefix and the number of guests of a large cluster.
func large(prefix string, guests uint32, first string) func(*v1.GuestFacts) {
	return func(f *v1.GuestFacts) {
		f.Cluster.Prefix, f.Cluster.Spec.Guests = prefix, guests
		f.Address = recoveredAddress(netip.MustParsePrefix(prefix), f.Index, &v1.Guest{Address: first}).String()
	}
}

func TestLargeClustersAreMadeAgain(t *testing.T) {
	for _, c := range []struct {
		prefix string
		guests uint32
		last   string
		made   bool
	}{
		{"10.77.1.0/24", 245, "10.77.1.254", true},
		{"10.77.2.0/23", 246, "10.77.2.255", true},
		{"10.77.2.0/23", 501, "10.77.3.254", true},
		{"10.77.4.0/22", 1000, "10.77.7.241", true},
		{"10.77.4.0/22", 1001, "", false},
		{"10.77.4.0/22", 501, "", false},
		{"10.77.1.0/24", 246, "", false},
		{"10.77.0.0/16", 2, "", false},
		{"10.77.0.0/23", 300, "", false}, // overlaps md's
	} {
		w := newDoubt()
		first := netip.MustParsePrefix(c.prefix).Addr().As4()
		first[3] = 10
		w.sees("b1", "lu-0", 2, runningThere, newer(0, large(c.prefix, c.guests, netip.AddrFrom4(first).String())))
		p := w.plan()
		if made := len(p.Clusters) == 1; made != c.made {
			t.Errorf("%v: made again: %v; %v", c, made, p.Guests)
			continue
		}
		if c.made {
			if g := planRow(t, p, fmt.Sprintf("lu-%d", c.guests-1), restartAct).Object; g.Address != c.last {
				t.Errorf("%v: the last address is %s", c, g.Address)
			}
		}
	}
	// With this address, others of the cluster would lie outside of its prefix.
	w := newDoubt()
	w.sees("b1", "lu-0", 2, runningThere, newer(0, func(f *v1.GuestFacts) { f.Address = "10.77.1.255" }))
	if g := planRow(t, w.plan(), "lu-0", leaveAct); !strings.Contains(g.Reason, "address") {
		t.Error(g)
	}
}
