// result.go makes the report: rows, ratios and goals.
package main

import (
	"fmt"
	"slices"
	"strings"

	"watari/bench/report"
)

// row is one way's figures of one size.
type row struct {
	Rail    string      `json:"rail"`
	MPI     string      `json:"mpi,omitempty"` // "": none
	Peer    string      `json:"peer"`          // what carries the messages
	Size    int         `json:"size"`          // bytes
	Metric  string      `json:"metric"`
	Unit    string      `json:"unit"`
	Value   float64     `json:"value"` // median
	Best    float64     `json:"best"`
	Ratio   float64     `json:"ratio,omitempty"` // the same MPI's over PM, or PM's without MPI, divided by this; median of ratios turn by turn
	Spread  report.Stat `json:"spread"`
	RatioOf report.Stat `json:"ratio_spread"`
}

// result is the report.
type result struct {
	report.Header
	Versions map[string]string `json:"versions"`
	Rows     []row             `json:"rows"`
	// The fastest way without PM, and how much more than it the fastest over PM takes: what is aimed at beyond the goals.
	Fastest      string        `json:"fastest"`
	FastestRatio report.Stat   `json:"fastest_ratio"`
	Plots        []string      `json:"plots"`
	Goals        []report.Goal `json:"goals"`
}

var keys = []key{{small, latency}, {large, bandwidth}}

func find(ways []*way, mpi, carrier string) *way {
	i := slices.IndexFunc(ways, func(w *way) bool { return w.mpi == mpi && w.carrier == carrier })
	if i < 0 {
		return &way{}
	}
	return ways[i]
}

func newResult(ways []*way, plots []string) *result {
	r := &result{Header: report.NewHeader("bench-pm", ""), Plots: plots}
	for _, w := range ways {
		over := find(ways, w.mpi, "pm")
		for _, k := range keys {
			if len(w.figures[k]) == 0 {
				continue
			}
			line := row{
				Rail: w.rail, MPI: w.mpi, Peer: w.carrier, Size: k.size, Metric: k.metric, Unit: units[k.metric],
				Value: w.stat(k).Median, Best: w.best[k], Spread: w.stat(k),
			}
			if over != w {
				line.RatioOf = report.Ratios(over.figures[k], w.figures[k])
				line.Ratio = line.RatioOf.Median
			}
			r.Rows = append(r.Rows, line)
		}
	}
	r.fastest(ways)
	r.goals(ways)
	return r
}

// fastest finds the MPI with the shortest way for short messages, over PM and not.
func (r *result) fastest(ways []*way) {
	k := key{small, latency}
	var pm, other *way
	for _, w := range ways {
		if w.mpi == "" {
			continue
		}
		least := &other
		if w.overPM() {
			least = &pm
		}
		if *least == nil || w.stat(k).Median < (*least).stat(k).Median {
			*least = w
		}
	}
	r.Fastest = other.name()
	r.FastestRatio = report.Ratios(pm.figures[k], other.figures[k])
}

func (r *result) goals(ways []*way) {
	atMost := map[string]float64{pypiMPICH: 0.6, intelMPI: 1.0, debianOpenMPI: 1.5}
	for _, mpi := range []string{pypiMPICH, intelMPI, debianOpenMPI} {
		pm := find(ways, mpi, "pm")
		other := find(ways, mpi, pm.against)
		l, b := key{small, latency}, key{large, bandwidth}
		short := strings.ToLower(strings.ReplaceAll(mpi, " ", "_"))
		r.Goals = append(r.Goals,
			report.AtMost(short+"_latency", report.Ratios(pm.figures[l], other.figures[l]).Median, atMost[mpi]),
			report.AtLeast(short+"_bandwidth", report.Ratios(pm.figures[b], other.figures[b]).Median, 1))
	}
	l := key{small, latency}
	flag, pm := find(ways, "", "flag in a cache line"), find(ways, "", "pm")
	r.Goals = append(r.Goals, report.AtMost("pm_against_flag", report.Ratios(pm.figures[l], flag.figures[l]).Median, 1.5))
}

func (r *result) write(out string) error { return report.Write(out, r) }

// print shows the table; a goal that is not met is an error.
func (r *result) print(out string) error {
	fmt.Printf("\n%d bytes: half round trip, us; %d bytes: ping-pong, MB/s (without MPI: one write or copy after another)\n", small, large)
	fmt.Printf("median (least..greatest) of %d turns, each the median of 101 batches; best batch; PM's divided by this\n", len(r.Rows[0].Spread.Runs))
	fmt.Printf("  %-4s %-16s %-22s %8s  %-26s %8s %6s\n", "rail", "MPI", "carrier", "bytes", "median", "best", "ratio")
	for _, line := range r.Rows {
		ratio := ""
		if line.Ratio != 0 {
			ratio = fmt.Sprintf("%.2f", line.Ratio)
		}
		fmt.Printf("  %-4s %-16s %-22s %8d  %-26s %8.3g %6s\n", line.Rail, line.MPI, line.Peer, line.Size,
			fmt.Sprintf("%.4g (%.4g..%.4g)", line.Value, line.Spread.Min, line.Spread.Max), line.Best, ratio)
	}
	fmt.Printf("Fastest MPI over PM, divided by the fastest otherwise (%s): %s\n", r.Fastest, r.FastestRatio)
	fmt.Printf("%s, %d cores, Linux %s; commit %s\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Commit)
	return report.Tell(r.Goals, out)
}
