package main

// profile.go - the use of CPU time while guests move.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// phase is the activity during a part of the benchmark.
type phase struct {
	Seconds float64            `json:"seconds"`
	Busy    float64            `json:"busy"`  // processors that were not idle, on average
	CPU     map[string]float64 `json:"cpu_s"` // by program; processes that lived for less than sampleEvery are missing
}

// String formats the phase for people.
func (p phase) String() string {
	names := slices.SortedFunc(maps.Keys(p.CPU), func(x, y string) int { return cmp.Compare(p.CPU[y], p.CPU[x]) })
	var words []string
	for _, name := range names {
		words = append(words, fmt.Sprintf("%s %.2f s", name, p.CPU[name]))
	}
	return fmt.Sprintf("%.2f s, %.2f processors busy (%s)", p.Seconds, p.Busy, strings.Join(words, ", "))
}

// sampleEvery is how often the processes are sampled, to include the CPU time of processes that end meanwhile.
const sampleEvery = 200 * time.Millisecond

// profiled runs do and returns its duration and the activity of the CPUs.
func profiled(do func() error) (p phase, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return p, err
	}
	before, err := fs.Stat()
	if err != nil {
		return p, err
	}
	first, last := map[int]process{}, map[int]process{}
	look(first)
	maps.Copy(last, first)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(sampleEvery):
				look(last)
			}
		}
	}()
	begun := time.Now()
	err = do()
	p.Seconds = time.Since(begun).Seconds()
	close(stop)
	<-stopped
	look(last)
	after, statErr := fs.Stat()
	if err = cmp.Or(err, statErr); err != nil {
		return p, err
	}
	b, a := before.CPUTotal, after.CPUTotal
	p.Busy = (a.User + a.Nice + a.System + a.IRQ + a.SoftIRQ - b.User - b.Nice - b.System - b.IRQ - b.SoftIRQ) / p.Seconds
	p.CPU = map[string]float64{}
	for pid, now := range last {
		p.CPU[now.name] += now.cpu - first[pid].cpu
	}
	maps.DeleteFunc(p.CPU, func(_ string, s float64) bool { return s < p.Seconds/100 })
	return p, nil
}

type process struct {
	name string
	cpu  float64 // s
}

// look records the CPU time of each process. Entries of processes that have ended stay.
func look(at map[int]process) {
	all, err := procfs.AllProcs()
	if err != nil {
		return
	}
	for _, p := range all {
		if stat, err := p.Stat(); err == nil {
			at[p.PID] = process{stat.Comm, stat.CPUTime()}
		}
	}
}
