// Package rebalance proposes moves of running guests to make better use of hosts. It is pure: the use of hosts and guests
// goes in, proposals with their reasons come out. Terms are the costs of a placement: load (balance), occupied hosts (pack),
// uneven clusters (spread), and others. Constraints are what a move must not violate: package placement's filters, a
// cluster's spread, and what the caller forbids.
package rebalance

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	v1 "watari/api/watariv1"
	"watari/placement"
)

// Host is a host, with the resources for its guests.
type Host struct {
	placement.Host
	// Capacity is how many processors' time guests may use, without the use of the owner and the system; more than 0.
	Capacity float64
	Speed    float64 // of a processor, relative to 1; more than 0
	Turns    int     // how many more moves may begin here now, as source or target
	Closed   string  // why no move may begin here now, whatever Turns says; empty: it may
	Measured bool    // a cluster counts on the free processors here: pack adds no guest
}

// Guest is a guest that has a host.
type Guest struct {
	Name, Cluster string
	Host          int     // index; of a moving guest, the target
	Demand        float64 // processors' worth of time that it would use on an idle host
	Request       *placement.Request
	Stays         string  // why no policy may move it now; empty: they may
	Seconds       float64 // that a move within the site takes
	Bytes         uint64  // that a move sends
	Lost          float64 // the work that such a move costs, in seconds of one processor
	LostASecond   float64 // the work that each further second of the move costs
	LostAgain     float64 // the part of Lost that is due to memory that the guest changes during the move
}

// Term is one part of the objective, as a cost. Moved keeps it up to date with the guests' places.
type Term interface {
	// Begin is called first, with the places before any proposal.
	Begin(s *State)
	// Cost returns the whole cost.
	Cost(s *State) float64
	// Gain returns by how much the cost falls if a guest moves to another host.
	Gain(s *State, guest, to int) float64
	// Moved reports that a guest has moved. s shows the move already.
	Moved(s *State, guest, from, to int)
	// Guests returns up to n guests whose moves may begin and may gain most, best first.
	Guests(s *State, n int) []int
	// Targets returns hosts to which a move of the guest may gain, best first. The caller does not change the slice.
	Targets(s *State, guest int) []int
	// Why explains what the move to a host gains. It is called before the move is made.
	Why(s *State, guest, to int) string
}

// emptier is a Term that gains only by several moves together.
type emptier interface {
	// empty returns moves that free a host; nil: none can be freed. may tells whether a guest may move to a host.
	empty(s *State, may func(guest, to int) bool) []step
}

// step is one move.
type step struct{ guest, to int }

// Policy is a term with its administrator's settings.
type Policy struct {
	Name   string
	Term   Term
	Weight float64 // of the term's costs, relative to others
	// LeastGain is the least by which a move must lower the weighted cost of all terms, less the work that it loses.
	LeastGain float64
	// Horizon is the time for which a gain is expected to last, in seconds. Lost work is spread over it.
	Horizon float64
	// Left is how many more moves the policy may begin; negative: any number.
	Left int
	// Exceeds returns why the policy's moves must not send so many more bytes between two sites; empty: they may. nil: there is
	// no bound.
	Exceeds func(from, to string, bytes uint64) string
	// Silent policies propose no moves. Their costs count all the same.
	Silent bool
}

// Problem is the input of a round.
type Problem struct {
	Hosts    []Host
	Guests   []Guest
	Policies []Policy
	// Forbids returns why a policy must not move a guest now; empty: it may. nil: nothing is forbidden.
	Forbids func(guest int, policy string) string
	// Longer returns how many seconds a move to a host takes longer than one within the site. nil: all take equally long.
	Longer func(guest, to int) float64
	Most   int // proposals at most
}

// Refused is a move that gains enough, but that its policy must not begin. Of moves that only gain together, it is one.
type Refused struct {
	Guest, To int
	Policy    string
	Net       float64 // the gain less the cost, of all
	Why       string
	With      []int // the guests that would move with it
}

// move returns how many seconds a guest's move to a host takes, and the work that it costs, in seconds of one processor.
func (p *Problem) move(guest, to int) (seconds, lost float64) {
	g, longer := p.Guests[guest], 0.0
	if p.Longer != nil {
		longer = p.Longer(guest, to)
	}
	return g.Seconds + longer, g.Lost + longer*g.LostASecond
}

