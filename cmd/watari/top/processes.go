package top

// processes.go - the view of a run's processes, which the user opens over the picture.

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/internal/printable"
)

// commandLength is how many characters of a run's command are shown.
const commandLength = 200

// view shows the runs, of which the user chooses one, or the processes of a run. A view that the screen has closed asks nothing more.
type view struct {
	run    string // whose processes are shown; empty: the runs are shown
	answer *answer
	chosen int // index of the chosen run
	first  int // first line shown under the heading
}

// answer is the manager's answer to the question of a view.
type answer struct {
	to     *view
	at     time.Time
	runs   []*v1.Run
	guests []*v1.GuestProcesses
	err    error
}

// again repeats the question of a view.
type again struct{ to *view }

// open opens a view, instead of the present one.
func (s *screen) open(v *view) tea.Cmd {
	s.view = v
	return func() tea.Msg { return s.ask(v) }
}

// answered takes an answer for the present view. An answer that has failed leaves the earlier one in place.
func (s *screen) answered(a answer) tea.Cmd {
	if a.to != s.view {
		return nil
	}
	if a.err != nil && s.view.answer != nil {
		a.runs, a.guests, a.at = s.view.answer.runs, s.view.answer.guests, s.view.answer.at
	}
	s.view.answer = &a
	s.view.choose(0)
	return tea.Tick(every, func(time.Time) tea.Msg { return again{a.to} })
}

// choose moves the choice of a run by some lines.
func (v *view) choose(by int) {
	if v.answer != nil {
		v.chosen = max(0, min(v.chosen+by, len(v.answer.runs)-1))
	}
}

// key handles a key while the view is open.
func (v *view) key(s *screen, name string) tea.Cmd {
	switch {
	case name == "esc":
		s.view = nil
	case v.run != "":
		v.first += scroll(name, s.room())
	case name == "enter" && v.answer != nil && len(v.answer.runs) > 0:
		return s.open(&view{run: v.answer.runs[v.chosen].GetMeta().GetName()})
	default:
		v.choose(scroll(name, s.room()))
	}
	return nil
}

// text returns the heading and the body of the view, and the line under them.
func (v *view) text() (lines []string, foot string) {
	title, foot := "runs under way", "esc closes, arrows choose, enter shows the processes"
	if v.run != "" {
		title, foot = "processes of run "+v.run, "esc closes, arrows scroll"
	}
	if v.answer == nil {
		return []string{"watari top   " + title, "", ""}, "asking ...   " + foot
	}
	if v.answer.err != nil {
		foot = client.Brief(v.answer.err) + "   " + foot
	}
	var table bytes.Buffer
	if v.run == "" {
		writeRuns(&table, v.answer, v.chosen)
	} else {
		processes := 0
		for _, g := range v.answer.guests {
			processes += len(g.Processes)
		}
		title += fmt.Sprintf("   %d on %s", processes, output.Count(len(v.answer.guests), "guest"))
		output.Processes(&table, v.answer.guests)
	}
	head := []string{"watari top   " + v.answer.at.Format("15:04:05") + "   " + title, ""}
	return append(head, strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")...), foot
}

// writeRuns writes the runs as a table, with a mark before the chosen one.
func writeRuns(w io.Writer, a *answer, chosen int) {
	t := output.NewTable("RUN", "CLUSTER", "STARTED", "COMMAND")
	for _, r := range a.runs {
		t.Row(r.GetMeta().GetName(), r.GetSpec().GetCluster(), output.Age(a.at, r.GetStarted())+" ago",
			printable.Line(strings.Join(r.GetSpec().GetCommand(), " "), commandLength))
	}
	var table strings.Builder
	t.Write(&table)
	line := -1 // the heading's
	for text := range strings.Lines(table.String()) {
		mark := "  "
		if line == chosen {
			mark = "> "
		}
		fmt.Fprint(w, mark, text)
		line++
	}
}

// running returns the runs that have processes, the latest first.
func running(runs []*v1.Run) []*v1.Run {
	runs = slices.DeleteFunc(runs, func(r *v1.Run) bool { return r.GetState() != v1.RunState_RUN_STATE_RUNNING })
	slices.Reverse(runs)
	return runs
}
