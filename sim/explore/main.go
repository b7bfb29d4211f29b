// Command explore runs the simulator over many seeds. A seed that fails is shrunk and printed as a dialogue.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"watari/sim"
)

// report is the JSON result.
type report struct {
	Seeds          int         `json:"seeds"`
	SimulatedHours float64     `json:"simulated_hours"`
	WallS          float64     `json:"wall_s"`
	Violations     []violation `json:"violations"`
	// Counts says how often each kind of request and fault has occurred in all seeds together, and some of what follows.
	Counts map[string]int `json:"counts"`
}

type violation struct {
	Seed uint64 `json:"seed"`
	What string `json:"what"`
}

func main() {
	seeds := flag.Int("seeds", 1000, "how many seeds to run")
	from := flag.Uint64("from", 0, "the first seed")
	one := flag.Int64("seed", -1, "replay this seed, shrunk, and print its dialogue")
	whole := flag.Bool("whole", false, "do not shrink")
	out := flag.String("report", "", "write a report to this file")
	first := flag.Bool("first", false, "stop at the first violation; print how many seeds it took, and the violation")
	flag.Parse()
	if *one >= 0 {
		replay(uint64(*one), *whole)
		return
	}
	r := explore(*from, *seeds, *first)
	if *first {
		if len(r.Violations) == 0 {
			fmt.Println("none")
			os.Exit(3)
		}
		fmt.Printf("%d %s\n", r.Seeds, r.Violations[0].What)
		return
	}
	fmt.Printf("%d seeds, %.1f hours simulated in %.1f s, %.0f times as fast as real time, %d violations\n",
		r.Seeds, r.SimulatedHours, r.WallS, r.SimulatedHours*3600/r.WallS, len(r.Violations))
	if *out != "" {
		if err := write(*out, r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if len(r.Violations) > 0 {
		replay(r.Violations[0].Seed, *whole)
		os.Exit(1)
	}
}

// explore runs seeds on all processors.
func explore(from uint64, n int, first bool) report {
	var mu sync.Mutex
	r := report{Violations: []violation{}, Counts: map[string]int{}}
	begun, next := time.Now(), from
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for {
				mu.Lock()
				seed := next
				next++
				stop := seed >= from+uint64(n) || first && len(r.Violations) > 0
				mu.Unlock()
				if stop {
					return
				}
				result := sim.Run(seed)
				mu.Lock()
				r.Seeds++
				r.SimulatedHours += result.Simulated.Hours()
				for what, n := range result.Counts {
					r.Counts[what] += n
				}
				if result.Violation != "" {
					r.Violations = append(r.Violations, violation{seed, result.Violation})
					if !first {
						fmt.Printf("seed %d: %s\n", seed, result.Violation)
					}
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	r.WallS = time.Since(begun).Seconds()
	return r
}

func replay(seed uint64, whole bool) {
	plan := sim.Run(seed).Plan
	if !whole {
		plan = sim.Shrink(seed, plan)
	}
	r := sim.Replay(seed, plan)
	for _, line := range r.Dialogue {
		fmt.Println(line)
	}
	fmt.Printf("seed %d: %s\n", seed, r.Violation)
}

func write(path string, r report) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
