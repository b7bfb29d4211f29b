// switching.go runs pm/bench/cost to measure the cost of PM's ability to leave and join rails.
package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"watari/bench/report"
)

const switching = "one machine, rails left and joined" // path

const (
	costSize = 32 // size of the counted messages in bytes
	switches = 50 // switches per turn
)

const (
	instructions = "instructions" // per message, sent, received and released
	longestGap   = "longest_gap"  // longest gap in a turn's switches, or in spans of the same length
	leaving      = "until_left"   // time until a rail is left, in a turn's switches
	fixedRails   = "pm, rails fixed"
)

type cost struct{ peer, metric string }

// costs maps the names in pm/bench/cost's output to the names in the report.
var costs = map[string]cost{
	"instructions per message":                       {"pm", instructions},
	"instructions per message where rails are fixed": {fixedRails, instructions},
	"longest gap while a rail is left and joined":    {"pm", longestGap},
	"longest gap in a span as long without":          {"pm, not switching", longestGap},
	"until a rail is left":                           {"pm", leaving},
}

// countCosts counts instructions, and measures gaps between messages under full load.
func (b *bench) countCosts(ctx context.Context, turns int) ([]row, error) {
	fmt.Println("== what it costs that rails can be left and joined")
	if _, err := exec.LookPath("valgrind"); err != nil {
		b.skip(switching, "this machine lacks valgrind (Debian package valgrind)")
		return nil, nil
	}
	if _, err := run(ctx, "make", "-s", "-C", "pm", "BUILD="+b.build, b.build+"/cost"); err != nil {
		return nil, err
	}
	out, err := run(ctx, "pm/bench/cost", b.build, strconv.Itoa(switches), strconv.Itoa(turns))
	if err != nil {
		return nil, err
	}
	return readCosts(out)
}

// addCosts adds the counts and the goals: leaving and joining rails must not be noticeable.
func (r *result) addCosts(rows []row) {
	if len(rows) == 0 {
		return
	}
	r.Rows = append(r.Rows, rows...)
	value := func(peer, metric string) report.Stat {
		i := slices.IndexFunc(rows, func(r row) bool { return r.Peer == peer && r.Metric == metric })
		return rows[i].Spread
	}
	more := value("pm", instructions).Median - value(fixedRails, instructions).Median
	r.Goals = append(r.Goals,
		report.AtMost("switchable_instructions", math.Round(more), 10),
		report.AtMost("switch_gap_ms", value("pm", longestGap).Median/1000, 5))
}

// readCosts parses CSV: rail, what, value, unit, spread as LEAST..GREATEST. There is one line of gaps for each turn;
// the longest gap counts.
func readCosts(out string) ([]row, error) {
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read pm/bench/cost's answer: %w", err)
	}
	runs := map[cost][]float64{}
	for _, line := range lines {
		of, known := costs[line[1]]
		if !known {
			continue
		}
		value := line[2]
		if _, greatest, found := strings.Cut(line[4], ".."); found {
			value = greatest
		}
		figure, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("read pm/bench/cost's answer: %w", err)
		}
		runs[of] = append(runs[of], figure)
	}
	var rows []row
	for _, what := range slices.Sorted(maps.Keys(costs)) {
		of := costs[what]
		if len(runs[of]) == 0 {
			return nil, fmt.Errorf("read pm/bench/cost's answer: no %s", what)
		}
		spread := report.Summarize(units[of.metric], runs[of]...)
		rows = append(rows, row{Path: switching, Rail: "shm", Peer: of.peer, Size: costSize, Metric: of.metric,
			Unit: units[of.metric], Value: spread.Median, Best: spread.Min, Spread: spread})
	}
	return rows, nil
}
