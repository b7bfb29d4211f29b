package placement

// pace.go - learns from a running program how much hosts compute for it.

const (
	// visible is the ratio at which a difference between hosts counts as one.
	visible = 1.1
	// leastComputing is the part of the time that the guests of the slowest host must compute. A program that mostly waits, for
	// the network perhaps, shows little about the hosts.
	leastComputing = 0.5
	// leastUsed is the part of the time that the guests of each host must compute. Guests that compute less do not wait for the slowest
	// host: the program does not use them.
	leastUsed = 0.05
	// mostLearnt bounds what one measurement changes.
	mostLearnt = 1.5
)

// Learn corrects the capacities of hosts by what a program has shown whose guests all have the same work. computing has the part of
// the time that the guests of each host computed, in the order of the shares; 0: not known. The guests that wait least are those for
// which the others wait, so a host whose guests wait computes more than these, in proportion. Some waiting cannot be seen: libraries
// may wait in a loop that looks like computing. So only capacities of hosts whose guests are seen to wait are raised, each by
// mostLearnt at most. Only ratios count: afterwards all are scaled, so that the hosts with guests have the same sum as before. The
// guest for which the others wait must not be alone on its host: one rank may do something that no other rank does. Learn returns nil
// if there is nothing to correct, or if one host's guests are not known.
func Learn(hosts []Share, computing []float64) []float64 {
	most := 0.0
	for i, h := range hosts {
		if h.Has > 0 {
			if !(computing[i] >= leastUsed && computing[i] <= 1) {
				return nil
			}
			most = max(most, computing[i])
		}
	}
	if most < leastComputing {
		return nil
	}
	awaited := 0.0 // what the slowest host computes for one guest
	for i, h := range hosts {
		if h.Has > 1 && computing[i]*visible >= most {
			if one := h.Capacity / h.busy(); awaited == 0 || one < awaited {
				awaited = one
			}
		}
	}
	learnt, before, after, differ := make([]float64, len(hosts)), 0.0, 0.0, false
	for i, h := range hosts {
		learnt[i] = h.Capacity
		if h.Has == 0 {
			continue
		}
		if shown := awaited * most / computing[i] * h.busy(); shown > visible*h.Capacity {
			learnt[i], differ = min(shown, mostLearnt*h.Capacity), true
		}
		before, after = before+h.Capacity, after+learnt[i]
	}
	if !differ {
		return nil
	}
	for i, h := range hosts {
		if h.Has > 0 {
			learnt[i] *= before / after
		}
	}
	return learnt
}

// busy returns how many guests share the host's capacity. A guest computes on one core, so guests on more cores do not share.
func (h *Share) busy() float64 { return max(float64(h.Has), h.Cores) }