// Proposal is a move that gains.
type Proposal struct {
	Guest, From, To int // indexes
	Policy          string
	// Gain is by how much the weighted cost falls. Cost is the work that the move loses, spread over the policy's horizon.
	// For a move of a group, both are those of the whole group.
	Gain, Cost float64
	Seconds    float64 // that the move takes
	// Group is the same for moves that only gain together; 0: the move stands alone.
	Group int
	Why   string
}

// Net is the gain less the cost.
func (p Proposal) Net() float64 { return p.Gain - p.Cost }

const (
	mostGuests = 120 // considered in one search for a move
	mostTarget = 8   // targets for each of them
	mostWalked = 200 // hosts to ask until mostTarget can take it
	mostPairs  = 3000
	mostFreed  = 4  // hosts that a plan frees
	pairGuests = 60 // guests with which a pair of moves begins
	pairHosts  = 6  // targets for each of them
)

// Plan returns proposals, those with the largest gain first, and what would gain enough after them and is refused: single moves, at
// most one of each guest, or else moves that gain together. Each guest moves at most once.
func (p *Problem) Plan() (proposals []Proposal, refused []Refused) {
	s := newState(p)
	groups := 0
	for len(proposals) < p.Most {
		if best := s.bestMove(); best != nil {
			s.take(*best)
			proposals = append(proposals, *best)
			continue
		}
		refused = s.refused
		pair, kept := s.together(refused, func() []Proposal { return s.bestPair(p.Most - len(proposals)) })
		if refused = append(refused, kept...); pair == nil {
			break
		}
		groups++
		for _, m := range pair {
			m.Group = groups
			s.take(m)
			proposals = append(proposals, m)
		}
	}
	for i := range p.Policies {
		for range mostFreed {
			freed, kept := s.together(refused, func() []Proposal { return s.bestGroup(&p.Policies[i], p.Most-len(proposals)) })
			if refused = append(refused, kept...); freed == nil {
				break
			}
			groups++
			for _, m := range freed {
				m.Group = groups
				s.take(m)
				proposals = append(proposals, m)
			}
		}
	}
	return proposals, slices.DeleteFunc(refused, func(r Refused) bool { return s.moved[r.Guest] })
}

// Cost returns the weighted cost of the guests' places.
func (p *Problem) Cost() float64 {
	s := newState(p)
	cost := 0.0
	for _, policy := range p.Policies {
		cost += policy.Weight * policy.Term.Cost(s)
	}
	return cost
}

// Back returns by how much the cost grows if a guest goes back to a host: the gain of its move from there, in the present
// state.
func (s *State) Back(guest, source int) float64 {
	gain, _ := s.gain(guest, source)
	return -gain
}

// gain returns the weighted gain of a move, and the policy that gains most by it.
func (s *State) gain(guest, to int) (sum float64, by *Policy) {
	most := math.Inf(-1)
	for i := range s.Policies {
		policy := &s.Policies[i]
		one := policy.Weight * policy.Term.Gain(s, guest, to)
		sum += one
		if (by == nil || one > most) && !policy.Silent { // a gain may be NaN
			most, by = one, policy
		}
	}
	return sum, by
}

// Move is a guest's move to a host.
type Move struct{ Guest, To int }

// Try makes moves together if they gain more than they cost, spread over a horizon in seconds. It reports whether it made
// them.
func (s *State) Try(moves []Move, horizon float64) bool {
	net := 0.0
	from := make([]int, len(moves))
	for i, m := range moves {
		from[i] = s.At[m.Guest]
		gain, _ := s.gain(m.Guest, m.To)
		_, lost := s.move(m.Guest, m.To)
		net += gain - lost/horizon
		s.shift(m.Guest, m.To)
	}
	if net > 0 {
		return true
	}
	for i := len(moves) - 1; i >= 0; i-- {
		s.shift(moves[i].Guest, from[i])
	}
	return false
}

// enough reports whether a net gain is enough for a policy.
func (p *Policy) enough(net float64) bool { return net >= p.LeastGain && net > 1e-9 }

