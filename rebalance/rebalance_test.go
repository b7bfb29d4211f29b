package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1 "watari/api/watariv1"
	"watari/placement"
)

const gib = 1 << 30

// some makes a problem with all kinds of constraints.
func some(t *rapid.T) *Problem {
	p := &Problem{Most: rapid.IntRange(1, 20).Draw(t, "most")}
	number := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	for i := range number("hosts", 2, 6) {
		h := Host{Host: placement.Host{Name: fmt.Sprintf("h%d", i), Site: []string{"a", "b"}[i%2], Connected: number("connected", 0, 5) > 0, Cores: 4,
			MemoryBytes: uint64(number("memory", 1, 6)) * gib, Info: &v1.HostInfo{}}, Capacity: float64(number("capacity", 1, 4)), Speed: float64(number("speed", 1, 2)), Turns: number("turns", 0, 4)}
		if number("closed", 0, 5) == 0 {
			h.Closed = "closed"
		}
		p.Hosts = append(p.Hosts, h)
	}
	for i := range number("guests", 1, 10) {
		host := number("host", 0, len(p.Hosts)-1)
		cluster := number("cluster", 0, 2)
		g := Guest{Name: fmt.Sprintf("g%d", i), Cluster: fmt.Sprint(cluster), Host: host, Demand: float64(number("demand", 0, 4)) / 2, Lost: float64(number("lost", 0, 60)), Bytes: uint64(number("bytes", 1, 2)),
			Request: &placement.Request{Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: gib}, Spread: v1.Spread(cluster)}}
		if cluster == 0 {
			g.Request.Sites = []string{"a"}
		}
		if number("stays", 0, 4) == 0 {
			g.Stays = "it stays"
		}
		p.Hosts[host].MemoryUsed += gib
		p.Guests = append(p.Guests, g)
	}
	term := rapid.SampledFrom([]Policy{{Name: "balance", Term: &Load{}}, {Name: "pack", Term: &Pack{MaxLoad: 1, FillTo: 0.9}}}).Draw(t, "policy")
	for _, one := range []Policy{term, {Name: "spread", Term: Spread{}}} {
		one.Weight, one.LeastGain, one.Horizon, one.Left = 1, 0.2, 60, number("left", -1, 3)
		if most := number("link", -1, 5); most >= 0 {
			one.Exceeds = func(from, to string, bytes uint64) string {
				if bytes > uint64(most) {
					return "the link is used up"
				}
				return ""
			}
		}
		p.Policies = append(p.Policies, one)
	}
	p.Forbids = func(guest int, policy string) string {
		if policy == "spread" && guest == 0 {
			return "forbidden"
		}
		return ""
	}
	return p
}

// spreadCost returns the cost of uneven clusters, counted anew.
func spreadCost(p *Problem) float64 { return Spread{}.Cost(newState(p)) }

// sender counts the bytes that the moves of each policy send between sites a and b.
type sender struct {
	*Problem
	sent map[string]uint64
}

// exceeds counts a move, and reports whether its policy's moves send too many bytes.
func (s sender) exceeds(m Proposal) bool {
	from, to := s.Hosts[m.From].Site, s.Hosts[m.To].Site
	if from == to {
		return false
	}
	s.sent[m.Policy] += s.Guests[m.Guest].Bytes
	i := slices.IndexFunc(s.Policies, func(p Policy) bool { return p.Name == m.Policy })
	return s.Policies[i].Exceeds != nil && s.Policies[i].Exceeds(from, to, s.sent[m.Policy]) != ""
}

func TestPlansKeepTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := some(t)
		plan, _ := p.Plan()
		if len(plan) > p.Most {
			t.Fatalf("%d proposals of at most %d", len(plan), p.Most)
		}
		moved, begun, s := map[int]bool{}, map[string]int{}, sender{p, map[string]uint64{}}
		turns := make([]int, len(p.Hosts))
		for i := range turns {
			turns[i] = p.Hosts[i].Turns
		}
		for i, m := range plan {
			g, to := &p.Guests[m.Guest], &p.Hosts[m.To]
			switch {
			case moved[m.Guest]:
				t.Fatalf("guest %s moves twice", g.Name)
			case g.Host != m.From || m.From == m.To:
				t.Fatalf("guest %s is on host %d, and moves from %d to %d", g.Name, g.Host, m.From, m.To)
			case g.Stays != "" || p.Forbids(m.Guest, m.Policy) != "":
				t.Fatalf("guest %s must stay", g.Name)
			case to.Closed != "" || p.Hosts[m.From].Closed != "":
				t.Fatalf("guest %s moves from %s to %s, one of which is closed", g.Name, p.Hosts[m.From].Name, to.Name)
			case m.Policy != "pack" && (turns[m.From] <= 0 || turns[m.To] <= 0):
				t.Fatalf("guest %s moves from %s to %s, one of which has no turn left", g.Name, p.Hosts[m.From].Name, to.Name)
			case s.exceeds(m):
				t.Fatalf("the moves of policy %s send too many bytes between two sites", m.Policy)
			case m.Net() < 0.2-1e-9 || m.Why == "":
				t.Fatalf("a proposal gains %v: %q", m.Net(), m.Why)
			}
			if why := placement.Check(g.Request, &to.Host); why != "" {
				t.Fatalf("guest %s moves to %s: %s", g.Name, to.Name, why)
			}
			before, uneven := p.Cost(), spreadCost(p)
			g.Host = m.To
			if after := spreadCost(p); after > uneven && m.Group == 0 {
				t.Fatalf("a cluster gets less even by move %d: %v, then %v", i, uneven, after)
			}
			if after := p.Cost(); m.Group == 0 && (before-after-m.Gain > 1e-6 || m.Gain-(before-after) > 1e-6) {
				t.Fatalf("move %d was to gain %v, and gains %v", i, m.Gain, before-after)
			}
			to.MemoryUsed += gib // the source has the guest until the move ends
			moved[m.Guest] = true
			begun[m.Policy]++
			turns[m.From]--
			turns[m.To]--
		}
		for _, policy := range p.Policies {
			if policy.Left >= 0 && begun[policy.Name] > policy.Left {
				t.Fatalf("policy %s begins %d moves of %d", policy.Name, begun[policy.Name], policy.Left)
			}
		}
	})
}

// two makes two hosts with two processors each.
func two(policy Policy, demands ...float64) *Problem {
	policy.Weight, policy.LeastGain, policy.Horizon, policy.Left = 1, 0.5, 300, -1
	p := &Problem{Most: 10, Policies: []Policy{policy}}
	for _, name := range []string{"a1", "a2"} {
		p.Hosts = append(p.Hosts, Host{Host: placement.Host{Name: name, Site: "a", Connected: true, Cores: 2, MemoryBytes: 100 * gib, Info: &v1.HostInfo{}}, Capacity: 2, Speed: 1, Turns: 10})
	}
	for i, d := range demands {
		p.Guests = append(p.Guests, Guest{Name: fmt.Sprintf("g%d", i), Cluster: "c", Demand: d, Request: &placement.Request{Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: gib}}})
	}
	return p
}

func TestSwapsAreFound(t *testing.T) {
	p := two(Policy{Name: "balance", Term: &Load{}}, 1.4, 1.4, 0.7, 0.7)
	p.Guests[2].Host, p.Guests[3].Host = 1, 1
	plan, _ := p.Plan()
	if len(plan) != 2 || plan[0].Group == 0 || plan[0].Group != plan[1].Group || !strings.Contains(plan[0].Why, "together with guest") {
		t.Errorf("%+v", plan)
	}
}

