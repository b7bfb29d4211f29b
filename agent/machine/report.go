package machine

// report.go - what the host reports of its guests.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// Report is what the host reports of its guests now: guests, term, generation and problems; the caller fills in the rest.
// Ready is set where it is for the guest's own agent to say: the caller clears it where that does not answer. Process is set
// where the guest's end is not established: SeeProcesses corrects that.
func (m *Machine) Report(now time.Time) *v1.HostObserved {
	m.now = now
	o := &v1.HostObserved{Term: m.full.term, Generation: m.full.generation, Stamp: m.terms.stamp, Problems: append([]string(nil), m.problems...)}
	if err := m.terms.unread; err != nil {
		o.Problems = append(o.Problems, fmt.Sprintf("no orders are followed, for they may be an older manager's: %v", err))
	}
	if m.refused != "" {
		o.Problems = append(o.Problems, m.refused)
	}
	for _, g := range m.sorted() {
		if r := m.report(g); r != nil {
			o.Guests = append(o.Guests, r)
		}
		o.Problems = append(o.Problems, m.problemsOf(g)...)
	}
	if err := m.domains.err; err != nil {
		o.Problems = append(o.Problems, fmt.Sprintf("libvirt cannot be reached; guests run on: %v", err))
	}
	return o
}

// SeeProcesses marks the guests of which a process is there. The process table is looked at after the report was made, so
// that a guest that was seen to have ended has no process any more. A guest that only the table shows is reported without
// epoch and condition: its record was not read yet. Where the table could not be read whole, the guests that it shows are
// marked, and those whose end is not established otherwise.
func SeeProcesses(o *v1.HostObserved, processes map[string][]int, err error) {
	if o.ProcessesUnknown = err != nil; err != nil && len(o.Guests) > 0 {
		o.Problems = append(o.Problems, fmt.Sprintf("any guest that was here, and is not known to have ended, may run: %v", err))
	}
	reported := map[string]bool{}
	for _, g := range o.Guests {
		g.Process = err != nil && g.Process || len(processes[g.Uid]) > 0
		reported[g.Uid] = true
	}
	for _, uid := range slices.Sorted(maps.Keys(processes)) {
		if !reported[uid] && len(processes[uid]) > 0 {
			o.Guests = append(o.Guests, &v1.GuestObserved{Uid: uid, Process: true})
		}
	}
}

// report is what the manager is told of a guest; nil: nothing of it is here.
func (m *Machine) report(g *guest) *v1.GuestObserved {
	if g.reading != 0 && g.unread == nil {
		return nil // its orders do not count as taken up until its record is known
	}
	o, info := m.observe(g)
	if o.Operation == OperationNone {
		o.Operation = g.upcoming()
	}
	r, ok := Describe(o)
	if !ok {
		return nil
	}
	if r.Condition == v1.GuestCondition_GUEST_CONDITION_RESERVED && g.expected == "" {
		r.Condition = v1.GuestCondition_GUEST_CONDITION_STARTING // the tunnel would refuse it yet
	}
	observed := &v1.GuestObserved{Uid: g.uid, Name: g.name, Epoch: r.Epoch, Condition: r.Condition, Message: r.Message,
		BootId: g.record.bootID(), MigrationId: r.Migration, CpuTimeNs: info.CPUTimeNS, MemoryBytes: info.MemoryBytes, Step: g.step,
		Facts: cmp.Or(g.record.known(), g.wanted.GetFacts())}
	switch r.Condition {
	case v1.GuestCondition_GUEST_CONDITION_RUNNING, v1.GuestCondition_GUEST_CONDITION_SENDING,
		v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
		observed.Ready = true
	}
	observed.Process = g.record == nil || g.record.Phase != PhaseEnded || info.State != domain.Absent && info.State != domain.Unknown
	if g.untold() && info.State == domain.Absent && g.op == nil {
		observed.Condition, observed.Epoch, observed.Message = v1.GuestCondition_GUEST_CONDITION_FAILED, g.failure.Epoch, untoldMessage(g)
	}
	if observed.Message == "" {
		observed.Message = g.trouble
	}
	if r.Migration != "" {
		observed.Progress = g.progress
	}
	if r.Condition == v1.GuestCondition_GUEST_CONDITION_GONE && g.record != nil {
		observed.LastLines = g.record.LastLines
	}
	if !g.stoppedAt.IsZero() {
		observed.StoppedUnixNs = g.stoppedAt.UnixNano()
	}
	if !g.resumedAt.IsZero() {
		observed.ResumedUnixNs = g.resumedAt.UnixNano()
	}
	return observed
}

// upcoming is the operation that the script is about to begin. It keeps reports from showing a state that lasts only
// between two acts.
func (g *guest) upcoming() Operation {
	for _, action := range g.script {
		switch action.Kind {
		case ActionSend:
			return OperationSending
		case ActionStart:
			return OperationStarting
		}
	}
	return OperationNone
}

// untold tells whether the wanted epoch could not begin here, and the disk refuses the record of that. It is reported as
// failed from memory. After a crash this agent knows nothing of the failure, but no orders can have it begin the epoch then:
// those of earlier managers are refused, for the manager believes this report only of an agent that is bound to its own term,
// and its own orders follow from what it decided by this report.
func (g *guest) untold() bool {
	f := g.failure
	return f.Final && f.Epoch == g.wanted.GetEpoch() && g.trouble != "" && (g.record == nil || g.record.Epoch < f.Epoch)
}

func untoldMessage(g *guest) string {
	return fmt.Sprintf("%s; this host's disk takes no record of that (%s)", g.failure.Message, g.trouble)
}

// problemsOf are a guest's lines of the host's problems.
func (m *Machine) problemsOf(g *guest) []string {
	list := append([]string(nil), g.notes...)
	if g.unread != nil {
		list = append(list, g.unread.Error())
	}
	if g.refused != "" {
		list = append(list, g.refused)
	}
	switch {
	case g.untold():
		list = append(list, fmt.Sprintf("guest %s: %s", g.name, untoldMessage(g)))
	case g.trouble != "":
		list = append(list, fmt.Sprintf("guest %s: %s", g.name, g.trouble))
	}
	return list
}

// Progress says how far the transfer of a guest has come.
func (m *Machine) Progress(now time.Time, uid string, p *v1.MigrationProgress) {
	m.now = now
	if g := m.guests[uid]; g != nil {
		g.progress = p
	}
}

// SetStep says what is being done about a guest, for people who wait; true: that is new.
func (m *Machine) SetStep(now time.Time, uid, step string) bool {
	m.now = now
	g := m.guests[uid]
	if g == nil || g.step == step {
		return false
	}
	g.step = step
	return true
}
