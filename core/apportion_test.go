package core

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/migration"
)

// newAbstract is a household with an abstract cluster of 16 guests of 512 MiB, which have no hosts yet. The hosts compute 7,
// 3 and 6 units, as in the example of the VM scheduler's paper.
func newAbstract(t *testing.T) *household {
	h := newHousehold(t, "", 16)
	h.objects.Clusters["md"].Spec = &v1.ClusterSpec{Guests: 16, Abstract: true, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 29}}
	for name, g := range h.objects.Guests {
		g = proto.CloneOf(g)
		g.Host, g.BootId, g.Epoch, g.LastEpoch, g.StartedEpoch, g.Shape = "", "", 0, 0, 0, &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 29}
		h.objects.Guests[name] = g
	}
	for name, speed := range map[string]float64{"a1": 0.7, "a2": 0.3, "b1": 0.6} {
		h.objects.Hosts[name].Info.Cores, h.objects.Hosts[name].Info.CoreSpeed = 10, speed
	}
	return h
}

// change changes a host as if its agent had reported the change.
func (h *household) change(name string, change func(*v1.Host)) {
	host := proto.CloneOf(h.objects.Hosts[name])
	change(host)
	var c Change
	c.write(Update, host)
	h.objects = h.objects.Apply(c)
}

// divided returns the numbers of guests on a1, a2 and b1.
func (h *household) divided() string {
	n := map[string]int{}
	for _, g := range h.objects.Guests {
		n[g.Host]++
	}
	return fmt.Sprintf("%d:%d:%d", n["a1"], n["a2"], n["b1"])
}

func (h *household) expectDivided(want string, after time.Duration) {
	h.t.Helper()
	for end := h.now.Add(after); h.now.Before(end); {
		h.pass(time.Second)
		h.arrive()
	}
	if got := h.divided(); got != want {
		h.t.Errorf("after %v the guests are divided as %s, want %s; events: %s", after, got, want, strings.Join(h.events, "\n"))
	}
}

func TestAbstractProcessorsAreDividedAsThePaper(t *testing.T) {
	h := newAbstract(t)
	h.expectDivided("7:3:6", 5*time.Second)
	h.expectDivided("7:3:6", 2*time.Minute) // and stay
}

// Guests stay on hosts that become spares if other hosts have no room for them.
func TestAbstractProcessorsStayWhenAllHostsAreSpares(t *testing.T) {
	h := newAbstract(t)
	h.expectDivided("7:3:6", 5*time.Second)
	for _, name := range []string{"a1", "a2", "b1"} {
		h.change(name, func(host *v1.Host) { host.Spare = true })
	}
	h.expectDivided("7:3:6", 2*time.Minute)
	e := Explainer{Objects: h.objects, Reports: h.reports(), Now: h.now}
	if by := e.Disproportion(h.objects.Clusters["md"]); by != 0 {
		t.Errorf("the slowest host could be %.0f %% faster", 100*by)
	}
}

// Guests move only to a division that has been better by enough, and for long enough.
func TestAbstractProcessorsMoveWhenSpeedsChange(t *testing.T) {
	h := newAbstract(t)
	h.expectDivided("7:3:6", 5*time.Second)
	h.change("a2", func(host *v1.Host) { host.Info.CoreSpeed = 0.28 })
	h.expectDivided("7:3:6", 2*time.Minute)
	h.change("a2", func(host *v1.Host) { host.Info.CoreSpeed = 0.7 })
	h.expectDivided("7:3:6", 20*time.Second)
	h.expectDivided("6:5:5", 2*time.Minute)
	moved := 0
	for _, m := range h.objects.Migrations {
		if m.Policy != "apportion" {
			t.Errorf("move %v", m)
		}
		moved++
	}
	if moved != 2 {
		t.Errorf("%d guests have moved, and 2 are enough", moved)
	}
	// The guests that moved cool down. Others may go back, but no guest moves to and fro.
	h.change("a2", func(host *v1.Host) { host.Info.CoreSpeed = 0.3 })
	h.expectDivided("7:3:6", 3*time.Minute)
	last := map[string]int{}
	for _, m := range h.objects.Migrations {
		last[m.Guest]++
	}
	for guest, n := range last {
		if n > 1 {
			t.Errorf("guest %s has moved %d times within its cool-down", guest, n)
		}
	}
}

