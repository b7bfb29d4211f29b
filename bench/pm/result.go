// result.go makes the report: rows, ratios and goals.
package main

import (
	"fmt"
	"slices"
	"strings"

	"watari/bench/report"
)

// row has one variant's figures for one size.
type row struct {
	Path    string      `json:"path"` // path between the processes
	Rail    string      `json:"rail"`
	MPI     string      `json:"mpi,omitempty"` // "": no MPI
	Peer    string      `json:"peer"`          // carrier of the messages
	Size    int         `json:"size"`          // bytes
	Metric  string      `json:"metric"`
	Unit    string      `json:"unit"`
	Value   float64     `json:"value"` // median
	Best    float64     `json:"best"`
	Ratio   float64     `json:"ratio,omitempty"` // figure of the same MPI over PM (or of PM without MPI) divided by this one; median of the ratios of all turns
	Spread  report.Stat `json:"spread"`
	RatioOf report.Stat `json:"ratio_spread"`
	// Unfinished has the progress of the turns that had to be ended. Value counts what was done until then.
	Unfinished []string `json:"unfinished,omitempty"`
}

// turns returns how many turns there were, if the figures are per turn.
func (r *row) turns() string {
	if len(r.Spread.Runs) == 0 {
		return ""
	}
	return fmt.Sprintf(", %d turns", len(r.Spread.Runs))
}

// result is the report.
type result struct {
	report.Header
	Versions map[string]string `json:"versions"`
	Skipped  map[string]string `json:"skipped,omitempty"` // by path: why it was not measured
	Rows     []row             `json:"rows"`
	Fastest  []fastest         `json:"fastest"`
	Plots    []string          `json:"plots"`
	Goals    []report.Goal     `json:"goals"`
}

// fastest compares the fastest MPI over PM with the fastest other MPI, on one machine. Beating it is an aim beyond the
// goals.
type fastest struct {
	Metric string      `json:"metric"`
	Size   int         `json:"size"` // bytes
	PM     string      `json:"pm"`
	Other  string      `json:"other"`
	Ratio  report.Stat `json:"ratio"` // PM's figures divided by the other's
}

var keys = []key{{small, latency}, {large, bandwidth}, {large, meanBandwidth}}

// reported returns the keys of the variants and of the curves, in the order of the output.
func reported() []key {
	told := []key{{small, latency}}
	for _, size := range curveSizes {
		told = append(told, key{size, bandwidth})
	}
	return append(told, key{large, meanBandwidth})
}

// ofPM returns the variant with which w is compared: the same MPI over PM, or PM without MPI, which between guests is
// its remote write.
func ofPM(variants []*variant, w *variant) *variant {
	if betweenGuests(w) && w.rail == "verbs" && w.mpi == "" {
		return find(variants, w.path, "", verbsWrite)
	}
	return find(variants, w.path, w.mpi, "pm")
}

func find(variants []*variant, path, mpi, carrier string) *variant {
	i := slices.IndexFunc(variants, func(w *variant) bool { return w.path == path && w.mpi == mpi && w.carrier == carrier })
	if i < 0 {
		return &variant{}
	}
	return variants[i]
}

func newResult(variants []*variant, plots []string, skipped map[string]string) *result {
	r := &result{Header: report.NewHeader("bench-pm", ""), Plots: plots, Skipped: skipped}
	for _, w := range variants {
		over := ofPM(variants, w)
		for _, k := range reported() {
			if len(w.figures[k]) == 0 {
				continue
			}
			line := row{
				Path: w.path, Rail: w.rail, MPI: w.mpi, Peer: w.carrier, Size: k.size, Metric: k.metric, Unit: units[k.metric],
				Value: w.stat(k).Median, Best: w.best[k], Spread: w.stat(k),
			}
			if over != w {
				line.RatioOf = report.Ratios(over.figures[k], w.figures[k])
				line.Ratio = line.RatioOf.Median
			}
			for _, seen := range w.unfinished {
				if seen != "" {
					line.Unfinished = append(line.Unfinished, seen)
				}
			}
			r.Rows = append(r.Rows, line)
		}
	}
	r.Fastest = []fastest{fastestMPI(variants, keys[0]), fastestMPI(variants, keys[1])}
	r.goals(variants)
	r.cableGoals(variants)
	r.guestGoal(variants)
	return r
}

// fastestMPI finds the fastest measured MPIs on one machine, with PM and without.
func fastestMPI(variants []*variant, k key) fastest {
	var pm, other *variant
	for _, w := range variants {
		if w.mpi == "" || w.path != oneMachine || w.carrier == keyless || len(w.figures[k]) == 0 {
			continue
		}
		best := &other
		if w.overPM() {
			best = &pm
		}
		if *best == nil || (w.stat(k).Median < (*best).stat(k).Median) == (k.metric == latency) {
			*best = w
		}
	}
	if pm == nil || other == nil {
		return fastest{Metric: k.metric, Size: k.size}
	}
	return fastest{Metric: k.metric, Size: k.size, PM: pm.name(), Other: other.name(), Ratio: report.Ratios(pm.figures[k], other.figures[k])}
}

