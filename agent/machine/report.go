package machine

// report.go - the machine's part of the host's report.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// Report returns the guests, term, generation and problems of the host's report; the caller fills in the rest. Report
// sets Ready for each guest that runs; the caller clears it if the guest agent does not answer. Report sets Process for
// each guest whose end is not established; SeeProcesses corrects it.
func (m *Machine) Report(now time.Time) *v1.HostObserved {
	m.now = now
	o := &v1.HostObserved{Term: m.full.term, Generation: m.full.generation, Stamp: m.terms.stamp, Problems: append([]string(nil), m.problems...)}
	if err := m.terms.unread; err != nil {
		o.Problems = append(o.Problems, fmt.Sprintf("orders are ignored, because they may come from an older manager: %v", err))
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

// SeeProcesses sets Process for each guest that has a process. The caller reads the process table after it made the
// report, so that a guest that the report shows as ended has no process in the table. A guest that only the table shows
// is added without epoch and condition, because its record has not been read. If err says that the table is incomplete,
// Process also stays set for guests whose end is not established.
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

// report returns a guest's part of the report; nil: nothing of the guest is here.
func (m *Machine) report(g *guest) *v1.GuestObserved {
	if g.reading != 0 && g.unread == nil {
		return nil // a guest takes no step before its record is known, so no report counts its orders as carried out
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
		r.Condition = v1.GuestCondition_GUEST_CONDITION_STARTING // the tunnel does not admit the transfer yet
	}
	observed := &v1.GuestObserved{Uid: g.uid, Name: g.name, Epoch: r.Epoch, Condition: r.Condition, Message: r.Message,
		BootId: g.record.bootID(), MigrationId: r.Migration, RanOn: r.RanOn, CpuTimeNs: info.CPUTimeNS, MemoryBytes: info.MemoryBytes, Step: g.step,
		Facts: cmp.Or(g.record.known(), g.wanted.GetFacts())}
	switch r.Condition {
	case v1.GuestCondition_GUEST_CONDITION_RUNNING, v1.GuestCondition_GUEST_CONDITION_SENDING,
		v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
		observed.Ready = true
	}
	observed.Process = g.record == nil || g.record.Phase != PhaseEnded || info.State != domain.Absent && info.State != domain.Unknown
	if g.failedWithoutRecord() && info.State == domain.Absent && g.op == nil {
		observed.Condition, observed.Epoch, observed.Message = v1.GuestCondition_GUEST_CONDITION_FAILED, g.failure.Epoch, failedWithoutRecordMessage(g)
	}
	observed.Refused = observed.Condition == v1.GuestCondition_GUEST_CONDITION_FAILED && g.failure.Refused && g.failure.Epoch == observed.Epoch
	observed.Broken = observed.Condition == v1.GuestCondition_GUEST_CONDITION_GONE && g.broken(observed.Epoch)
	if observed.Message == "" {
		observed.Message = g.trouble
	}
	if r.Migration != "" {
		observed.Progress = g.progress
	}
	if r.Condition == v1.GuestCondition_GUEST_CONDITION_GONE && g.record != nil {
		observed.LastLines = g.record.LastLines
	}
	observed.HandedOver = r.Condition == v1.GuestCondition_GUEST_CONDITION_SENDING && g.handedOver
	if !g.stoppedAt.IsZero() {
		observed.StoppedUnixNs = g.stoppedAt.UnixNano()
	}
	if !g.receivedAt.IsZero() {
		observed.ReceivedUnixNs = g.receivedAt.UnixNano()
	}
	if !g.resumedAt.IsZero() {
		observed.ResumedUnixNs = g.resumedAt.UnixNano()
	}
	return observed
}

// upcoming returns the operation that the script is about to begin. Without it a report could show a state that lasts
// only between two acts.
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

// failedWithoutRecord reports whether the wanted epoch could not begin here, and the disk refuses the record of that
// failure. The guest is then reported as failed from memory. After a crash the agent has forgotten the failure, but no
// orders can make it begin the epoch. The manager believes this report only if the agent is bound to the manager's
// term, so the agent refuses the orders of earlier managers. The manager's own later orders follow from its decision on
// this report.
func (g *guest) failedWithoutRecord() bool {
	f := g.failure
	return f.Final && f.Epoch == g.wanted.GetEpoch() && g.trouble != "" && (g.record == nil || g.record.Epoch < f.Epoch)
}

func failedWithoutRecordMessage(g *guest) string {
	return fmt.Sprintf("%s; this host's disk takes no record of that (%s)", g.failure.Message, g.trouble)
}

// problemsOf returns a guest's lines in the host's problems.
func (m *Machine) problemsOf(g *guest) []string {
	list := append([]string(nil), g.notes...)
	if g.unread != nil {
		list = append(list, g.unread.Error())
	}
	if g.refused != "" {
		list = append(list, g.refused)
	}
	switch {
	case g.failedWithoutRecord():
		list = append(list, fmt.Sprintf("guest %s: %s", g.name, failedWithoutRecordMessage(g)))
	case g.trouble != "":
		list = append(list, fmt.Sprintf("guest %s: %s", g.name, g.trouble))
	}
	return list
}

// Progress sets the progress of a guest's transfer.
func (m *Machine) Progress(now time.Time, uid string, p *v1.MigrationProgress) {
	m.now = now
	if g := m.guests[uid]; g != nil {
		g.progress = p
	}
}

// SetStep sets the text that tells waiting people what the agent is doing about a guest; true: the text has changed.
func (m *Machine) SetStep(now time.Time, uid, step string) bool {
	m.now = now
	g := m.guests[uid]
	if g == nil || g.step == step {
		return false
	}
	g.step = step
	return true
}
