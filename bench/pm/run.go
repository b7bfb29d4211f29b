// run.go takes the figures of one way once, and has proof of what carried the messages.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// patience is the longest that one run may take.
const patience = 60 * time.Second

func (w *way) measure(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch {
	case w.perf != nil:
		return w.measurePerf(ctx)
	case w.command != nil:
		return w.measureMPI(ctx, b)
	default:
		return nil // its figures come with another's
	}
}

// last tells the figures of the latest turn.
func (w *way) last() string {
	var parts []string
	for _, k := range []key{{small, latency}, {large, bandwidth}} {
		if runs := w.figures[k]; len(runs) > 0 {
			parts = append(parts, fmt.Sprintf("%8.4g %s", runs[len(runs)-1], units[k.metric]))
		}
	}
	return strings.Join(parts, ", ")
}

// measurePerf takes pm-perf's CSV. Its bandwidth is that of many messages on their way; so that it can be compared
// with a ping-pong, what is taken as bandwidth of PM is one remote write after another.
func (w *way) measurePerf(ctx context.Context) error {
	out, err := run(ctx, w.perf[0], w.perf[1:]...)
	if err != nil {
		return err
	}
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil {
		return fmt.Errorf("read pm-perf's answer: %w", err)
	}
	for _, line := range lines[1:] {
		curve, metric := line[0], line[2]
		size, _ := strconv.Atoi(line[1])
		median, err := strconv.ParseFloat(line[4], 64)
		if err != nil {
			return fmt.Errorf("read pm-perf's answer: %w", err)
		}
		least, _ := strconv.ParseFloat(line[5], 64)
		switch {
		case metric == "latency" && size == small && (curve == "flag" || curve == "message"):
			w.curves[curve].add(key{small, latency}, median, least)
		case metric == "latency" && size == large && (curve == "memcpy" || curve == "write"):
			w.curves[curve].add(key{large, bandwidth}, large/median, large/least)
		}
	}
	return nil
}

// rounds of a batch take about half a millisecond: less than a scheduler's time slice, so that on a busy machine most
// batches are left alone, and their median is not disturbed.
func (w *way) rounds() []string {
	if w.slow {
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
	arguments := slices.Concat(w.command, []string{b.pingpongs[w.abi]}, w.rounds())
	command := exec.CommandContext(ctx, arguments[0], arguments[1:]...)
	command.Env = slices.Concat(os.Environ(), w.environment, []string{
		"PINGPONG_HOLD=" + hold, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"})
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // so that the launcher ends its processes
	command.WaitDelay = 10 * time.Second
	var complaint bytes.Buffer
	command.Stderr = &complaint
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	proof := w.read(ctx, bufio.NewScanner(out), b, hold)
	os.Remove(hold)
	if err := command.Wait(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(arguments, " "), err, complaint.String())
	}
	return proof
}

// read takes the figures, and when the last has come, sees what PM has moved.
func (w *way) read(ctx context.Context, lines *bufio.Scanner, b *bench, hold string) error {
	var sent moved
	proof := fmt.Errorf("it has not measured anything")
	for lines.Scan() {
		var size int
		var median, best float64
		var roundTrips uint64
		if lines.Text() == "done" {
			proof = w.prove(ctx, b, hold, sent)
			os.Remove(hold)
		} else if n, _ := fmt.Sscanf(lines.Text(), "result %d %g %g %d", &size, &median, &best, &roundTrips); n == 4 {
			sent.roundTrips += roundTrips
			sent.bytes += roundTrips * uint64(size)
			if size == small {
				w.add(key{small, latency}, median, best)
			} else {
				w.add(key{large, bandwidth}, float64(size)/median, float64(size)/best)
			}
		}
	}
	return proof
}

// endpoint is what pm-info tells of one.
type endpoint struct {
	PID              int    `json:"pid"`
	MessagesReceived uint64 `json:"messages_received"`
	MessageBytes     uint64 `json:"message_bytes_received"`
	ReadBytes        uint64 `json:"read_bytes"`
	WriteBytes       uint64 `json:"write_bytes"`
	Dropped          uint64 `json:"dropped"`
}

// prove checks that the two processes of this run, held for it, have moved over PM all that they have moved, or
// nothing where another carrier is measured: an MPI that does not like a provider may go another way in silence.
func (w *way) prove(ctx context.Context, b *bench, hold string, sent moved) error {
	out, err := run(ctx, filepath.Join(b.build, "pm-info"), "--json")
	if err != nil {
		return err
	}
	var endpoints []endpoint
	if err := json.Unmarshal([]byte(out), &endpoints); err != nil {
		return fmt.Errorf("read pm-info's answer: %w", err)
	}
	byProcess := map[int]endpoint{}
	var bytesMoved uint64
	for _, e := range endpoints {
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", e.PID))
		if !bytes.Contains(environment, []byte("PINGPONG_HOLD="+hold)) {
			continue // somebody else's
		}
		sum := byProcess[e.PID]
		sum.MessagesReceived += e.MessagesReceived
		byProcess[e.PID] = sum
		bytesMoved += e.MessageBytes + e.ReadBytes + e.WriteBytes
		if e.Dropped > 0 {
			return fmt.Errorf("process %d has dropped %d things that came over PM", e.PID, e.Dropped)
		}
	}
	if !w.overPM() {
		if len(byProcess) > 0 {
			return fmt.Errorf("its processes use PM, which they should not")
		}
		return nil
	}
	if len(byProcess) != 2 {
		return fmt.Errorf("%d of the two processes use PM: the MPI has gone another way", len(byProcess))
	}
	for pid, sum := range byProcess {
		if sum.MessagesReceived < sent.roundTrips {
			return fmt.Errorf("process %d got %d messages over PM in %d round trips: the MPI has gone another way", pid, sum.MessagesReceived, sent.roundTrips)
		}
	}
	if bytesMoved < 2*sent.bytes {
		return fmt.Errorf("PM moved %d of %d bytes: the MPI has gone another way", bytesMoved, 2*sent.bytes)
	}
	return nil
}
