// switching.go has pm/bench/cost find out what it costs that rails can be left and joined.
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
	costSize = 32 // bytes of the messages that are counted
	switches = 50 // in a turn
)

const (
	instructions = "instructions" // per message, sent, received and released
	longestGap   = "longest_gap"  // of a turn's switches, or spans as long
	leaving      = "until_left"   // of a turn's switches
	fixedRails   = "pm, rails fixed"
)

type cost struct{ peer, metric string }

// costs is what pm/bench/cost calls its figures, and what they are here.
var costs = map[string]cost{
	"instructions per message":                       {"pm", instructions},
	"instructions per message where rails are fixed": {fixedRails, instructions},
	"longest gap while a rail is left and joined":    {"pm", longestGap},
	"longest gap in a span as long without":          {"pm, not switching", longestGap},
	"until a rail is left":                           {"pm", leaving},
}

// countCosts counts instructions, and looks for gaps between messages under full load.
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

// addCosts adds what was counted, and the goals: that nobody notices that rails may be left and joined.
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

// readCosts takes CSV: rail, what, value, unit, spread as LEAST..GREATEST; gaps once for each turn, of which the greatest
// counts.
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
