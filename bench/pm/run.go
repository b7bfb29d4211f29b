// run.go measures one variant once.
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

// The time limits of one run. Over a lossy cable some carriers stop forever, or nearly so. These runs are ended after a
// shorter limit.
const (
	patience       = 120 * time.Second
	cablePatience  = 30 * time.Second
	losingPatience = 10 * time.Second
)

func (w *variant) measure(ctx context.Context, b *bench) error {
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
		return nil // another variant's run measures it
	}
}

// last formats the figures of the latest turn.
func (w *variant) last() string {
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

// rounds returns the rounds per batch, which take about half a millisecond together. This is less than a scheduler's
// time slice, so that most batches are undisturbed even on a busy machine, and the median, too.
func (w *variant) rounds() []string {
	switch {
	case w.losing:
		return []string{fmt.Sprintf("%d:1:30", large)}
	case w.slow:
		return []string{fmt.Sprintf("%d:20", small), fmt.Sprintf("%d:1", large)}
	}
	return []string{fmt.Sprintf("%d:400", small), fmt.Sprintf("%d:3", large)}
}

// moved counts the data sent in a run.
type moved struct{ roundTrips, bytes uint64 } // bytes: in each direction

func (w *variant) measureMPI(ctx context.Context, b *bench) error {
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
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // lets the launcher end its processes
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

// soFar is the progress of a run that has not finished.
type soFar struct {
	batch, batches int
	mean           float64 // half round trip, us
	finished       bool    // everything has been measured
}

// mayStop reports whether it is a valid result that the variant stops: this holds for PM's competitors over a cable. If
// PM stops, it is an error.
func (w *variant) mayStop() bool { return w.cable != nil && !w.overPM() }

// giveUp records the progress of a run that had to be ended. The figure is that of the completed part; parts that were
// not measured are 0.
func (w *variant) giveUp(seen soFar, why string) {
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

// read reads the figures. After the last one, it checks what PM has sent.
func (w *variant) read(ctx context.Context, lines *bufio.Scanner, b *bench, hold string) (seen soFar, proof error) {
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
