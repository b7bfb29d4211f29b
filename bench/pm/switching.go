// switching.go has pm/bench/cost find out what it costs that rails can be left and joined.
package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"watari/bench/report"
)

const switching = "one machine, rails left and joined" // path

const costSize = 32 // bytes of the messages that are counted

const (
	instructions = "instructions" // per message, sent, received and released
	longestGap   = "longest_gap"  // of each of 50 switches, or spans as long
	fixedRails   = "pm, rails fixed"
)

// costs is what pm/bench/cost calls its figures, and what they are here.
var costs = map[string]struct{ peer, metric string }{
	"instructions per message":                       {"pm", instructions},
	"instructions per message where rails are fixed": {fixedRails, instructions},
	"longest gap while a rail is left and joined":    {"pm", longestGap},
	"longest gap in a span as long without":          {"pm, not switching", longestGap},
}

// countCosts counts instructions, and looks for gaps between messages under full load.
func (b *bench) countCosts(ctx context.Context) ([]row, error) {
	fmt.Println("== what it costs that rails can be left and joined")
	if _, err := exec.LookPath("valgrind"); err != nil {
		b.skip(switching, "this machine lacks valgrind (Debian package valgrind)")
		return nil, nil
	}
	if _, err := run(ctx, "make", "-s", "-C", "pm", "BUILD="+b.build, b.build+"/cost"); err != nil {
		return nil, err
	}
	out, err := run(ctx, "pm/bench/cost", b.build)
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

// readCosts takes CSV: rail, what, value, unit, spread as LEAST..GREATEST.
func readCosts(out string) ([]row, error) {
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read pm/bench/cost's answer: %w", err)
	}
	var rows []row
	for _, line := range lines {
		of, known := costs[line[1]]
		if !known {
			continue
		}
		value, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			return nil, fmt.Errorf("read pm/bench/cost's answer: %w", err)
		}
		spread := report.Stat{Median: value, Min: value, Max: value, Unit: line[3]}
		if line[4] != "" {
			if _, err := fmt.Sscanf(line[4], "%g..%g", &spread.Min, &spread.Max); err != nil {
				return nil, fmt.Errorf("read pm/bench/cost's answer: spread %q: %w", line[4], err)
			}
		}
		rows = append(rows, row{Path: switching, Rail: line[0], Peer: of.peer, Size: costSize, Metric: of.metric,
			Unit: line[3], Value: value, Best: spread.Min, Spread: spread})
	}
	if len(rows) != len(costs) {
		return nil, fmt.Errorf("read pm/bench/cost's answer: %d figures of %d", len(rows), len(costs))
	}
	return rows, nil
}