func (r *result) goals(variants []*variant) {
	atMost := map[string]float64{pypiMPICH: 0.6, intelMPI: 1.0, debianOpenMPI: 1.5}
	for _, mpi := range []string{pypiMPICH, intelMPI, debianOpenMPI} {
		pm := find(variants, oneMachine, mpi, "pm")
		other := find(variants, oneMachine, mpi, pm.against)
		l, b := key{small, latency}, key{large, bandwidth}
		short := strings.ToLower(strings.ReplaceAll(mpi, " ", "_"))
		r.Goals = append(r.Goals,
			report.AtMost(short+"_latency", report.Ratios(pm.figures[l], other.figures[l]).Median, atMost[mpi]),
			report.AtLeast(short+"_bandwidth", report.Ratios(pm.figures[b], other.figures[b]).Median, 1))
	}
	l := key{small, latency}
	flag, pm := find(variants, oneMachine, "", "flag in a cache line"), find(variants, oneMachine, "", "pm")
	r.Goals = append(r.Goals, report.AtMost("pm_against_flag", report.Ratios(pm.figures[l], flag.figures[l]).Median, 1.5))
}

// cableGoals adds Open MPI's goals over the existing cables. Missing cables are skipped paths.
func (r *result) cableGoals(variants []*variant) {
	goal := func(name, path, carrier string, k key, check func(string, float64, float64) report.Goal, bound float64) {
		ratios := report.Ratios(find(variants, path, debianOpenMPI, "pm").figures[k], find(variants, path, debianOpenMPI, carrier).figures[k])
		g := check(name, ratios.Median, bound)
		g.Met = g.Met && len(ratios.Runs) > 0
		r.Goals = append(r.Goals, g)
	}
	if r.Skipped[whole] == "" {
		best := "tcp BTL"
		if k := keys[1]; find(variants, whole, debianOpenMPI, "libfabric tcp").stat(k).Median > find(variants, whole, debianOpenMPI, best).stat(k).Median {
			best = "libfabric tcp"
		}
		goal("udp_latency_tcp_btl", whole, "tcp BTL", keys[0], report.AtMost, 0.7)
		goal("udp_latency_libfabric", whole, "libfabric tcp", keys[0], report.AtMost, 0.7)
		goal("udp_bandwidth_tcp", whole, best, keys[1], report.AtLeast, 1)
	}
	if r.Skipped[lossy] == "" {
		goal("udp_loss_bandwidth_rxd", lossy, "libfabric udp;ofi_rxd", keys[2], report.AtLeast, 5)
	}
}

// guestGoal checks that shared memory between guests is worthwhile: how much less time a short message takes than over
// the guests' network.
func (r *result) guestGoal(variants []*variant) {
	if r.Skipped[twoGuests] != "" {
		return
	}
	tcp, ivshmem := find(variants, twoGuests, debianOpenMPI, "tcp BTL"), find(variants, twoGuests, debianOpenMPI, "pm")
	ratio := report.Ratios(tcp.figures[keys[0]], ivshmem.figures[keys[0]]).Median
	r.Goals = append(r.Goals, report.AtLeast("tcp_btl_latency_ivshmem", ratio, 100))
}

func (r *result) write(out string) error { return report.Write(out, r) }

// print prints the table. It returns an error if a goal is not met.
func (r *result) print(out string) error {
	fmt.Printf("\n%d bytes: half round trip, us; %d bytes: ping-pong, MB/s (without MPI: one write or copy after another)\n", small, large)
	fmt.Println("median (least..greatest) of the turns, each the median of 101 batches, between guests and over two cables of 3 to 101; best batch; PM's divided by this")
	const columns = "  %-7s %-16s %-22s %8v  %-26s %8s %6s\n"
	path := ""
	for _, line := range r.Rows {
		if line.Path != path {
			path = line.Path
			fmt.Printf("%s%s:\n", headings[path], line.turns())
			fmt.Printf(columns, "rail", "MPI", "carrier", "bytes", "median", "best", "ratio")
		}
		ratio := ""
		if line.Ratio != 0 {
			ratio = fmt.Sprintf("%.2f", line.Ratio)
			if line.Ratio < 0.1 {
				ratio = fmt.Sprintf("%.2g", line.Ratio)
			}
		}
		fmt.Printf(columns, line.Rail, line.MPI, line.Peer, line.Size,
			fmt.Sprintf("%.4g (%.4g..%.4g)", line.Value, line.Spread.Min, line.Spread.Max), fmt.Sprintf("%.3g", line.Best), ratio)
		for _, seen := range line.Unfinished {
			fmt.Printf("%32s%s\n", "", seen)
		}
	}
	for path, why := range r.Skipped {
		fmt.Printf("%s: SKIPPED: %s\n", headings[path], why)
	}
	for _, f := range r.Fastest {
		fmt.Printf("%s of %d bytes on one machine: %s / %s: %s\n", f.Metric, f.Size, f.PM, f.Other, f.Ratio)
	}
	fmt.Printf("%s, %d cores, Linux %s; commit %s\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Commit)
	return report.Tell(r.Goals, out)
}

var headings = map[string]string{
	oneMachine: "Two processes of one machine",
	twoGuests:  "In two guests of one host, emulated; tcp and udp over virtio-net, verbs over rdma_rxe on that, its curves with many on their way",
	whole:      "In two network namespaces joined by a cable",
	twoCables:  "In two network namespaces joined by two cables of 200 Mbit/s each; many writes on their way",
	switching:  "That rails can be left and joined: instructions of a message, sent, received and released; longest gap between messages while that is done 50 times, and the longest time until a rail is left, us",
	lossy:      "The same, 1 % of the packets lost; all bytes by all time",
}
