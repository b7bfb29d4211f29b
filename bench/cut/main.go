// Cut measures the cost of a checkpoint of a whole cluster for an MPI program: four guests of 512 MiB on two sites run a
// program that exchanges messages all the time. It compares the checkpoint with saving all guests at once by `virsh save`,
// and a restore with a new start of the program. It writes build/reports/bench-cut.json.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"watari/bench/report"
	"watari/bench/system"
)

type cutReport struct {
	report.Header
	Guests     int           `json:"guests"`
	Memory     string        `json:"memory"`
	QuietStall report.Stat   `json:"quiet_stall_ms"` // the program's longest beat without a checkpoint
	Stood      report.Stat   `json:"stood_ms"`       // longest pause of a guest
	Stall      report.Stat   `json:"stall_ms"`       // the program's longest beat during a checkpoint
	Total      report.Stat   `json:"total_s"`        // duration of a checkpoint
	Slowdown   report.Stat   `json:"slowdown"`       // part of its beats that the program does not do during the checkpoint
	Full       report.Stat   `json:"full_mib"`       // all files of the first checkpoint
	Increment  report.Stat   `json:"increment"`      // size of the second checkpoint's files, divided by the first's
	Save       report.Stat   `json:"virsh_save_ms"`  // until all guests are saved by virsh, at once
	Ratio      report.Stat   `json:"stall_by_virsh_save"`
	Restore    report.Stat   `json:"restore_s"` // from the command until the program continues
	Start      report.Stat   `json:"start_s"`   // time until the cluster is ready
	Zero       report.Stat   `json:"zero_s"`    // start, plus the time that the program had run when the checkpoint was made
	Sooner     report.Stat   `json:"zero_by_restore"`
	Goals      []report.Goal `json:"goals"`
}

const (
	cluster = "cut"
	guests  = 4
	memory  = "512M"
	warm    = 60 * time.Second // run time of the program before the first checkpoint, as long as in the demo
)

// figures are the figures of one run.
type figures struct {
	start, restore, save                             time.Duration
	quietStall, stood, stall, total, slowdown        []float64
	firstMiB, increment, quietRate, ranSeconds, zero float64
}

func main() {
	runs := flag.Int("runs", 3, "repetitions")
	flag.Parse()
	if err := bench(*runs); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cut:", err)
		os.Exit(1)
	}
}

