package locality

// optimise.go - improves a placement by moves and swaps. Like the method of Kernighan and Lin ("An efficient heuristic
// procedure for partitioning graphs", 1970), it also takes steps that make the placement worse, at most one for each guest,
// and keeps the best placement on the way. So it finds groups of guests that have to move together.

import (
	"math"
	"slices"
)

const (
	// starts is how often the search begins: first with the present placement, then where the last pass ended.
	starts = 4
	// maxPasses bounds the passes of a search.
	maxPasses = 12
	// maxWorse ends a pass after so many steps without a new best placement.
	maxWorse = 24
)

// search is a placement that is being improved.
type search struct {
	*Problem
	hosts   []int // candidates; the indexes below are indexes of this list
	home    []int // of each guest; -1: nowhere
	at      []int // of each guest
	sites   []int // of each host, by number
	spread  int   // number of sites
	memory  []uint64
	vcpus   []int
	all     []float64   // traffic of each guest
	toHost  [][]float64 // traffic of each guest with those on each host
	toSite  [][]float64
	rates   [][]float64 // between guests
	allowed [][]bool
	moving  [][]float64 // cost of moving each guest to each host
	locked  []bool
	atSite  []int // number of guests at each site
	onHost  []int // and on each host
}

func newSearch(p *Problem) *search {
	n := len(p.Guests)
	s := &search{Problem: p, hosts: p.candidates(), all: make([]float64, n), locked: make([]bool, n)}
	index := map[int]int{}
	sites := map[string]int{}
	for i, h := range s.hosts {
		host := p.Hosts[h]
		index[h] = i
		if _, known := sites[host.Site]; !known {
			sites[host.Site] = len(sites)
		}
		s.sites = append(s.sites, sites[host.Site])
		s.memory, s.vcpus = append(s.memory, host.Memory), append(s.vcpus, host.VCPUs)
	}
	s.spread = len(sites)
	s.toHost, s.toSite, s.rates = table[float64](n, len(s.hosts)), table[float64](n, s.spread), table[float64](n, n)
	s.allowed, s.moving = table[bool](n, len(s.hosts)), table[float64](n, len(s.hosts))
	for i, g := range p.Guests {
		home := -1
		if g.Host >= 0 {
			home = index[g.Host]
		}
		s.home = append(s.home, home)
		for h, host := range s.hosts {
			s.allowed[i][h] = h == home || home >= 0 && !g.Stays && !p.Hosts[host].Closed && (p.Allowed == nil || p.Allowed(i, host))
			s.moving[i][h] = p.move(i, host)
		}
	}
	s.at = slices.Clone(s.home)
	s.atSite, s.onHost = s.count(s.at)
	for _, t := range p.Traffic {
		if t.A == t.B || s.at[t.A] < 0 || s.at[t.B] < 0 {
			continue
		}
		s.rates[t.A][t.B] += t.Rate
		s.rates[t.B][t.A] += t.Rate
		for _, pair := range [][2]int{{t.A, t.B}, {t.B, t.A}} {
			i, other := pair[0], s.at[pair[1]]
			s.all[i] += t.Rate
			s.toHost[i][other] += t.Rate
			s.toSite[i][s.sites[other]] += t.Rate
		}
	}
	return s
}

func table[T any](rows, columns int) [][]T {
	all := make([]T, rows*columns)
	t := make([][]T, rows)
	for i := range t {
		t[i] = all[i*columns : (i+1)*columns]
	}
	return t
}

// count returns how many guests a placement has at each site and on each host.
func (s *search) count(at []int) (sites, hosts []int) {
	sites, hosts = make([]int, s.spread), make([]int, len(s.hosts))
	for _, h := range at {
		if h >= 0 {
			sites[s.sites[h]]++
			hosts[h]++
		}
	}
	return sites, hosts
}

// cost returns the cost of guest i on a host, with the other guests in their places.
func (s *search) cost(i, h int) float64 {
	site := s.toSite[i][s.sites[h]]
	return s.Distance.WAN*(s.all[i]-site) + s.Distance.Site*(site-s.toHost[i][h]) + s.moving[i][h]
}

// distance is Between for indexes of candidates.
func (s *search) distance(a, b int) float64 { return s.Between(s.hosts[a], s.hosts[b]) }

// step is a move of a guest, or a swap of two.
type step struct {
	a, b int // guests; b is -1: a move
	to   int // of a
}