// Moves that gain only together are told, too, if the policy must not begin them.
func TestMovesThatOnlyGainTogetherAreRefusedTogether(t *testing.T) {
	swap := func() *Problem {
		p := two(Policy{Name: "balance", Term: &Load{}}, 1.4, 1.4, 0.7, 0.7)
		p.Guests[2].Host, p.Guests[3].Host = 1, 1
		return p
	}
	empty := func() *Problem {
		p := two(Policy{Name: "pack", Term: &Pack{MaxLoad: 1, FillTo: 1}}, 0.5, 0.5, 0.5)
		p.Guests[2].Host = 1
		p.Hosts[1].Capacity = 1
		p.Guests[0].Stays = "it stays"
		p.Guests = append(p.Guests, p.Guests[2])
		p.Guests[3].Name = "g3"
		return p
	}
	for name, c := range map[string]struct {
		p      *Problem
		forbid func(p *Problem)
		why    string
	}{
		"a swap, exempt": {swap(), func(p *Problem) { p.Forbids = func(int, string) string { return "the policy exempts it" } }, "the policy exempts it"},
		"a swap, one exempt": {swap(), func(p *Problem) {
			p.Forbids = func(g int, _ string) string { return []string{"", "", "it is exempt", "it is exempt"}[g] }
		}, "it is exempt"},
		"a swap, one left": {swap(), func(p *Problem) { p.Policies[0].Left = 1 }, "it may begin fewer moves now than the 2 that gain together"},
		"a host, exempt":   {empty(), func(p *Problem) { p.Forbids = func(int, string) string { return "the policy exempts it" } }, "the policy exempts it"},
		"a host, one left": {empty(), func(p *Problem) { p.Policies[0].Left = 1 }, "it may begin fewer moves now than the 2 that gain together"},
	} {
		if plan, refused := c.p.Plan(); len(plan) != 2 || len(refused) != 0 {
			t.Fatalf("%s: without a limit, the plan is %+v, refused %+v", name, plan, refused)
		}
		c.forbid(c.p)
		plan, refused := c.p.Plan()
		if len(plan) != 0 || len(refused) != 1 || len(refused[0].With) != 1 || !strings.HasSuffix(refused[0].Why, c.why) || refused[0].Net < 0.5 {
			t.Errorf("%s: the plan is %+v, refused %+v", name, plan, refused)
		}
	}
}

func TestWhereNobodyWaitsNothingMoves(t *testing.T) {
	if plan, _ := two(Policy{Name: "balance", Term: &Load{}}, 0.5, 0.5, 0.5, 0.5).Plan(); len(plan) != 0 {
		t.Errorf("%+v", plan)
	}
}

func TestAClusterWaitsForItsSlowestGuest(t *testing.T) {
	// Three hosts have a cluster's guests. A guest of another cluster slows down the cluster's guest on a2.
	p := two(Policy{Name: "balance", Term: &Load{}}, 1, 1, 1, 2)
	p.Hosts = append(p.Hosts, p.Hosts[0])
	p.Hosts[2].Name = "a3"
	p.Guests[1].Host, p.Guests[2].Host, p.Guests[3].Host, p.Guests[3].Cluster = 1, 2, 1, "other"
	plan, _ := p.Plan()
	if len(plan) != 1 || plan[0].Guest != 1 {
		t.Errorf("the guest of the cluster moves away, to another host of it: %+v", plan)
	}
}

func TestADearMoveIsNotMade(t *testing.T) {
	p := two(Policy{Name: "balance", Term: &Load{}}, 1, 1, 1)
	for i := range p.Guests {
		p.Guests[i].Lost = 1000
	}
	if plan, _ := p.Plan(); len(plan) != 0 {
		t.Errorf("%+v", plan)
	}
	if options := p.Consider(0); len(options) != 1 || options[0].Refuse != "too little is gained" {
		t.Errorf("%+v", options)
	}
}

// Guests that must stay, on hosts that are loaded most, take no others' place in the search.
func TestGuestsThatStayHideNoOthers(t *testing.T) {
	p := two(Policy{Name: "balance", Term: &Load{}}, 1, 1, 1)
	hot := p.Hosts[0]
	hot.Name = "a0"
	p.Hosts = append(p.Hosts, hot)
	for i := range 2 * mostGuests {
		stays := p.Guests[0]
		stays.Name, stays.Cluster, stays.Host, stays.Stays = fmt.Sprint("stays", i), "other", 2, "its cluster is abstract"
		p.Guests = append(p.Guests, stays)
	}
	if plan, _ := p.Plan(); len(plan) != 1 || plan[0].From != 0 {
		t.Errorf("%+v", plan)
	}
}
