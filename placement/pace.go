package placement

// pace.go - learns from a running program how much hosts compute for it.

const (
	// visible is the ratio at which a difference between hosts counts as one.
	visible = 1.1
	// leastComputing is the part of the time that the guests of the slowest host must compute. A program that mostly waits, for
	// the network perhaps, shows little about the hosts.
	leastComputing = 0.5
)

// Learn corrects the capacities of hosts by what a program has shown whose guests all have the same work. computing has the part of
// the time that the guests of each host computed, in the order of the shares; 0: not known. The guests that wait least are those for
// which the others wait, so a host whose guests wait computes more than these, in proportion. Some waiting cannot be seen: libraries
// may wait in a loop that looks like computing. So a host may compute more than its guests show, and no capacity is lowered for
// that. Learn keeps the sum of the capacities of the hosts with guests. It returns nil if there is nothing to correct.
func Learn(hosts []Share, computing []float64) []float64 {
	most, known := 0.0, 0
	for i, h := range hosts {
		if h.Has > 0 && computing[i] > 0 {
			most, known = max(most, computing[i]), known+1
		}
	}
	if known < 2 || most < leastComputing {
		return nil
	}
	awaited := 0.0 // what the slowest host computes for one guest
	for i, h := range hosts {
		if h.Has > 0 && computing[i]*visible >= most {
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
		if computing[i] > 0 {
			if shown := awaited * most / computing[i] * h.busy(); shown > visible*h.Capacity {
				learnt[i], differ = shown, true
			}
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
