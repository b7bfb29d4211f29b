package main

// real.go - clusters of real guests in a lab of two hosts: the time until they are ready, and that of their first run.

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"watari/bench/report"
	"watari/bench/system"
)

const (
	realMemory  = "160M" // memory of a guest
	realCluster = "scale"
	realGoal    = 1.1 // exponent
)

// realReport is about clusters of real guests. One cluster exists at a time. The hosts have the image and a template.
type realReport struct {
	Memory  string             `json:"guest_memory"`
	Results []*realResult      `json:"results"`
	Growth  map[string]float64 `json:"growth_exponents,omitempty"` // growth of each figure's median with the number of guests
}

// realResult is about clusters of one size.
type realResult struct {
	Guests int         `json:"guests"`
	Ready  report.Stat `json:"ready_s"`     // from the command that creates the cluster until all guests are ready
	Run    report.Stat `json:"first_run_s"` // first run in the cluster: hostname, on each guest
}

// measureReal measures clusters of the given sizes in turn, and repeats this runs times.
func measureReal(ctx context.Context, sizes []int, runs int) (*realReport, error) {
	s, err := system.UpSite("bench-scale")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return nil, err
	}
	fmt.Println("== templates: one guest on each host, not measured")
	if _, _, err := oneReal(s, 2, "--spread", "host"); err != nil {
		return nil, err
	}
	ready, ran := make([][]float64, len(sizes)), make([][]float64, len(sizes))
	for i := range runs {
		for j, guests := range sizes {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			a, b, err := oneReal(s, guests)
			if err != nil {
				return nil, fmt.Errorf("%d real guests, run %d: %w", guests, i+1, err)
			}
			fmt.Printf("%d real guests, run %d: ready after %.2f s, first run %.2f s\n", guests, i+1, a.Seconds(), b.Seconds())
			ready[j], ran[j] = append(ready[j], a.Seconds()), append(ran[j], b.Seconds())
		}
	}
	r := &realReport{Memory: realMemory}
	for j, guests := range sizes {
		r.Results = append(r.Results, &realResult{guests, report.Summarize("s", ready[j]...), report.Summarize("s", ran[j]...)})
	}
	r.grow()
	return r, nil
}

// oneReal makes a cluster, runs hostname on each guest, and removes the cluster.
func oneReal(s *system.System, guests int, how ...string) (ready, ran time.Duration, err error) {
	args := append([]string{"cluster", "create", realCluster, "--guests", fmt.Sprint(guests), "--memory", realMemory, "--image", s.Image, "--wait"}, how...)
	begin := time.Now()
	if _, err := s.Watari(args...); err != nil {
		return 0, 0, err
	}
	ready = time.Since(begin)
	begin = time.Now()
	out, err := s.Watari("run", realCluster, "--", "hostname")
	if err != nil {
		return 0, 0, err
	}
	ran = time.Since(begin)
	names := strings.Fields(out)
	for i := range guests {
		if name := fmt.Sprintf("%s-%d", realCluster, i); !slices.Contains(names, name) {
			return 0, 0, fmt.Errorf("hostname did not run on %s: %s", name, out)
		}
	}
	_, err = s.Watari("cluster", "delete", realCluster, "--wait")
	return ready, ran, err
}

// grow computes the exponents of growth.
func (r *realReport) grow() {
	if len(r.Results) < 2 {
		return
	}
	var x, ready, ran []float64
	for _, one := range r.Results {
		x, ready, ran = append(x, float64(one.Guests)), append(ready, one.Ready.Median), append(ran, one.Run.Median)
	}
	r.Growth = map[string]float64{"real_ready": exponent(x, ready), "real_first_run": exponent(x, ran)}
}

// judge compares the growth with the goal.
func (r *realReport) judge() []report.Goal {
	var goals []report.Goal
	for _, name := range []string{"real_ready", "real_first_run"} {
		if b, known := r.Growth[name]; known {
			goals = append(goals, report.AtMost("exponent of "+name, b, realGoal))
		}
	}
	return goals
}

func (r *realReport) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nreal guests of %s, two hosts\tready\tfirst run\n", r.Memory)
	for _, one := range r.Results {
		fmt.Fprintf(w, "%d\t%s\t%s\n", one.Guests, one.Ready, one.Run)
	}
	w.Flush()
	for _, name := range []string{"real_ready", "real_first_run"} {
		if b, known := r.Growth[name]; known {
			fmt.Fprintf(out, "%s grows with exponent %.2f\n", name, b)
		}
	}
}