// may returns why a policy must not begin a guest's move to a host now; empty: it may, or the search is lax.
func (s *State) may(guest, to int, by *Policy) string {
	why := s.forbids(guest, to, by)
	if s.forbidden = s.forbidden || why != ""; s.lax {
		return ""
	}
	return why
}

// exceeds reports whether a policy must not begin so many moves now, and the search is not lax.
func (s *State) exceeds(by *Policy, moves int) bool {
	exceeds := by.Left >= 0 && s.begun[by.Name]+moves > by.Left
	s.forbidden = s.forbidden || exceeds
	return exceeds && !s.lax
}

// forbids returns why a policy must not begin a guest's move to a host now; empty: it may.
func (s *State) forbids(guest, to int, by *Policy) string {
	if by.Left >= 0 && s.begun[by.Name] >= by.Left {
		return "it has begun as many moves as it may"
	}
	if from := s.At[guest]; by.Exceeds != nil && s.site[from] != s.site[to] {
		if why := by.Exceeds(s.Hosts[from].Site, s.Hosts[to].Site, s.sent[s.link(by.Name, from, to)]+s.Guests[guest].Bytes); why != "" {
			return why
		}
	}
	if s.Forbids == nil {
		return ""
	}
	return s.Forbids(guest, by.Name)
}

// refuses returns why a guest cannot move to a host; empty: it can.
func (s *State) refuses(guest, to int) string {
	h := s.host(to)
	if why := placement.Check(s.Guests[guest].Request, &h); why != "" {
		return why
	}
	if s.spreadGain(guest, to) < 0 {
		return "its cluster would be spread less evenly"
	}
	// Messages to another site take long, so a host there would have to be much better. The terms do not know how much.
	if c := &s.Clusters[s.Of[guest]]; len(c.Guests) > 1 && c.sites.of(s.site[to]) == 0 && s.Guests[guest].Request.Spread != spreadSite {
		return "no guest of its cluster is at site " + s.Hosts[to].Site
	}
	return ""
}

// begins reports whether a guest's move may begin now, whichever policy asks for it.
func (s *State) begins(guest int) bool {
	return s.Guests[guest].Stays == "" && !s.moved[guest] && s.turns[s.At[guest]] > 0
}

// targets returns hosts that may take a guest, the most promising first.
func (s *State) targets(guest, most int) (list []int) {
	s.stamp++
	for i := range s.Policies {
		taken := 0
		for walked, to := range s.Policies[i].Term.Targets(s, guest) {
			if taken == most || walked == mostWalked {
				break
			}
			if to == s.At[guest] || s.turns[to] <= 0 || !s.fits(guest, to) || s.seenHost[to] == s.stamp || s.refuses(guest, to) != "" {
				continue
			}
			s.seenHost[to] = s.stamp
			taken++
			list = append(list, to)
		}
	}
	return list
}

// candidates returns the guests whose move may gain.
func (s *State) candidates(n int) (list []int) {
	s.stamp++
	for i := range s.Policies {
		for _, g := range s.Policies[i].Term.Guests(s, n) {
			if s.seenGuest[g] != s.stamp {
				s.seenGuest[g] = s.stamp
				list = append(list, g)
			}
		}
	}
	return list
}

// refuse notes a refused move, if it is the guest's best. The moves of a guest follow each other.
func (s *State) refuse(r Refused) {
	last := len(s.refused) - 1
	switch {
	case last < 0 || s.refused[last].Guest != r.Guest:
		s.refused = append(s.refused, r)
	case r.Net > s.refused[last].Net:
		s.refused[last] = r
	}
}

// bestMove returns the move that gains most; nil: none gains enough. s.refused then has the moves that gain enough but must not
// be made, all of them if it returns nil.
func (s *State) bestMove() (best *Proposal) {
	s.refused = nil
	for _, g := range s.candidates(mostGuests) {
		for _, to := range s.targets(g, mostTarget) {
			gain, by := s.gain(g, to)
			seconds, lost := s.move(g, to)
			cost := lost / by.Horizon
			if !by.enough(gain-cost) || best != nil && gain-cost <= best.Net()+1e-12 {
				continue
			}
			if why := s.may(g, to, by); why != "" {
				s.refuse(Refused{Guest: g, To: to, Policy: by.Name, Net: gain - cost, Why: why})
				continue
			}
			best = &Proposal{Guest: g, From: s.At[g], To: to, Policy: by.Name, Gain: gain, Cost: cost, Seconds: seconds}
		}
	}
	if best != nil {
		best.Why = s.policy(best.Policy).Term.Why(s, best.Guest, best.To)
	}
	return best
}