// best returns the step that costs least; found is false if there is none.
func (s *search) best() (best step, change float64, found bool) {
	change = math.Inf(1)
	for i := range s.Guests {
		if s.locked[i] || s.at[i] < 0 {
			continue
		}
		from := s.at[i]
		now := s.cost(i, from)
		for h := range s.hosts {
			if delta := s.cost(i, h) - now; delta < change && s.canMove(i, h) {
				best, change, found = step{i, -1, h}, delta, true
			}
		}
		for j := i + 1; j < len(s.Guests); j++ {
			to := s.at[j]
			if s.locked[j] || to < 0 || to == from {
				continue
			}
			delta := s.cost(i, to) - now + s.cost(j, from) - s.cost(j, to) + 2*s.rates[i][j]*s.distance(from, to)
			if delta < change && s.canSwap(i, j) {
				best, change, found = step{i, j, to}, delta, true
			}
		}
	}
	return best, change, found
}

func (s *search) canMove(i, h int) bool {
	from, g := s.at[i], &s.Guests[i]
	switch {
	case h == from || !s.allowed[i][h] || s.Keep == KeepCounts:
		return false
	case s.Keep == KeepSites && s.sites[h] != s.sites[from] && s.atSite[s.sites[h]] >= s.atSite[s.sites[from]]:
		return false
	case s.Keep == KeepHosts && s.onHost[h] >= s.onHost[from]:
		return false
	}
	// At home there is always room: its own, unless another guest has come.
	return s.memory[h] >= g.Memory && s.vcpus[h] >= g.VCPUs
}

func (s *search) canSwap(i, j int) bool {
	a, b := s.at[i], s.at[j]
	if !s.allowed[i][b] || !s.allowed[j][a] {
		return false
	}
	fits := func(h int, in, out *Guest) bool {
		left := s.vcpus[h] + out.VCPUs - in.VCPUs
		return s.memory[h]+out.Memory >= in.Memory && (left >= 0 || left >= s.vcpus[h])
	}
	return fits(b, &s.Guests[i], &s.Guests[j]) && fits(a, &s.Guests[j], &s.Guests[i])
}

// take takes a step.
func (s *search) take(t step) {
	from := s.at[t.a]
	s.put(t.a, t.to)
	if t.b >= 0 {
		s.put(t.b, from)
	}
}

func (s *search) put(i, h int) {
	from, g := s.at[i], &s.Guests[i]
	s.memory[from] += g.Memory
	s.vcpus[from] += g.VCPUs
	s.memory[h] -= g.Memory // a swap uses this memory twice for a moment
	s.vcpus[h] -= g.VCPUs
	s.at[i] = h
	s.onHost[from]--
	s.onHost[h]++
	s.atSite[s.sites[from]]--
	s.atSite[s.sites[h]]++
	for j, rate := range s.rates[i] {
		if rate == 0 {
			continue
		}
		s.toHost[j][from] -= rate
		s.toHost[j][h] += rate
		s.toSite[j][s.sites[from]] -= rate
		s.toSite[j][s.sites[h]] += rate
	}
}

// pass takes steps until each guest has had one. It returns the best placement on the way, and whether that is better than
// the first placement.
func (s *search) pass() (best []int, improved bool) {
	clear(s.locked)
	best = slices.Clone(s.at)
	sum, least := 0.0, -1e-9*(1+s.total(s.placement(s.at)))
	for worse := 0; worse < maxWorse; worse++ {
		t, change, found := s.best()
		if !found {
			break
		}
		s.take(t)
		s.locked[t.a] = true
		if t.b >= 0 {
			s.locked[t.b] = true
		}
		if sum += change; sum < least {
			best, least, improved, worse = slices.Clone(s.at), sum, true, 0
		}
	}
	return best, improved
}

// restore puts all guests on the hosts of a placement.
func (s *search) restore(at []int) {
	for i, h := range at {
		if h >= 0 && s.at[i] != h {
			s.put(i, h)
		}
	}
}

// placement translates a placement from indexes of candidates to indexes of the problem's hosts.
func (s *search) placement(candidates []int) []int {
	at := make([]int, len(candidates))
	for i, h := range candidates {
		at[i] = -1
		if h >= 0 {
			at[i] = s.hosts[h]
		}
	}
	return at
}

// Optimise returns a placement that costs less than the present one, including the moves that lead there, or the present
// one. It has room for all guests, but Optimise does not check the room for the moves themselves.
func (p *Problem) Optimise() []int {
	s := newSearch(p)
	return s.placement(s.optimise())
}

func (s *search) optimise() []int {
	best, least := slices.Clone(s.at), s.total(s.placement(s.at))
	for range starts {
		for range maxPasses {
			found, improved := s.pass()
			if !improved {
				break // begin again where the pass ended
			}
			s.restore(found)
			if total := s.total(s.placement(found)); total < least*(1-1e-9) {
				best, least = found, total
			}
		}
	}
	return best
}
