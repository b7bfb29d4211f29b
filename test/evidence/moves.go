package evidence

// moves.go - decides from a manager's log whether a fault struck a move in the intended stage.

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Step is a line of a manager's log with the new state of a move. The manager writes it after it has stored the state
// and before any host learns of the state.
type Step struct {
	At             time.Time // truncated to milliseconds
	State, Message string
}

// Stages of a move for faults. They are the manager's names of states.
const (
	Transferring = "transferring"
	Switching    = "switching"
	Resuming     = "resuming"
)

// follows lists the states that may follow a stage. Those after the first end the move and are reached only if
// something fails.
var follows = map[string][]string{
	Transferring: {Switching, "rolling back", "failed", "cancelled"},
	Switching:    {Resuming, "rolling back", "failed", "cancelled"},
	Resuming:     {"done", "failed", "cancelled"},
}

var attribute = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S*)`)

// Steps finds a move's steps in a log of log/slog's TextHandler.
func Steps(log, move string) (steps []Step) {
	for line := range strings.Lines(log) {
		if !strings.HasSuffix(line, "\n") || !strings.Contains(line, " msg=migration ") {
			continue // the last line may be incomplete
		}
		values := map[string]string{}
		for _, m := range attribute.FindAllStringSubmatch(line, -1) {
			value := m[2]
			if plain, err := strconv.Unquote(value); err == nil {
				value = plain
			}
			values[m[1]] = value
		}
		at, err := time.Parse(time.RFC3339, values["time"])
		if err == nil && values["name"] == move {
			steps = append(steps, Step{at, values["state"], values["message"]})
		}
	}
	return steps
}

// Struck reports whether a fault hit a move in a stage, and why. begun is a time before the fault took effect, and done
// a time after it. steps are all steps of the move, which has ended.
//
// The fault hit if the move was in the stage at begun and left it after done. It also hit if the move left the stage
// between the two for a state that only a fault leads to. A killed manager may have stored a state without logging it.
// Then the next state shows it, because it cannot follow the stage.
func Struck(steps []Step, stage string, begun, done time.Time) (struck bool, how string) {
	at := slices.IndexFunc(steps, func(s Step) bool { return s.At.After(begun) })
	if at < 0 {
		at = len(steps)
	}
	if at == 0 {
		return false, "the move had not begun"
	}
	if now := steps[at-1]; now.State != stage {
		return false, fmt.Sprintf("the move was %s when the fault began, since %s", now.State, now.At.Format(clock))
	}
	if at == len(steps) {
		return false, fmt.Sprintf("nothing shows that the move was still %s", stage)
	}
	next, allowed := steps[at], follows[stage]
	how = fmt.Sprintf("%s since %s, fault from %s to %s, then %s at %s", stage, steps[at-1].At.Format(clock), begun.Format(clock),
		done.Format(clock), next.State, next.At.Format(clock))
	if next.Message != "" {
		how += " (" + next.Message + ")"
	}
	switch position := slices.Index(allowed, next.State); {
	case position < 0:
		return false, how + ", which does not follow it: a state between the two was not logged"
	case next.At.After(done):
		return true, how
	case position > 0:
		return true, how + ", which is the fault's work"
	}
	return false, how + ", which is not after the fault"
}

const clock = "15:04:05.000"
