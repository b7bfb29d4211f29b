// run.go takes the figures of one way once.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// patience is the longest that one run may take. Over a cable some carriers stop for ever or nearly so, where packets are
// lost more often than not: what takes longer than the others' patience is ended.
const (
	patience       = 120 * time.Second
	cablePatience  = 30 * time.Second
	losingPatience = 10 * time.Second
)

func (w *way) measure(ctx context.Context, b *bench) error {
	switch {
	case w.perf != nil:
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return w.measurePerf(ctx, b)
	case w.provider != "":
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return w.measureFabric(ctx)
	case w.command != nil:
		return w.measureMPI(ctx, b)
	default:
		return nil // its figures come with another's
	}
}

// last tells the figures of the latest turn.
func (w *way) last() string {
	var parts []string
	for _, k := range keys {
		if runs := w.figures[k]; len(runs) > 0 {
			parts = append(parts, fmt.Sprintf("%8.4g %s", runs[len(runs)-1], units[k.metric]))
		}
	}
	if n := len(w.unfinished); n > 0 && w.unfinished[n-1] != "" {
		parts = append(parts, w.unfinished[n-1])
	}
	return strings.Join(parts, ", ")
}

// rounds of a batch take about half a millisecond: less than a scheduler's time slice, so that on a busy machine most
// batches are left alone, and their median is not disturbed.
func (w *way) rounds() []string {
	switch {
	case w.losing:
		return []string{fmt.Sprintf("%d:1:30", large)}
	case w.slow:
		return []string{fmt.Sprintf("%d:20", small), fmt.Sprintf("%d:1", large)}
	}
	return []string{fmt.Sprintf("%d:400", small), fmt.Sprintf("%d:3", large)}
}

// moved is what went to and fro in a run.
type moved struct{ roundTrips, bytes uint64 } // bytes: in each direction

func (w *way) measureMPI(ctx context.Context, b *bench) error {
	hold := filepath.Join(b.programs, "hold")
	if err := os.WriteFile(hold, nil, 0o644); err != nil {
		return err
	}
	defer os.Remove(hold)
	longest := patience
	switch {
	case w.mayStop() && w.losing:
		longest = losingPatience
	case w.mayStop():
		longest = cablePatience
	}
	limited, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	arguments := slices.Concat(w.command, []string{b.pingpongs[w.abi]}, w.rounds())
	command := exec.CommandContext(limited, arguments[0], arguments[1:]...)
	command.Env = slices.Concat(os.Environ(), w.environment, []string{
		"PINGPONG_HOLD=" + hold, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"})
	if w.losing {
		command.Env = append(command.Env, "PINGPONG_TELL=1")
	}
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // so that the launcher ends its processes
	command.WaitDelay = 10 * time.Second
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var complaint bytes.Buffer
	command.Stderr = &complaint
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	seen, proof := w.read(limited, bufio.NewScanner(out), b, hold)
	os.Remove(hold)
	err = command.Wait()
	switch {
	case w.mayStop() && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded):
		w.giveUp(seen, fmt.Sprintf("ended after %v", longest))
		return nil
	case w.mayStop() && ctx.Err() == nil && err != nil:
		w.giveUp(seen, fmt.Sprintf("failed: %v", err))
		return nil
	}
	w.unfinished = append(w.unfinished, "")
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(arguments, " "), err, complaint.String())
	}
	return proof
}

// soFar is what a run has told that has not come to its end.
type soFar struct {
	batch, batches int
	mean           float64 // half round trip, us
	finished       bool    // all has been measured
}

// mayStop is of what PM is compared with over a cable: that it stops is a result. That PM does is an error.
func (w *way) mayStop() bool { return w.cable != nil && !w.overPM() }

// giveUp notes what was seen of a run that had to be ended. The figure is that of the time in which it went on; what was
// not measured is 0.
func (w *way) giveUp(seen soFar, why string) {
	turn := len(w.unfinished)
	if seen.finished {
		w.unfinished = append(w.unfinished, "did not end after all was measured, "+why)
		return
	}
	for _, k := range w.keys() {
		if len(w.figures[k]) > turn {
			continue
		}
		figure := 0.0
		if w.losing && seen.batch > 0 {
			figure = large / seen.mean
		}
		w.add(k, figure, figure)
	}
	w.unfinished = append(w.unfinished, fmt.Sprintf("did not finish (%d of %d round trips), %s", seen.batch, seen.batches, why))
}

// read takes the figures, and when the last has come, sees what PM has moved.
func (w *way) read(ctx context.Context, lines *bufio.Scanner, b *bench, hold string) (seen soFar, proof error) {
	var sent moved
	proof = errors.New("it has not measured anything")
	for lines.Scan() {
		var size int
		var median, best, mean float64
		var roundTrips uint64
		if lines.Text() == "done" {
			proof = w.prove(ctx, b, hold, sent)
			os.Remove(hold)
		} else if n, _ := fmt.Sscanf(lines.Text(), "so far %d %g %d %d", &size, &mean, &seen.batch, &seen.batches); n == 4 {
			seen.mean = mean
		} else if n, _ := fmt.Sscanf(lines.Text(), "result %d %g %g %d %g", &size, &median, &best, &roundTrips, &mean); n == 5 {
			sent.roundTrips += roundTrips
			sent.bytes += roundTrips * uint64(size)
			switch {
			case size == small:
				w.add(key{small, latency}, median, best)
			case w.losing:
				w.add(key{large, meanBandwidth}, float64(size)/mean, float64(size)/best)
			default:
				w.add(key{large, bandwidth}, float64(size)/median, float64(size)/best)
			}
			seen.finished = size == large
		}
	}
	return seen, proof
}
