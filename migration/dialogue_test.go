package migration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	v1 "watari/api/watariv1"
)

// Dialogues in testdata consist of the hosts' reports and the decisions. `go test -rewrite` writes the decisions anew; check
// the difference.
//
//	step source=running target=reserved     conditions; "dead", "removed", "away", "none" are hosts'; gone-ran-on, gone-process
//	cancel                                   asked for by a person
func TestDialogues(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		m := &v1.Migration{Source: "a1", Target: "b1", SourceEpoch: 4, TargetEpoch: 5, State: v1.MigrationState_MIGRATION_STATE_PENDING}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "cancel":
				m.Cancel = true
				return "ok"
			case "step":
				o := Observed{Turn: !d.HasArg("wait"), RoutesSet: !d.HasArg("routes-missing"), Unwanted: d.HasArg("unwanted")}
				if d.HasArg("late") {
					o.InState = time.Hour
				}
				for _, arg := range d.CmdArgs {
					switch arg.Key {
					case "source":
						o.Source = dialogueHost(t, arg.Vals[0], m.SourceEpoch)
					case "target":
						o.Target = dialogueHost(t, arg.Vals[0], m.TargetEpoch)
					}
				}
				decision := Step(m, o)
				m.State, m.Message = decision.State, decision.Message
				return describe(decision)
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func dialogueHost(t *testing.T, word string, epoch uint64) Host {
	h := Host{Connected: true, Current: true}
	switch word {
	case "none":
		return h
	case "dead":
		return Host{Connected: true, Current: true, Dead: true}
	case "removed":
		return Host{Dead: true, Fenced: true, Away: time.Minute}
	case "away":
		return Host{Away: time.Minute}
	}
	word, ranOn := strings.CutSuffix(word, "-ran-on")
	word, process := strings.CutSuffix(word, "-process")
	condition, found := v1.GuestCondition_value["GUEST_CONDITION_"+strings.ToUpper(strings.ReplaceAll(word, "-", "_"))]
	if !found {
		t.Fatalf("unknown condition %s", word)
	}
	h.Guest = &v1.GuestObserved{Epoch: epoch, Condition: v1.GuestCondition(condition), Message: "host's words", RanOn: ranOn, Process: process}
	return h
}

func describe(d Decision) string {
	source, target := Roles(d.State)
	role := func(r v1.GuestRole) string {
		return strings.ToLower(strings.TrimPrefix(r.String(), "GUEST_ROLE_"))
	}
	text := fmt.Sprintf("%s: source %s, target %s", strings.ToLower(strings.TrimPrefix(d.State.String(), "MIGRATION_STATE_")), role(source), role(target))
	if Ended(d.State) {
		text = strings.ToLower(strings.TrimPrefix(d.State.String(), "MIGRATION_STATE_"))
	}
	switch d.Grant {
	case GrantToTarget:
		text += "; the grant passes to the target"
	case GrantLost:
		text += "; the guest is lost"
	}
	if d.Message != "" {
		text += "\n" + d.Message
	}
	return text
}