// Degraded operation: the others share the guests of a host that is taken away, in proportion to their speeds.
func TestAbstractProcessorsOfAHostThatIsTakenAway(t *testing.T) {
	h := newAbstract(t)
	h.expectDivided("7:3:6", 5*time.Second)
	h.change("b1", func(host *v1.Host) { host.Draining = true })
	h.expectDivided("11:5:0", 30*time.Second)
	h.change("b1", func(host *v1.Host) { host.Draining = false })
	h.expectDivided("7:3:6", 6*time.Minute)
}

func TestWhatIsFreeOfAHostCounts(t *testing.T) {
	g := &v1.Guest{Meta: &v1.Meta{Uid: "other"}, Cluster: "other"}
	h := newAbstract(t)
	hosts := newRoom(h.objects, h.reports(), nil).forCluster(h.reports(), nil, nil, "")
	at := func(string) set[*v1.Guest] { return set[*v1.Guest]{g: true} }
	c := h.objects.Clusters["md"]
	for _, u := range []struct {
		usage *Usage
		want  float64
	}{{nil, 0.7}, {&Usage{Hosts: map[string]HostUsage{"a1": {Others: 2}}, Guests: map[string]GuestUsage{"other": {CPU: 3}}}, 0.35},
		{&Usage{Hosts: map[string]HostUsage{"a1": {Others: 12}}}, 0.07}} {
		got := divide(u.usage, c, 16, hosts, at).shares[0].Capacity
		if got < u.want*0.999 || got > u.want*1.001 { // emulated, ten cores
			t.Errorf("capacity %v, want %v", got, u.want)
		}
	}
}

// A host may report any values of its processors.
func TestOddSpeedsAreBounded(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 5e-324, -1, 0} {
		info := &v1.HostInfo{Cores: 4, CoreSpeed: v, CpuShare: v}
		if speed, cores := speedOf(info), coresOf(info); !(speed >= leastSpeed && speed <= mostSpeed) || !(cores >= leastShare && cores <= 4) {
			t.Errorf("%v: speed %v, %v cores", v, speed, cores)
		}
	}
}

// A guest that has to leave its host, and gets room just when its cluster is divided anew, moves once.
func TestAnAbstractProcessorHasOneMoveAtATime(t *testing.T) {
	for phase := range 10 {
		h := newAbstract(t)
		h.expectDivided("7:3:6", 5*time.Second)
		memory := h.objects.Hosts["a1"].Info.MemoryBytes
		for _, name := range []string{"a1", "a2"} { // no room elsewhere
			h.change(name, func(x *v1.Host) { x.Info.MemoryBytes = 1 << 20 })
		}
		h.change("b1", func(x *v1.Host) { x.Draining, x.Info.CoreSpeed = true, 0.3 })
		for range 60 + phase {
			h.pass(time.Second)
		}
		for _, name := range []string{"a1", "a2"} {
			h.change(name, func(x *v1.Host) { x.Info.MemoryBytes = memory })
		}
		for range 12 {
			h.pass(time.Second)
			moves := map[string]bool{}
			for _, m := range h.objects.Migrations {
				if moves[m.Guest] && !migration.Ended(m.State) {
					t.Fatalf("guest %s has two moves", m.Guest)
				}
				moves[m.Guest] = moves[m.Guest] || !migration.Ended(m.State)
			}
		}
	}
}

// Two clusters that see the same free host must not go there together and come back together.
func TestAbstractClustersDoNotChaseEachOther(t *testing.T) {
	h := newAbstract(t)
	h.expectDivided("7:3:6", 5*time.Second)
	h.core.apportionment.better = map[string]time.Time{"md": h.now, "other": h.now}
	h.change("a2", func(host *v1.Host) { host.Info.CoreSpeed = 0.7 })
	for end := h.now.Add(time.Minute); h.now.Before(end) && h.moves() == ""; {
		h.pass(time.Second)
	}
	if h.moves() == "" || len(h.core.apportionment.better) != 0 {
		t.Errorf("moves %q; %v go on counting their time", h.moves(), h.core.apportionment.better)
	}
	if got := (&apportionMemory{last: "b"}).inTurn([]string{"a", "b", "c"}); strings.Join(got, "") != "cab" {
		t.Errorf("in turn: %v", got)
	}
}