// bestPair returns the two moves that gain most together, such as a swap of two guests; nil: no pair gains enough.
func (s *State) bestPair(left int) (best []Proposal) {
	if left < 2 {
		return nil
	}
	pairs, net := 0, 0.0
	for _, a := range s.candidates(pairGuests) {
		if pairs >= mostPairs {
			break
		}
		from := s.At[a]
		for _, to := range s.targets(a, pairHosts) {
			first, by := s.gain(a, to)
			if s.may(a, to, by) != "" || s.exceeds(by, 2) {
				continue
			}
			s.trying = true
			s.reserve(a, to, 1)
			s.turn(from, to, 1)
			s.sent[s.link(by.Name, from, to)] += s.Guests[a].Bytes
			s.shift(a, to)
			for _, b := range s.partners(a, from, to) {
				for _, second := range append([]int{from}, s.targets(b, pairHosts)...) {
					if pairs >= mostPairs || second == s.At[b] || s.turns[second] <= 0 || !s.fits(b, second) {
						continue
					}
					pairs++
					more, _ := s.gain(b, second)
					firstSeconds, firstLost := s.move(a, to)
					moreSeconds, moreLost := s.move(b, second)
					cost := (firstLost + moreLost) / by.Horizon
					if gained := first + more - cost; !by.enough(gained) || gained <= net+1e-12 || s.refuses(b, second) != "" || s.may(b, second, by) != "" {
						continue
					}
					net = first + more - cost
					best = []Proposal{
						{Guest: a, From: from, To: to, Policy: by.Name, Gain: first + more, Cost: cost, Seconds: firstSeconds},
						{Guest: b, From: s.At[b], To: second, Policy: by.Name, Gain: first + more, Cost: cost, Seconds: moreSeconds}}
				}
			}
			s.shift(a, from)
			s.sent[s.link(by.Name, from, to)] -= s.Guests[a].Bytes
			s.turn(from, to, -1)
			s.reserve(a, to, -1)
			s.trying = false
		}
	}
	for i := range best {
		best[i].Why = fmt.Sprintf("together with guest %s, which moves from %s to %s", s.Guests[best[1-i].Guest].Name, s.Hosts[best[1-i].From].Name, s.Hosts[best[1-i].To].Name)
	}
	return best
}

// partners returns guests that may move together with a moving guest: the guests of both hosts, and those of its cluster.
func (s *State) partners(guest, from, to int) (list []int) {
	s.stamp++
	s.seenGuest[guest] = s.stamp
	for _, guests := range [][]int{s.On[to], s.On[from], s.Clusters[s.Of[guest]].Guests} {
		for _, g := range guests {
			if s.seenGuest[g] != s.stamp && s.begins(g) {
				s.seenGuest[g] = s.stamp
				list = append(list, g)
			}
		}
	}
	return list
}

// together searches for moves that gain together. If it finds none that policies may begin, it returns what it would find if policies
// might begin all moves, unless a move of that policy was refused already.
func (s *State) together(already []Refused, search func() []Proposal) (found []Proposal, refused []Refused) {
	s.forbidden = false
	if found = search(); found != nil || !s.forbidden {
		return found, nil
	}
	s.lax = true
	moves := search()
	s.lax = false
	if moves == nil || slices.ContainsFunc(already, func(r Refused) bool { return r.Policy == moves[0].Policy }) {
		return nil, nil
	}
	first := Refused{Guest: moves[0].Guest, To: moves[0].To, Policy: moves[0].Policy, Net: moves[0].Net(), Why: s.keeps(moves)}
	for _, m := range moves[1:] {
		first.With = append(first.With, m.Guest)
	}
	return nil, []Refused{first}
}

