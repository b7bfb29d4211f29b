// Balance repeats an experiment of the paper "MPI environment on the grid": three MPI jobs of 4, 2 and 2 ranks, with one
// rank per guest, start on two of four hosts, with and without the policy that balances load. It writes
// build/reports/bench-balance.json.
//
// All hosts of the lab are on one machine. Each is limited to a part of a CPU, so that four of them fit on two.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"watari/bench/report"
	"watari/bench/system"
)

type balanceReport struct {
	report.Header
	CPUs    float64       `json:"cpus"`  // of each host
	Steps   int           `json:"steps"` // of LAMMPS
	Jobs    []job         `json:"jobs"`
	Without report.Stat   `json:"sum_without_s"` // of the three jobs' times
	With    report.Stat   `json:"sum_with_s"`
	Ratio   report.Stat   `json:"with_by_without"`
	Moves   report.Stat   `json:"moves"`
	Goals   []report.Goal `json:"goals"`
}

// job is one MPI program.
type job struct {
	Ranks   int         `json:"ranks"`
	Without report.Stat `json:"without_s"`
	With    report.Stat `json:"with_s"`
}

const (
	lab    = "bench-balance"
	policy = "balance: {interval: 5s, cool_down: 5m}\n"
)

// ranks has the number of ranks of each job.
var ranks = []int{4, 2, 2}

func main() {
	runs := flag.Int("runs", 1, "repetitions")
	steps := flag.Int("steps", 600, "steps of LAMMPS in each job")
	cpus := flag.Float64("cpus", 0.4, "processors of each host")
	flag.Parse()
	if err := bench(*runs, *steps, *cpus); err != nil {
		fmt.Fprintln(os.Stderr, "bench-balance:", err)
		os.Exit(1)
	}
}

func bench(runs, steps int, cpus float64) error {
	r := balanceReport{Header: report.NewHeader("bench-balance", "make bench-balance"), CPUs: cpus, Steps: steps}
	limits := []string{}
	for host := 1; host <= 4; host++ {
		limits = append(limits, fmt.Sprintf("a%d=%g", host, cpus))
	}
	s, err := system.UpHosts(lab, 4, strings.Join(limits, ","))
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return err
	}
	times := map[bool][][]float64{} // for each job
	sums := map[bool][]float64{}
	var moves []float64
	for run := range runs {
		for _, on := range []bool{false, true} {
			fmt.Printf("== run %d of %d, balanced: %v\n", run+1, runs, on)
			took, moved, err := measure(s, steps, on)
			if err != nil {
				return err
			}
			fmt.Printf("%.0f s, %d moves\n", took, moved)
			sum := 0.0
			for i, t := range took {
				if len(times[on]) <= i {
					times[on] = append(times[on], nil)
				}
				times[on][i] = append(times[on][i], t)
				sum += t
			}
			sums[on] = append(sums[on], sum)
			if on {
				moves = append(moves, float64(moved))
			}
		}
	}
	for i, n := range ranks {
		r.Jobs = append(r.Jobs, job{Ranks: n, Without: report.Summarize("s", times[false][i]...), With: report.Summarize("s", times[true][i]...)})
	}
	r.Without, r.With, r.Moves = report.Summarize("s", sums[false]...), report.Summarize("s", sums[true]...), report.Summarize("", moves...)
	r.Ratio = report.Ratios(sums[true], sums[false])
	r.Goals = []report.Goal{report.AtMost("sum of the jobs' times, balanced / not balanced", r.Ratio.Median, 0.75)}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nranks\tnot balanced\tbalanced")
	for _, j := range r.Jobs {
		fmt.Fprintf(w, "%d\t%s\t%s\n", j.Ranks, j.Without, j.With)
	}
	fmt.Fprintf(w, "sum\t%s\t%s\n", r.Without, r.With)
	w.Flush()
	const out = "build/reports/bench-balance.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

func cluster(i int) string { return fmt.Sprintf("bal-%d", i) }

// measure runs the jobs once, and returns their times, and the number of moves that the policy has made.
func measure(s *system.System, steps int, on bool) (took []float64, moves int, err error) {
	idle := []string{"a3", "a4"}
	for _, host := range idle {
		if _, err := s.Watari("host", "drain", host); err != nil {
			return nil, 0, err
		}
	}
	for i, n := range ranks {
		if _, err := s.Watari("cluster", "create", cluster(i), "--guests", strconv.Itoa(n), "--memory", "192M", "--spread", "host", "--image", s.Image, "--wait"); err != nil {
			return nil, 0, err
		}
		defer s.Watari("cluster", "delete", cluster(i), "--wait")
	}
	for _, host := range idle {
		if _, err := s.Watari("host", "drain", host, "--undo"); err != nil {
			return nil, 0, err
		}
	}
	text := "maintenance: {}\n" // nothing moves
	if on {
		text = policy
	}
	file := filepath.Join(os.TempDir(), "bench-balance-policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, 0, err
	}
	defer os.Remove(file)
	if _, err := s.Watari("policy", "apply", file); err != nil {
		return nil, 0, err
	}
	took = make([]float64, len(ranks))
	failed := make([]error, len(ranks))
	var jobs sync.WaitGroup
	for i := range ranks {
		jobs.Go(func() {
			begun := time.Now()
			_, failed[i] = s.Watari("run", cluster(i), "--stage", "examples/melt/in.melt", "--", "lmp", "-in", "in.melt", "-var", "steps", strconv.Itoa(steps), "-log", "none")
			took[i] = time.Since(begun).Seconds()
		})
	}
	jobs.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, 0, err
		}
	}
	var list []struct{ Guest, Policy, State string }
	if err := s.JSON(&list, "migrate", "list", "--all"); err != nil {
		return nil, 0, err
	}
	for _, m := range list {
		if m.Policy == "balance" && strings.HasSuffix(m.State, "_DONE") {
			moves++
		}
	}
	return took, moves, nil
}
