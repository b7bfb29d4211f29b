package output

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	v1 "watari/api/watariv1"
	"watari/internal/printable"
)

// processName and processMessage bound the texts that come from guests, in characters.
const (
	processName    = 32
	processMessage = 200
)

// Processes writes the processes of a run as a table, by rank; those that are part of no rank come last. A guest that has not
// answered has a row with the reason.
func Processes(w io.Writer, guests []*v1.GuestProcesses) {
	type row struct {
		rank  uint64
		cells []string
	}
	var rows []row
	for _, g := range guests {
		for _, p := range g.Processes {
			one := row{rank: math.MaxUint64}
			rank := ""
			if p.Rank != nil {
				one.rank, rank = uint64(*p.Rank), fmt.Sprint(*p.Rank)
			}
			one.cells = []string{rank, g.Guest, g.Host, fmt.Sprint(p.Pid), printable.Line(p.Name, processName), processState(p.State),
				fmt.Sprintf("%.0f %%", 100*p.Cpu), Short(time.Duration(min(p.CpuTimeNs, math.MaxInt64))), Size(p.MemoryBytes), ""}
			rows = append(rows, one)
		}
		message := printable.Line(g.Error, processMessage)
		if g.Omitted > 0 {
			message = fmt.Sprintf("and %d more", g.Omitted)
		}
		if message != "" {
			rows = append(rows, row{rank: math.MaxUint64, cells: []string{"", g.Guest, g.Host, "", "", "", "", "", "", message}})
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.rank, b.rank) })
	t := NewTable("RANK", "GUEST", "HOST", "PID", "COMMAND", "STATE", "CPU", "TIME", "MEMORY", "MESSAGE")
	for _, one := range rows {
		t.Row(one.cells...)
	}
	t.Write(w)
}

// processState returns the word for a letter of proc(5).
func processState(letter string) string {
	switch letter {
	case "R":
		return "running"
	case "S", "I":
		return "sleeping"
	case "D":
		return "waiting"
	case "T", "t":
		return "stopped"
	case "Z", "X":
		return "ended"
	}
	return printable.Line(letter, 1)
}
