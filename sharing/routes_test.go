package sharing

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func wants(name string) Host { return Host{Name: name, Wants: true} }

func TestRoutes(t *testing.T) {
	for _, c := range []struct {
		name  string
		hosts []Host
		last  string
		want  string // by each host's name: "outside", or its sources
	}{
		{"nobody wants it", []Host{{Name: "a1"}, {Name: "a2"}}, "", ""},
		{"one alone", []Host{wants("a1")}, "", "a1: outside"},
		{"the first by name fetches, whatever the order", []Host{wants("a2"), wants("a1")}, "", "a1: outside; a2: a1"},
		{"the chosen one stays chosen", []Host{wants("a1"), wants("a2")}, "a2", "a1: a2; a2: outside"},
		{"one that fetches already goes on", []Host{wants("a1"), {Name: "a2", Wants: true, Outside: true}}, "", "a1: a2; a2: outside"},
		{"of two that both fetch, the one with more goes on",
			[]Host{{Name: "a1", Wants: true, Outside: true, Have: 5}, {Name: "a2", Wants: true, Outside: true, Have: 7}}, "", "a1: a2; a2: outside"},
		{"what a crash left is not fetched again", []Host{wants("a1"), {Name: "a2", Wants: true, Have: 9}}, "", "a1: a2; a2: outside"},
		{"the chosen one is gone", []Host{wants("a2"), wants("a3")}, "a1", "a2: outside; a3: a2"},
		{"the chosen one does not want it any more", []Host{{Name: "a1"}, wants("a2")}, "a1", "a2: outside"},
		{"a stalled one is relieved by the next", []Host{wants("a1"), {Name: "a2", Wants: true, Idle: StallTime}, wants("a3")}, "a2", "a1: a3; a2: a3; a3: outside"},
		{"the next after the last is the first", []Host{wants("a1"), {Name: "a2", Wants: true, Idle: StallTime}}, "a2", "a1: outside; a2: a1"},
		{"a stalled one that is alone tries on", []Host{{Name: "a1", Wants: true, Idle: time.Hour}}, "a1", "a1: outside"},
		{"one that has it is asked", []Host{wants("a1"), {Name: "a2", Whole: true, Wants: true}}, "a1", "a1: a2; a2: -"},
		{"also one that does not want it any more", []Host{wants("a1"), {Name: "a2", Whole: true}}, "", "a1: a2; a2: -"},
		{"a tree below the chosen one", []Host{wants("a1"), wants("a2"), wants("a3"), wants("a4"), wants("a5"), wants("a6")}, "",
			"a1: outside; a2: a1; a3: a1; a4: a2 a1; a5: a2 a1; a6: a3 a1"},
		{"trees below those that have it", []Host{{Name: "a1", Whole: true}, {Name: "a2", Whole: true}, wants("a3"), wants("a4"), wants("a5"), wants("a6"), wants("a7")}, "",
			"a1: -; a2: -; a3: a1 a2; a4: a1 a2; a5: a2 a1; a6: a2 a1; a7: a3 a1 a2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			routes, root := Routes(c.hosts, c.last)
			if got := text(routes); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			check(t, c.hosts, routes, root)
		})
	}
}

