package agent

// report.go - what the host reports, and what it knows of all its guests together.

import (
	"fmt"
	"slices"

	v1 "watari/api/watariv1"
	"watari/internal/protocol"
)

// Observed is what the host reports now, and a channel that is closed when that has changed.
func (a *Agent) Observed() (*v1.HostObserved, <-chan struct{}) {
	a.mu.Lock()
	changed := a.changed
	guests := a.allLocked()
	taken := a.taken
	o := &v1.HostObserved{Protocol: protocol.Version, Info: a.info, Load: a.load, Problems: slices.Clone(a.problems)}
	if a.refused != "" {
		o.Problems = append(o.Problems, a.refused)
	}
	a.mu.Unlock()

	all := a.domains.heard() // nothing is said to be so while it is not known which guests are here
	for _, g := range guests {
		g.mu.Lock()
		all = all && (g.unread != nil || !g.seen.before(taken)) // one that cannot be read is reported as such
		g.mu.Unlock()
	}
	for _, g := range guests {
		if r := g.report(); r != nil {
			o.Guests = append(o.Guests, r)
		}
		o.Problems = append(o.Problems, g.problems()...)
	}
	a.seeProcesses(o)
	a.mu.Lock()
	if all && a.full.before(taken) {
		a.full = taken
	}
	o.Term, o.Generation = a.full.term, a.full.generation
	a.mu.Unlock()
	var problem string
	o.NetworkGeneration, problem = a.networks.state()
	if problem != "" {
		o.Problems = append(o.Problems, problem)
	}
	for _, problem := range a.network.Problems() {
		o.Problems = append(o.Problems, "network: "+problem)
	}
	if err := a.domains.problem(); err != nil {
		o.Problems = append(o.Problems, fmt.Sprintf("libvirt cannot be reached; guests run on: %v", err))
	}
	o.Problems = append(o.Problems, a.templates.problems(guests)...)
	o.Images = a.images.Held()
	o.Sharing, o.Blobs, o.FetchBytesPerSecond = true, a.images.Blobs(), a.images.Rate()
	o.Templates = a.templates.report()
	return o, changed
}

// seeProcesses marks the guests of which a process is there. It looks after everything else was observed, so that a guest
// that was seen to have ended has no process any more.
func (a *Agent) seeProcesses(o *v1.HostObserved) {
	if len(o.Guests) == 0 {
		return
	}
	processes, err := a.config.Processes()
	if err != nil {
		o.Problems = append(o.Problems, fmt.Sprintf("any guest that was here may run: %v", err))
	}
	for _, g := range o.Guests {
		g.Process = err != nil || len(processes[g.Uid]) > 0
	}
}

// Publish has the host report again: something outside of the agent changed.
func (a *Agent) Publish() { a.publish() }

// publish tells those who report that something changed.
func (a *Agent) publish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.publishLocked()
}

func (a *Agent) publishLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// localGuests are those whose addresses are to be routed to their taps: they hold the grant, or the manager
// already routes their address here.
func (a *Agent) localGuests() []NetworkGuest {
	a.mu.Lock()
	guests := a.allLocked()
	a.mu.Unlock()
	here := a.networks.routedHere(a.config.Name)
	var local []NetworkGuest
	for _, g := range guests {
		n, plugged := g.local()
		if plugged && (g.role() == v1.GuestRole_GUEST_ROLE_RUN || here(n.Address)) {
			local = append(local, n)
		}
	}
	return local
}

// room checks that there is memory for a guest beside those that are on their way here.
func (a *Agent) room(asking *guest, need uint64) error {
	a.mu.Lock()
	guests := a.allLocked()
	a.mu.Unlock()
	var reserved uint64
	for _, g := range guests {
		if g == asking {
			continue
		}
		g.mu.Lock()
		if g.record != nil && (g.record.Phase == PhaseReserved || g.record.Phase == PhaseReceiving) {
			reserved += g.record.MemoryBytes
		}
		g.mu.Unlock()
	}
	if free := a.config.FreeMemory(); free < need+reserved+memoryMargin {
		return &memoryError{need, free, reserved}
	}
	return nil
}
