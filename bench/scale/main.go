// Scale measures how a manager copes with many hosts and guests. It runs a real manager with its embedded etcd, and
// simulated agents. Each agent has its own certificate, connection and Sync stream; its guests exist only in memory.
// For each number of hosts, Scale measures the time to place 64 guests, to fill the hosts with guests and to drain
// hosts, and the manager's load while nothing happens. From all numbers of hosts it computes how these figures grow.
//
// Then Scale starts clusters of real guests in a lab of two hosts. For each number of guests, it measures the time until
// they are ready and the time of the first run.
//
// It writes build/reports/bench-scale.json, and its final table to bench-scale.txt beside it.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"watari/bench/report"
)

// guestsPerHost is the default number of guests per host.
const guestsPerHost = 10

// goalHosts is the number of hosts for which the goals hold.
const goalHosts = 1000

type scaleReport struct {
	report.Header
	Simulated map[string]float64 `json:"simulated_ms,omitempty"` // durations of the hosts' work
	Results   []*result          `json:"results,omitempty"`
	Growth    map[string]float64 `json:"growth_exponents,omitempty"` // growth of each figure with the number of hosts and guests
	NLogN     float64            `json:"n_log_n_exponent,omitempty"` // exponent of n log n over the same numbers of hosts
	Real      *realReport        `json:"real,omitempty"`
	Goals     []report.Goal      `json:"goals"`
}

// options are the command's options.
type options struct {
	sizes   []int
	guests  int
	real    []int // sizes of clusters of real guests
	runs    int   // of each of these
	only    string
	manager string
	out     string
	plan    plan
}