func text(routes map[string]Route) string {
	var lines []string
	for name, r := range routes {
		how := strings.Join(r.Sources, " ")
		if r.Outside {
			how = "outside"
		} else if how == "" {
			how = "-"
		}
		lines = append(lines, name+": "+how)
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// check checks the properties of all routes in a simple way.
func check(t *testing.T, hosts []Host, routes map[string]Route, root string) {
	t.Helper()
	byName, holders, seekers := map[string]Host{}, 0, 0
	for _, h := range hosts {
		byName[h.Name] = h
		if h.Whole {
			holders++
		} else if h.Wants {
			seekers++
		}
	}
	outside, children := 0, map[string]int{}
	for name, r := range routes {
		h := byName[name]
		if r.Outside {
			outside++
			if name != root || h.Whole || !h.Wants {
				t.Errorf("%s fetches from outside: %+v, root %q", name, h, root)
			}
		}
		seeks := h.Wants && !h.Whole
		if seeks && !r.Outside && len(r.Sources) == 0 || !seeks && len(r.Sources) > 0 {
			t.Errorf("%s has sources %v: %+v", name, r.Sources, h)
		}
		if len(r.Sources) > 0 {
			children[r.Sources[0]]++
		}
		for _, source := range r.Sources {
			if source == name || !slices.Contains(routes[source].Readers, name) {
				t.Errorf("%s fetches from %s, which lets in %v", name, source, routes[source].Readers)
			}
		}
		for _, reader := range r.Readers {
			if !slices.Contains(routes[reader].Sources, name) {
				t.Errorf("%s lets in %s, which does not ask it", name, reader)
			}
		}
		// Following the nearest sources leads to content.
		for at, steps := name, 0; seeks && !routes[at].Outside && !byName[at].Whole; steps++ {
			if steps > len(hosts) {
				t.Fatalf("%s waits in a circle: %v", name, routes)
			}
			at = routes[at].Sources[0]
		}
	}
	want := 0
	if holders == 0 && seekers > 0 {
		want = 1
	}
	if outside != want {
		t.Errorf("%d hosts fetch from outside, with %d holders and %d seekers", outside, holders, seekers)
	}
	for name, n := range children {
		if n > FanOut {
			t.Errorf("%d hosts fetch from %s", n, name)
		}
	}
}

// site models hosts that follow their routes, in rounds of one second. The link from outside delivers one unit per
// round to each host that fetches from there.
type site struct {
	hosts   map[string]*Host
	outside map[string]bool // hosts whose link to the outside works
	last    string
	idle    time.Duration
	carried int // units fetched from outside
}

const blobUnits = 40

func (s *site) round(t *testing.T) {
	var hosts []Host
	for _, h := range s.hosts {
		h.Idle = 0
		if h.Name == s.last {
			h.Idle = s.idle
		}
		hosts = append(hosts, *h)
	}
	routes, root := Routes(hosts, s.last)
	check(t, hosts, routes, root)
	if root != s.last {
		s.last, s.idle = root, 0
	}
	before := map[string]uint64{}
	for name, h := range s.hosts {
		before[name] = h.Have
	}
	for name, h := range s.hosts {
		r := routes[name]
		h.Outside = r.Outside
		switch {
		case h.Whole || !h.Wants:
			continue
		case r.Outside && s.outside[name]:
			h.Have++
			s.carried++
			s.idle = 0
		case r.Outside:
			s.idle += time.Second
		default:
			for _, source := range r.Sources {
				if s.hosts[source] != nil && before[source] > h.Have {
					h.Have = min(before[source], h.Have+8)
					break
				}
			}
		}
		h.Whole = h.Have == blobUnits
	}
}

func (s *site) done() bool {
	for _, h := range s.hosts {
		if h.Wants && !h.Whole {
			return false
		}
	}
	return true
}

func newSite(n int) *site {
	s := &site{hosts: map[string]*Host{}, outside: map[string]bool{}}
	for i := range n {
		name := fmt.Sprintf("a%d", i)
		s.hosts[name] = &Host{Name: name, Wants: true}
		s.outside[name] = true
	}
	return s
}

func TestASiteFetchesEachUnitOnceFromOutside(t *testing.T) {
	for n := 1; n <= 17; n++ {
		s := newSite(n)
		rounds := 0
		for ; !s.done(); rounds++ {
			s.round(t)
		}
		if s.carried != blobUnits || rounds > blobUnits+n {
			t.Errorf("%d hosts: %d units in %d rounds", n, s.carried, rounds)
		}
	}
}

// Hosts die with their content, links to the outside break, and the manager forgets its choice. As long as the link of one
// host works, all living hosts get the blob.
func TestBadLuckEndsWithTheBlobEverywhere(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := newSite(2 + random.IntN(8))
		s.outside["a0"] = random.IntN(2) == 0
		sound := fmt.Sprintf("a%d", random.IntN(len(s.hosts)))
		s.outside[sound] = true
		for round := 0; !s.done(); round++ {
			if round > 2000 {
				t.Fatalf("seed %d: not done: %+v", seed, s)
			}
			if round < 100 {
				for name := range s.hosts {
					switch random.IntN(60) {
					case 0:
						if name != sound {
							delete(s.hosts, name)
						}
					case 1:
						s.outside[name] = name == sound || !s.outside[name]
					case 2:
						s.last, s.idle = "", 0 // the manager was restarted
					}
				}
			}
			s.round(t)
		}
	}
}

func TestAChosenHostThatDiesCostsWhatItAloneHad(t *testing.T) {
	s := newSite(3)
	for s.hosts["a0"].Have < 20 {
		s.round(t)
	}
	delete(s.hosts, "a0")
	for !s.done() {
		s.round(t)
	}
	if extra := s.carried - blobUnits; extra > 2 {
		t.Errorf("%d units were carried again", extra)
	}
}
