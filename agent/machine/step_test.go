package machine

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

const (
	run      = v1.GuestRole_GUEST_ROLE_RUN
	absent   = v1.GuestRole_GUEST_ROLE_ABSENT
	incoming = v1.GuestRole_GUEST_ROLE_INCOMING
	outgoing = v1.GuestRole_GUEST_ROLE_OUTGOING
)

// The wanted epoch is always 5; records are of 4, 5 or 6.
func wantedGuest(role v1.GuestRole, cancel bool) *v1.GuestWanted {
	w := &v1.GuestWanted{Uid: "u", Name: "md-1", Cluster: "md", Role: role, Epoch: 5}
	if role == incoming || role == outgoing {
		w.Migration = &v1.MigrationOrder{Id: "m", SourceHost: "a1", TargetHost: "b1", Cancel: cancel}
	}
	return w
}

func testRecord(epoch uint64, phase Phase, outcome Outcome) *Record {
	r := &Record{UID: "u", Name: "md-1", Epoch: epoch, Phase: phase, Outcome: outcome}
	switch phase {
	case PhaseReserved, PhaseReceiving, PhaseReceived, PhaseSending:
		r.Migration, r.Source = "m", "a1"
	}
	return r
}

// everyCase calls f with every combination that can occur.
func everyCase(f func(name string, o Observed)) {
	wishes := []struct {
		name   string
		wanted *v1.GuestWanted
	}{
		{"nothing wanted", nil}, {"RUN", wantedGuest(run, false)}, {"ABSENT", wantedGuest(absent, false)},
		{"INCOMING", wantedGuest(incoming, false)}, {"INCOMING cancelled", wantedGuest(incoming, true)},
		{"OUTGOING", wantedGuest(outgoing, false)}, {"OUTGOING cancelled", wantedGuest(outgoing, true)},
	}
	for _, wish := range wishes {
		for _, r := range everyRecord() {
			for _, state := range []domain.State{domain.Absent, domain.Running, domain.Paused, domain.Incoming, domain.Unknown, domain.Starting, domain.Ending} {
				for _, operation := range operationsWith(r) {
					o := Observed{Host: "here", Wanted: wish.wanted, Record: r, Domain: state, Operation: operation}
					name := fmt.Sprintf("%s | %s | %s", wish.name, recordName(r), state)
					if operation != OperationNone {
						name += " | " + string(operation)
					}
					f(name, o)
				}
			}
		}
	}
}

func everyRecord() []*Record {
	records := []*Record{nil}
	for epoch := uint64(4); epoch <= 6; epoch++ {
		for _, phase := range []Phase{PhaseReserved, PhaseReceiving, PhaseReceived, PhaseStarted, PhaseSending} {
			records = append(records, testRecord(epoch, phase, ""))
		}
		for _, outcome := range []Outcome{OutcomeGone, OutcomeFailed, OutcomeSent, OutcomeForgotten} {
			records = append(records, testRecord(epoch, PhaseEnded, outcome))
		}
	}
	return records
}

func operationsWith(r *Record) []Operation {
	switch {
	case r == nil || r.Phase == PhaseEnded:
		return []Operation{OperationNone, OperationPreparing}
	case r.Phase == PhaseStarted:
		return []Operation{OperationNone, OperationStarting}
	case r.Phase == PhaseSending:
		return []Operation{OperationNone, OperationSending}
	}
	return []Operation{OperationNone}
}

func recordName(r *Record) string {
	if r == nil {
		return "no record"
	}
	name := fmt.Sprintf("%d %s", r.Epoch, r.Phase)
	if r.Outcome != "" {
		name += " " + string(r.Outcome)
	}
	if r.RanOn {
		name += ", ran on"
	}
	return name
}