func main() {
	log.SetOutput(io.Discard) // net/http logs connections that end; they are counted instead
	o, err := parse()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err = bench(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

func parse() (options, error) {
	hosts := flag.String("hosts", "100,300,1000,3000", "numbers of hosts, each measured by itself")
	guests := flag.Int("guests", 0, "guests (default: 10 for each host)")
	realSizes := flag.String("real", "4,8,16,32,64", "numbers of real guests, each measured by itself")
	runs := flag.Int("runs", 2, "repetitions of each number of real guests")
	only := flag.String("only", "", "measure one part alone: simulated, with simulated hosts; real, with real guests in a lab (root)")
	quick := flag.Bool("quick", false, "simulated hosts alone, of these 100 with 1,000 guests, and fewer repetitions: less than two minutes")
	manager := flag.String("manager", "build/bin/watari", "program that is the manager")
	limit := flag.Duration("limit", 10*time.Minute, "time after which a phase is given up")
	out := flag.String("out", "build/reports/bench-scale.json", "the report")
	flag.Parse()
	o := options{guests: *guests, runs: *runs, only: *only, manager: *manager, out: *out, plan: plan{
		limit: *limit, creations: 30, samples: 6, sample: 10 * time.Second, quiet: 10 * time.Second, drained: 50, concurrency: 4,
	}}
	if *quick {
		*hosts, o.only = "100", "simulated"
		o.plan.creations, o.plan.samples, o.plan.sample, o.plan.quiet, o.plan.limit = 5, 3, 5*time.Second, 5*time.Second, min(*limit, time.Minute)
	}
	if *only != "" && *only != "simulated" && *only != "real" {
		return o, fmt.Errorf("-only %s: not simulated or real", *only)
	}
	var err error
	if o.sizes, err = numbers("hosts", *hosts); err != nil {
		return o, err
	}
	o.real, err = numbers("real", *realSizes)
	return o, err
}

// numbers parses a flag's list of numbers.
func numbers(name, list string) ([]int, error) {
	var all []int
	for _, text := range strings.Split(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-%s %s: not a list of numbers", name, list)
		}
		all = append(all, n)
	}
	return all, nil
}

func bench(ctx context.Context, o options) error {
	r := scaleReport{Header: report.NewHeader("bench-scale", "make bench-scale")}
	if o.only != "real" {
		if err := r.simulate(ctx, o); err != nil {
			return err
		}
	}
	if o.only != "simulated" {
		var err error
		if r.Real, err = measureReal(ctx, o.real, o.runs); err != nil {
			return err
		}
		r.Goals = append(r.Goals, r.Real.judge()...)
	}
	if err := report.Write(o.out, r); err != nil {
		return err
	}
	var text bytes.Buffer
	r.print(&text)
	os.Stdout.Write(text.Bytes())
	if err := os.WriteFile(strings.TrimSuffix(o.out, filepath.Ext(o.out))+".txt", text.Bytes(), 0o644); err != nil {
		return err
	}
	return report.Tell(r.Goals, o.out)
}

// simulate measures the manager with simulated hosts.
func (r *scaleReport) simulate(ctx context.Context, o options) error {
	r.Simulated = map[string]float64{
		"start": milliseconds(startTime), "ready": milliseconds(readyTime), "reserve": milliseconds(reserveTime),
		"transfer": milliseconds(transferTime), "resume": milliseconds(resumeTime), "end": milliseconds(endTime),
		"report_every": milliseconds(reportEvery),
		"sample_every": milliseconds(sampleEvery),
	}
	for _, hosts := range o.sizes {
		guests := o.guests
		if guests == 0 {
			guests = guestsPerHost * hosts
		}
		one, err := measure(ctx, o.manager, hosts, guests, o.plan)
		if err != nil {
			return fmt.Errorf("%d hosts: %w", hosts, err)
		}
		r.Results = append(r.Results, one)
		// Write the report now, so that it is kept if a larger number of hosts fails.
		if err := report.Write(o.out, r); err != nil {
			return err
		}
	}
	r.grow()
	r.judge()
	return report.Write(o.out, r)
}

// grow computes the exponents of growth of the figures that exist for each number of hosts.
func (r *scaleReport) grow() {
	var x []float64
	y := map[string][]float64{}
	for _, one := range r.Results {
		x = append(x, float64(one.Hosts))
		// Minimum times are disturbed least by other work on the machine.
		y["place_64_without_etcd"] = append(y["place_64_without_etcd"], one.Deciding.Min)
		y["place_64_by_api"] = append(y["place_64_by_api"], one.Placing.Min)
		if one.Fill.Done {
			y["fill"] = append(y["fill"], one.Fill.Seconds)
			y["fill_manager_cpu"] = append(y["fill_manager_cpu"], one.Fill.CPU)
			y["steady_cpu"] = append(y["steady_cpu"], one.CPU.Median)
			y["steady_memory"] = append(y["steady_memory"], one.Memory.Median)
		}
	}
	if len(x) < 2 {
		return
	}
	r.Growth, r.NLogN = map[string]float64{}, nLogN(x)
	for name, figures := range y {
		if len(figures) < len(x) {
			continue // the figure does not exist for each number of hosts
		}
		if b := exponent(x, figures); !math.IsNaN(b) && !math.IsInf(b, 0) {
			r.Growth[name] = b
		}
	}
}

// judge compares the figures with the goals for 1,000 hosts, and the growth with n log n.
func (r *scaleReport) judge() {
	for _, one := range r.Results {
		if one.Hosts != goalHosts {
			continue
		}
		filled := []report.Goal{report.AtMost("all guests ready, s", one.Fill.Seconds, 180),
			report.AtMost("steady state, % of a core", one.CPU.Median, 20), report.AtMost("steady state, MiB", one.Memory.Max, 1024)}
		for i := range filled {
			filled[i].Met = filled[i].Met && one.Fill.Done
		}
		r.Goals = append(append(r.Goals, report.AtMost("place 64 without etcd, p99, ms", one.Deciding.P99, 50)), filled...)
	}
	for _, name := range []string{"place_64_without_etcd", "fill", "steady_cpu", "steady_memory"} {
		if r.NLogN == 0 {
			break
		}
		b, known := r.Growth[name]
		goal := report.AtMost("exponent of "+name, b, math.Round(100*r.NLogN)/100)
		goal.Met = goal.Met && known
		r.Goals = append(r.Goals, goal)
	}
}

func (r *scaleReport) print(out io.Writer) {
	if r.Results != nil {
		r.printSimulated(out)
	}
	if r.Real != nil {
		r.Real.print(out)
	}
}

func (r *scaleReport) printSimulated(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nhosts\tguests\tplace 64, no etcd\tplace 64, by API\tall guests ready\tdrain\tsteady CPU\tsteady memory\n")
	for _, one := range r.Results {
		fmt.Fprintf(w, "%d\t%d\tp50 %.3g, p99 %.3g ms\tp50 %.3g, p99 %.3g ms\t%s\t%d guests: %s\t%s\t%s\n", one.Hosts, one.Guests,
			one.Deciding.P50, one.Deciding.P99, one.Placing.P50, one.Placing.P99, one.Fill, one.Moved, one.Drain, one.CPU, one.Memory)
	}
	w.Flush()
	for _, name := range []string{"place_64_without_etcd", "place_64_by_api", "fill", "fill_manager_cpu", "steady_cpu", "steady_memory"} {
		if b, known := r.Growth[name]; known {
			fmt.Fprintf(out, "%s grows with exponent %.2f (n log n: %.2f)\n", name, b, r.NLogN)
		}
	}
}
