package evidence

import (
	"strings"
	"testing"
)

const log = `time=2026-11-24T08:00:00.100Z level=INFO msg=migration name=md-0-m1 state=reserving message=""
time=2026-11-24T08:00:01.200Z level=INFO msg=migration name=md-0-m1 state=transferring message=""
time=2026-11-24T08:00:01.300Z level=INFO msg=migration name=md-0-m10 state=done message=""
time=2026-11-24T08:00:02.300Z level=INFO msg="agent disconnected" host=a1 reason="it said \"done\""
time=2026-11-24T08:00:05.000+00:00 level=INFO msg=migration name=md-0-m1 state="rolling back" message="the transfer failed: \"broken\""
time=2026-11-24T08:00:06.000Z level=INFO msg=migration name=md-0-m1 state=fai`

func TestStepsAreReadFromALog(t *testing.T) {
	steps := Steps(log, "md-0-m1")
	if len(steps) != 3 {
		t.Fatalf("%d steps of %+v, want 3: the last line is not whole", len(steps), steps)
	}
	last := steps[2]
	if last.State != "rolling back" || last.Message != `the transfer failed: "broken"` || last.At.UnixMilli()%60000 != 5000 {
		t.Errorf("the last step is %+v", last)
	}
}

// path returns the steps of a move that spends one second in each state.
func path(states ...string) (steps []Step) {
	for i, state := range states {
		steps = append(steps, Step{At: second(float64(i)), State: state})
	}
	return steps
}

func TestWhetherAFaultStruck(t *testing.T) {
	whole := []string{"reserving", Transferring, Switching, Resuming, "done"}
	for _, c := range []struct {
		name        string
		steps       []Step
		stage       string
		begun, done float64
		struck      bool
		how         string
	}{
		{"in the middle of the stage", path(whole...), Switching, 2.3, 2.4, true, "then resuming"},
		{"before the stage", path(whole...), Switching, 1.3, 1.4, false, "was transferring"},
		{"after the stage", path(whole...), Switching, 3.3, 3.4, false, "was resuming"},
		{"the stage ended meanwhile", path(whole...), Switching, 2.9, 3.1, false, "not after the fault"},
		{"the stage ended in the same millisecond", path(whole...), Switching, 2.9, 3.0, false, "not after the fault"},
		{"before the move", path(whole...), Transferring, -1, -0.5, false, "had not begun"},
		{"when all was over", path(whole...), Resuming, 9, 9.1, false, "was done"},
		{"the move never left the stage", path(whole[:2]...), Transferring, 1.5, 1.6, false, "nothing shows"},
		{"the fault ended the move at once", path("reserving", Transferring, "rolling back", "failed"), Transferring, 1.9, 2.1, true, "fault's work"},
		{"the fault ended the move later", path("reserving", Transferring, "rolling back", "failed"), Transferring, 1.2, 1.3, true, "rolling back"},
		{"the guest was lost", path("reserving", Transferring, "failed"), Transferring, 1.2, 1.3, true, "then failed"},
		{"a state was stored but not logged", path("reserving", Transferring, Switching, "done"), Switching, 2.5, 2.6, false, "not logged"},
		{"the last state was stored but not logged", path(whole[:4]...), Resuming, 3.5, 3.6, false, "nothing shows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			struck, how := Struck(c.steps, c.stage, second(c.begun), second(c.done))
			if struck != c.struck || !strings.Contains(how, c.how) {
				t.Errorf("struck %v, %q; want %v and %q", struck, how, c.struck, c.how)
			}
		})
	}
}
