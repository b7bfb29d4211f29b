package agent

// report.go - makes the host's report.

import (
	"slices"
	"time"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/internal/protocol"
)

// Observed returns the host's present report, and a channel that is closed when the report changes.
func (a *Agent) Observed() (*v1.HostObserved, <-chan struct{}) {
	a.mu.Lock()
	changed := a.changed
	o := a.machine.Report(time.Now())
	o.Instance, o.Protocol, o.Info, o.Load, o.Epochs = a.instance, protocol.Version, a.info, a.load, a.records.epochs.list()
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
	o.Problems = append(o.Problems, a.limits.problems()...)
	o.Problems = append(o.Problems, a.alone.problems()...)
	o.Problems = append(o.Problems, a.leases.problems()...)
	o.Problems = append(o.Problems, a.storage.problems()...)
	if a.config.SampleProblems != nil {
		o.Problems = append(o.Problems, a.config.SampleProblems()...)
	}
	o.Paths = a.network.Paths()
	o.Images = a.images.Held()
	o.Sharing, o.Blobs, o.FetchBytesPerSecond = true, a.images.Blobs(), a.images.Rate()
	o.Templates = a.templates.report()
	o.Checkpoints = a.checkpoints.report()
	o.Volumes, o.KeepsVolumes = a.volumes.report(), a.volumes.able
	o.VolumeCopies, o.MovesVolumes, o.TriesVolumes = a.volumes.reportCopies(), a.volumes.able, true
	a.logProblems(o.Problems)
	return o, changed
}

// logProblems logs the problems that the last report did not have.
func (a *Agent) logProblems(problems []string) {
	a.mu.Lock()
	before := a.logged
	a.logged = problems
	a.mu.Unlock()
	for _, problem := range problems {
		if !slices.Contains(before, problem) {
			a.log.Warn("problem reported", "problem", problem)
		}
	}
}

// Publish makes the host report again. The caller has changed something that the report shows.
func (a *Agent) Publish() { a.publish() }

// publish wakes the sessions that wait for a new report.
func (a *Agent) publish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.publishLocked()
}

func (a *Agent) publishLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}