func bench(runs int) error {
	r := cutReport{Header: report.NewHeader("bench-cut", "make bench-cut"), Guests: guests, Memory: memory}
	r.Machine.Acceleration = "tcg"
	if out, err := exec.Command("mpicc", "-O2", "-Wall", "-o", "build/bin/beat", "bench/cut/beat/beat.c").CombinedOutput(); err != nil {
		return fmt.Errorf("compile beat: %w: %s", err, out)
	}
	s, err := system.Up("bench-cut", "10ms,400mbit")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return err
	}
	var all []figures
	for run := range runs {
		fmt.Printf("== run %d of %d\n", run+1, runs)
		f, err := measure(s)
		if err != nil {
			return err
		}
		all = append(all, f)
	}
	each := func(unit string, of func(f figures) []float64) report.Stat {
		var values []float64
		for _, f := range all {
			values = append(values, of(f)...)
		}
		return report.Summarize(unit, values...)
	}
	one := func(unit string, of func(f figures) float64) report.Stat {
		return each(unit, func(f figures) []float64 { return []float64{of(f)} })
	}
	r.QuietStall = each("ms", func(f figures) []float64 { return f.quietStall })
	r.Stood = each("ms", func(f figures) []float64 { return f.stood })
	r.Stall = each("ms", func(f figures) []float64 { return f.stall })
	r.Total = each("s", func(f figures) []float64 { return f.total })
	r.Slowdown = each("", func(f figures) []float64 { return f.slowdown })
	r.Full = one("MiB", func(f figures) float64 { return f.firstMiB })
	r.Increment = one("", func(f figures) float64 { return f.increment })
	r.Save = one("ms", func(f figures) float64 { return float64(f.save.Milliseconds()) })
	r.Ratio = each("", func(f figures) (ratios []float64) {
		for _, stall := range f.stall {
			ratios = append(ratios, stall/float64(f.save.Milliseconds()))
		}
		return ratios
	})
	r.Restore = one("s", func(f figures) float64 { return f.restore.Seconds() })
	r.Start = one("s", func(f figures) float64 { return f.start.Seconds() })
	r.Zero = one("s", func(f figures) float64 { return f.zero })
	r.Sooner = one("", func(f figures) float64 { return f.zero / f.restore.Seconds() })
	r.Goals = []report.Goal{
		report.AtMost("MPI's longest stall, ms", r.Stall.Median, 500), report.AtMost("stall / virsh save", r.Ratio.Median, 0.3),
		report.AtMost("slow-down while files are written", r.Slowdown.Median, 0.3), report.AtMost("increment / all", r.Increment.Median, 0.3),
		report.AtLeast("from zero / restore", r.Sooner.Median, 5),
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nlongest beat, ms\tquiet %s\tcheckpoint %s\tguests stood %s\n", r.QuietStall, r.Stall, r.Stood)
	fmt.Fprintf(w, "checkpoint\t%s\tslow-down %s\tsize %s, then %s of it\n", r.Total, r.Slowdown, r.Full, r.Increment)
	fmt.Fprintf(w, "virsh save\t%s\tratio %s\t\n", r.Save, r.Ratio)
	fmt.Fprintf(w, "restore\t%s\tfrom zero %s\tratio %s\n", r.Restore, r.Zero, r.Sooner)
	w.Flush()
	const out = "build/reports/bench-cut.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// measure makes a cluster, runs the program, makes two checkpoints meanwhile, saves the guests by virsh, and restores the
// last checkpoint.
func measure(s *system.System) (f figures, err error) {
	begun := time.Now()
	if _, err := s.Watari("cluster", "create", cluster, "--guests", fmt.Sprint(guests), "--memory", memory, "--image", s.Image, "--spread", "site", "--wait"); err != nil {
		return f, err
	}
	defer s.Watari("cluster", "delete", cluster, "--wait")
	f.start = time.Since(begun)
	name := fmt.Sprintf("beat-%d", time.Now().Unix())
	if _, err := s.Watari("run", cluster, "--name", name, "--detach", "--stage", "build/bin/beat", "--", "./beat", "3600"); err != nil {
		return f, err
	}
	defer s.Watari("run", "cancel", name)
	ran := time.Now()
	time.Sleep(warm)
	quiet := time.Now()
	for range 2 {
		if err := f.checkpoint(s, name, quiet); err != nil {
			return f, err
		}
	}
	f.zero = f.start.Seconds() + time.Since(ran).Seconds()
	if err := f.saveAll(s); err != nil {
		return f, err
	}
	asked := time.Now()
	if _, err := s.Watari("checkpoint", "restore", cluster); err != nil {
		return f, err
	}
	answered := time.Since(asked)
	for time.Since(asked) < 5*time.Minute {
		beats, err := logged(s, name)
		if err == nil && len(beats) > 0 && beats[len(beats)-1].at.After(asked) {
			f.restore = time.Since(asked)
			fmt.Printf("restored in %.1f s, of which the command took %.1f s\n", f.restore.Seconds(), answered.Seconds())
			return f, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return f, fmt.Errorf("the program did not go on within %s after the restore", 5*time.Minute)
}

// checkpoint makes a checkpoint, and records its effect on the program. quiet is the end of the time before the first one.
func (f *figures) checkpoint(s *system.System, run string, quiet time.Time) error {
	var made struct {
		Started, Ended time.Time
		StoodMs        float64
		Members        []struct {
			File struct {
				Blob struct {
					Size float64 `json:",string"`
				}
			}
		}
	}
	if err := s.JSON(&made, "checkpoint", "create", cluster); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // until the program has printed its beats
	beats, err := logged(s, run)
	if err != nil {
		return err
	}
	before, during := over(beats, quiet.Add(-20*time.Second), quiet), over(beats, made.Started, made.Ended)
	if before.rate == 0 {
		return fmt.Errorf("the program does not beat: %d lines", len(beats))
	}
	size := 0.0
	for _, m := range made.Members {
		size += m.File.Blob.Size / (1 << 20)
	}
	if f.firstMiB == 0 {
		f.firstMiB, f.quietStall = size, []float64{before.longest}
	} else {
		f.increment = size / f.firstMiB
	}
	f.stood, f.stall, f.total = append(f.stood, made.StoodMs), append(f.stall, during.longest), append(f.total, made.Ended.Sub(made.Started).Seconds())
	f.slowdown = append(f.slowdown, 1-during.rate/before.rate)
	fmt.Printf("checkpoint: %.1f s, guests stood %.0f ms, longest beat %.0f ms (quiet %.0f), %.0f beats/s of %.0f, %.1f MiB\n",
		f.total[len(f.total)-1], made.StoodMs, during.longest, before.longest, during.rate, before.rate, size)
	return nil
}

// saveAll saves all guests by virsh at once, and restores them. The agents are stopped meanwhile, and find everything
// unchanged.
func (f *figures) saveAll(s *system.System) error {
	var list []struct {
		Meta struct{ Name string }
		Host string
	}
	if err := s.JSON(&list, "guest", "list", cluster); err != nil {
		return err
	}
	for _, g := range list {
		if _, err := s.OnHost(g.Host, "pkill -STOP -f '[w]atari-agent --manager'"); err != nil {
			return err
		}
		defer s.OnHost(g.Host, "pkill -CONT -f '[w]atari-agent --manager'")
	}
	together := func(command string) error {
		failed := make([]error, len(list))
		var all sync.WaitGroup
		for i, g := range list {
			all.Go(func() { _, failed[i] = s.OnHost(g.Host, fmt.Sprintf(command, g.Meta.Name)) })
		}
		all.Wait()
		for _, err := range failed {
			if err != nil {
				return err
			}
		}
		return nil
	}
	begun := time.Now()
	if err := together("virsh -q -c qemu:///system save watari-%[1]s /var/lib/watari/agent/%[1]s.save"); err != nil {
		return err
	}
	f.save = time.Since(begun)
	fmt.Printf("virsh saved all in %.1f s\n", f.save.Seconds())
	return together("virsh -q -c qemu:///system restore --running /var/lib/watari/agent/%[1]s.save; rm /var/lib/watari/agent/%[1]s.save")
}

// beat is a line of the program's output.
type beat struct {
	at      time.Time
	beats   float64
	longest float64 // ms
}

// logged reads the program's output.
func logged(s *system.System, run string) (list []beat, err error) {
	out, err := s.Watari("run", "logs", run)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(strings.NewReader(out))
	for lines.Scan() {
		var at float64
		var b beat
		if _, err := fmt.Sscanf(lines.Text(), "beat %f %f %f", &at, &b.beats, &b.longest); err == nil {
			b.at = time.UnixMicro(int64(at * 1e6))
			list = append(list, b)
		}
	}
	return list, lines.Err()
}

// effect is the effect on the program in a span of time.
type effect struct{ rate, longest float64 }

func over(beats []beat, from, to time.Time) (f effect) {
	var first, last time.Time
	for i, b := range beats {
		if i == 0 || b.at.Before(from) || beats[i-1].at.After(to) {
			continue
		}
		if first.IsZero() {
			first = beats[i-1].at
		}
		last = b.at
		f.rate += b.beats
		f.longest = max(f.longest, b.longest)
	}
	if last.After(first) {
		f.rate /= last.Sub(first).Seconds()
	}
	return f
}