// keeps returns why a policy must not begin some moves together.
func (s *State) keeps(moves []Proposal) string {
	by, sent := s.policy(moves[0].Policy), maps.Clone(s.sent)
	defer func() { s.sent = sent }()
	for i, m := range moves {
		if why := s.forbids(m.Guest, m.To, by); why != "" && i > 0 {
			return "guest " + s.Guests[m.Guest].Name + ": " + why
		} else if why != "" {
			return why
		}
		s.sent[s.link(by.Name, m.From, m.To)] += s.Guests[m.Guest].Bytes
	}
	return fmt.Sprintf("it may begin fewer moves now than the %d that gain together", len(moves))
}

// bestGroup returns the moves that free one host; nil: no host can be freed, or the moves gain too little.
func (s *State) bestGroup(policy *Policy, left int) (group []Proposal) {
	term, is := policy.Term.(emptier)
	if !is || left <= 0 {
		return nil
	}
	steps := term.empty(s, func(g, to int) bool { return s.fits(g, to) && s.refuses(g, to) == "" && s.may(g, to, policy) == "" })
	if len(steps) == 0 || len(steps) > left || s.exceeds(policy, len(steps)) || s.exceed(steps, policy) {
		return nil
	}
	gain, lost := 0.0, 0.0
	for _, step := range steps {
		one, _ := s.gain(step.guest, step.to)
		gain += one
		seconds, work := s.move(step.guest, step.to)
		lost += work
		m := Proposal{Guest: step.guest, From: s.At[step.guest], To: step.to, Policy: policy.Name, Seconds: seconds, Why: policy.Term.Why(s, step.guest, step.to)}
		group = append(group, m)
		s.shift(step.guest, step.to)
	}
	cost := lost / policy.Horizon
	for i := len(group) - 1; i >= 0; i-- {
		s.shift(group[i].Guest, group[i].From)
	}
	if !policy.enough(gain - cost) {
		return nil
	}
	for i := range group {
		group[i].Gain, group[i].Cost = gain, cost
	}
	return group
}

// exceed reports whether moves together would send more bytes between two sites than the policy's moves may.
func (s *State) exceed(steps []step, by *Policy) bool {
	sent := maps.Clone(s.sent)
	defer func() { s.sent = sent }()
	return slices.ContainsFunc(steps, func(m step) bool {
		if s.may(m.guest, m.to, by) != "" {
			return true
		}
		s.sent[s.link(by.Name, s.At[m.guest], m.to)] += s.Guests[m.guest].Bytes
		return false
	})
}

// Option is a host to which a guest could move.
type Option struct {
	Host   int
	Policy string  // the policy that would gain most
	Net    float64 // the gain less the cost
	Refuse string  // why the guest does not move there; empty: it would
}

// Consider returns the options of a guest on all other hosts, the best first, as if nothing else moved.
func (p *Problem) Consider(guest int) (options []Option) {
	s := newState(p)
	for to := range p.Hosts {
		if to == s.At[guest] {
			continue
		}
		gain, by := s.gain(guest, to)
		_, lost := p.move(guest, to)
		o := Option{Host: to, Policy: by.Name, Net: gain - lost/by.Horizon, Refuse: s.refuses(guest, to)}
		switch {
		case o.Refuse != "":
		case !by.enough(o.Net):
			o.Refuse = "too little is gained"
			if again := p.Guests[guest].LostAgain / by.Horizon; by.enough(o.Net + again) {
				o.Refuse = "too little is gained, because a move sends much memory again that the guest changes meanwhile"
			}
		default:
			o.Refuse = s.may(guest, to, by)
		}
		for _, h := range []int{s.At[guest], to} {
			if o.Refuse == "" && s.turns[h] <= 0 {
				o.Refuse = cmp.Or(p.Hosts[h].Closed, "other moves of host "+p.Hosts[h].Name+" are under way")
			}
		}
		options = append(options, o)
	}
	slices.SortStableFunc(options, func(a, b Option) int {
		return cmp.Or(min(1, len(a.Refuse))-min(1, len(b.Refuse)), cmp.Compare(b.Net, a.Net))
	})
	return options
}

func (s *State) policy(name string) *Policy {
	i := slices.IndexFunc(s.Policies, func(p Policy) bool { return p.Name == name })
	return &s.Policies[i]
}

// spreads reports whether a cluster asks for a spread.
func spreads(spread v1.Spread) bool {
	return spread == v1.Spread_SPREAD_HOST || spread == v1.Spread_SPREAD_SITE
}
