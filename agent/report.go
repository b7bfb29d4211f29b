package agent

// report.go - what the host reports.

import (
	"slices"
	"time"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/internal/protocol"
)

// Observed is what the host reports now, and a channel that is closed when that has changed.
func (a *Agent) Observed() (*v1.HostObserved, <-chan struct{}) {
	a.mu.Lock()
	changed := a.changed
	o := a.machine.Report(time.Now())
	o.Protocol, o.Info, o.Load, o.Epochs = protocol.Version, a.info, a.load, a.records.epochs.list()
	for _, g := range o.Guests {
		g.OutOfMemory = a.guests[g.Uid].identity.outOfMemory()
		g.Ready = g.Ready && a.guests[g.Uid].identity.ready()
	}
	guests := a.machine.Guests()
	a.mu.Unlock()

	processes, err := a.config.Processes(a.ctx)
	machine.SeeProcesses(o, processes, err)
	var problem string
	o.NetworkGeneration, problem = a.networks.state()
	if problem != "" {
		o.Problems = append(o.Problems, problem)
	}
	for _, problem := range a.network.Problems() {
		o.Problems = append(o.Problems, "network: "+problem)
	}
	o.Problems = append(o.Problems, a.templates.problems(guests)...)
	o.Images = a.images.Held()
	o.Sharing, o.Blobs, o.FetchBytesPerSecond = true, a.images.Blobs(), a.images.Rate()
	o.Templates = a.templates.report()
	a.logProblems(o.Problems)
	return o, changed
}

// logProblems logs the problems that were not there the last time.
func (a *Agent) logProblems(problems []string) {
	a.mu.Lock()
	before := a.told
	a.told = problems
	a.mu.Unlock()
	for _, problem := range problems {
		if !slices.Contains(before, problem) {
			a.log.Warn("problem reported", "problem", problem)
		}
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