func decisionText(d Decision) string {
	var parts []string
	for _, action := range d.Actions {
		text := string(action.Kind)
		if action.Record != nil {
			text += "(" + recordName(action.Record) + ")"
		}
		parts = append(parts, text)
	}
	if d.Problem != "" {
		parts = append(parts, "refused: "+d.Problem)
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func reportText(o Observed) string {
	r, ok := Describe(o)
	if !ok {
		return "nothing"
	}
	return fmt.Sprintf("%d %s", r.Epoch, strings.TrimPrefix(r.Condition.String(), "GUEST_CONDITION_"))
}

// TestEveryCase compares every case with testdata/step.txt; go test ./agent/machine -rewrite writes that file anew, for
// review.
func TestEveryCase(t *testing.T) {
	var got strings.Builder
	got.WriteString("wanted epoch 5 | record | domain [| operation]: act => report\n")
	everyCase(func(name string, o Observed) {
		fmt.Fprintf(&got, "%s: %s => %s\n", name, decisionText(Step(o)), reportText(o))
	})
	compareGolden(t, "testdata/step.txt", got.String())
}

func compareGolden(t *testing.T, path, got string) {
	t.Helper()
	if flag.Lookup("rewrite").Value.String() == "true" { // package datadriven has defined it
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		g, w := "", ""
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if g != w {
			t.Fatalf("%s:%d\n got %s\nwant %s", path, i+1, g, w)
		}
	}
}

// TestNeverTwo checks on every case, with everything prepared or not, the rules that keep a guest from running twice.
func TestNeverTwo(t *testing.T) {
	everyCase(func(name string, o Observed) {
		for _, prepared := range []uint64{0, 5} {
			for _, failure := range []Failure{{}, {Epoch: 5, NeverRan: true, Final: true}, {Epoch: 4, Message: "m"}} {
				for _, damaged := range []bool{false, true} {
					o.Prepared, o.Failure, o.Damaged = prepared, failure, damaged
					if why := unsafe(o, Step(o)); why != "" {
						t.Errorf("%s: %s: %s", name, decisionText(Step(o)), why)
					}
				}
			}
		}
	})
}

// unsafe returns what is wrong with a decision.
func unsafe(o Observed, d Decision) string {
	r := o.Record
	granted := o.Wanted != nil && (o.Wanted.Role == run || o.Wanted.Role == outgoing)
	state := o.Domain
	for _, action := range d.Actions {
		switch action.Kind {
		case ActionRecord:
			if r != nil && action.Record.Epoch < r.Epoch {
				return "an older epoch replaces a newer one"
			}
			if r != nil && r.Phase == PhaseEnded && action.Record.Epoch == r.Epoch && action.Record.Phase != PhaseEnded {
				return "an ended epoch comes to life"
			}
			if action.Record.Phase == PhaseStarted && (o.Wanted == nil || action.Record.Epoch != o.Wanted.Epoch || o.Wanted.Role != run) {
				return "started without the grant"
			}
			r = action.Record
		case ActionStart:
			switch {
			case state != domain.Absent || o.Operation == OperationStarting || o.Operation == OperationSending:
				return "started beside another"
			case o.Wanted == nil || o.Wanted.Role != run:
				return "started without the grant"
			case o.Record != nil && o.Record.Epoch >= o.Wanted.Epoch:
				return "an epoch is started again"
			case r == nil || r == o.Record || r.Phase != PhaseStarted || r.Epoch != o.Wanted.Epoch:
				return "started without a record"
			}
		case ActionResume:
			if !granted || state != domain.Paused || r == nil || r.Phase != PhaseStarted || r.Epoch != o.Wanted.Epoch {
				return "resumed without the grant or its record"
			}
		case ActionSend:
			if !granted || o.Wanted.Role != outgoing || r.Phase != PhaseSending || r.Epoch != o.Wanted.Epoch || state != domain.Running {
				return "sent without order or record"
			}
		case ActionDestroy:
			if granted && r != nil && r.Epoch == o.Wanted.Epoch && (r.Phase == PhaseStarted || r.Phase == PhaseSending) {
				return "the wanted guest is ended"
			}
			if o.Wanted != nil && r != nil && r.Epoch > o.Wanted.Epoch && (r.Phase == PhaseStarted || r.Phase == PhaseSending) {
				return "a newer epoch is touched"
			}
			state = domain.Absent
		}
	}
	return ""
}

// TestStepsEnd follows each case's decisions, with acts that succeed, and checks that they end.
func TestStepsEnd(t *testing.T) {
	everyCase(func(name string, o Observed) {
		if o.Domain == domain.Unknown || o.Domain == domain.Starting || o.Domain == domain.Ending {
			return
		}
		for range 12 {
			d := Step(o)
			if len(d.Actions) == 0 {
				return
			}
			for _, action := range d.Actions {
				o = pretend(o, action)
			}
		}
		t.Errorf("%s: goes on for ever, lastly %s", name, decisionText(Step(o)))
	})
}

// pretend applies an act to an observed state.
func pretend(o Observed, action Action) Observed {
	switch action.Kind {
	case ActionRecord:
		o.Record = action.Record
	case ActionPrepare:
		o.Prepared = o.Wanted.Epoch
	case ActionStart, ActionResume:
		o.Domain, o.Prepared = domain.Running, 0
	case ActionDestroy:
		o.Domain = domain.Absent
	case ActionSend:
		o.Operation = OperationSending
	case ActionInterrupt:
		o.Operation = OperationNone
	}
	return o
}

// After a failed transfer the guest runs on at its source. If it ends there before the manager hears of that, its record says that it ran
// on: the manager would take the target's older copy for the guest otherwise.
func TestAGuestThatRanOnAfterItsTransferIsKnownToHaveDoneSo(t *testing.T) {
	sending := Observed{Host: "a1", Record: &Record{UID: "u", Name: "md-0", Epoch: 4, Phase: PhaseSending, Migration: "m"}}
	for name, c := range map[string]struct {
		change func(o *Observed)
		ranOn  bool
	}{
		"its lease has ended":            {func(o *Observed) { o.Lapsed, o.Domain = true, domain.Running }, true},
		"it was resumed, and ended":      {func(o *Observed) { o.Resumed, o.Domain = true, domain.Absent }, true},
		"it stopped, and ended":          {func(o *Observed) { o.Domain = domain.Absent }, false},
		"it was sent":                    {func(o *Observed) { o.SendDone, o.Domain = true, domain.Absent }, false},
		"it ended, and lapsed by now":    {func(o *Observed) { o.Lapsed, o.Domain = true, domain.Absent }, false},
		"it was resumed, then it lapsed": {func(o *Observed) { o.Lapsed, o.Resumed, o.Domain = true, true, domain.Absent }, true},
	} {
		o := sending
		c.change(&o)
		var ended *Record
		for _, a := range Step(o).Actions {
			if a.Kind == ActionRecord {
				ended = a.Record
			}
		}
		if ended == nil || ended.Phase != PhaseEnded || ended.RanOn != c.ranOn {
			t.Errorf("%s: the record is %+v", name, ended)
		}
	}
}
