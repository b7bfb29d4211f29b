// guests.go measures between two emulated guests of one host, which pm/bench/guests starts once for all turns: Open MPI
// over shared memory and over the guests' network, shared memory without MPI, and PM's curves over verbs.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const twoGuests = "two guests" // path

// guestsPatience is the time limit for all turns and for building the guests' image, which takes minutes the first
// time.
const guestsPatience = 30 * time.Minute

// Exit statuses of pm/bench/guests before it has begun to measure: something is missing, or the guests did not start.
const (
	somethingMissing = 77
	notUp            = 125
)

// curveSizes are the sizes of the curves over verbs, which end with large. The paper has figures for 8 KiB.
var curveSizes = []int{4, 64, 1024, 4096, 8192, 16384, 65536, 262144, large}

// verbsWrite is PM's remote write over verbs in a program that writes from the same memory again and again.
const verbsWrite = "write"

// guestVariants returns the variants of pm/bench/guests. Others are compared with PM's ivshmem rail, the first.
func guestVariants() []*variant {
	variants := []*variant{
		{guests: "memory", rail: "ivshmem", carrier: "flag in a cache line"},
		{guests: "memory", rail: "ivshmem", carrier: "memcpy"},
		{guests: "ivshmem,udp", rail: "ivshmem", mpi: debianOpenMPI, carrier: "pm"},
		{guests: "udp", rail: "udp", mpi: debianOpenMPI, carrier: "pm"},
		{guests: "tcp", rail: "tcp", mpi: debianOpenMPI, carrier: "tcp BTL"},
		{guests: "verbs,udp:3", rail: "verbs", mpi: debianOpenMPI, carrier: "pm"},
	}
	for _, carrier := range []string{"ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw"} {
		variants = append(variants, &variant{guests: "verbs:2", rail: "verbs", carrier: carrier})
	}
	for _, carrier := range []string{"message", "message-copies", verbsWrite, "write-hits-100", "write-hits-50", "write-hits-0"} {
		variants = append(variants, &variant{guests: "curves:3", rail: "verbs", carrier: carrier})
	}
	for _, w := range variants {
		w.path = twoGuests
	}
	return variants
}

// guestTurns returns the arguments of pm/bench/guests: each variant in each turn, except that the slow ones over verbs
// get fewer turns.
func guestTurns(variants []*variant, runs int) []string {
	turns := []string{strconv.Itoa(runs)}
	for _, w := range variants {
		if betweenGuests(w) && !slices.Contains(turns, w.guests) {
			turns = append(turns, w.guests)
		}
	}
	return turns
}

func betweenGuests(w *variant) bool { return w.path == twoGuests }

// hasCurve reports whether the variant has figures of many sizes between guests.
func (w *variant) hasCurve() bool {
	return betweenGuests(w) && slices.ContainsFunc(curveSizes, func(size int) bool {
		return size != large && len(w.figures[key{size, bandwidth}]) > 0
	})
}

// measureGuests measures the requested variants between guests, and those that come with them. If guests are not
// possible, it records why.
func (b *bench) measureGuests(ctx context.Context, asked, all []*variant, runs int) error {
	limited, cancel := context.WithTimeout(ctx, guestsPatience)
	defer cancel()
	command := exec.CommandContext(limited, "pm/bench/guests", guestTurns(asked, runs)...)
	command.Env = append(os.Environ(), "PM_BUILD="+b.build, "GUESTS="+b.guests)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) } // lets it end the guests
	command.WaitDelay = 20 * time.Second
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
	reason, up, failed := readGuests(out, all, runs)
	if failed != nil {
		cancel()
	}
	err = command.Wait()
	status := command.ProcessState.ExitCode()
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%s: not done after %v\n%s", twoGuests, guestsPatience, complaint.String())
	case !up && (status == somethingMissing || status == notUp):
		b.skip(twoGuests, strings.TrimSpace(reason+complaint.String()))
		return nil
	case failed != nil:
		return fmt.Errorf("%s: %w", twoGuests, failed)
	case err != nil:
		return fmt.Errorf("%s: %w\n%s", twoGuests, err, complaint.String())
	}
	return nil
}

// readGuests reads figures as they arrive. The first line names the columns and arrives when the guests are up. Any
// other first line is the reason why they are not.
func readGuests(out io.Reader, variants []*variant, runs int) (reason string, up bool, err error) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch line := lines.Text(); {
		case up:
			told, err := readGuestsLine(line, variants)
			if err != nil {
				return "", up, err
			}
			round, _, _ := strings.Cut(line, ",")
			fmt.Printf("turn %s of %d: %s\n", round, runs, told)
		case strings.HasPrefix(line, "round,rail,"):
			up = true
		default:
			reason += line + "\n"
		}
	}
	return reason, up, nil
}

// readGuestsLine parses a figure and returns a line about it. A line is
// ROUND,RAIL,MPI,PEER,SIZE,METRIC,UNIT,MEDIAN,BEST.
func readGuestsLine(line string, variants []*variant) (string, error) {
	fields, err := csv.NewReader(strings.NewReader(line)).Read()
	if err != nil || len(fields) != 9 {
		return "", fmt.Errorf("not a line of figures: %q", line)
	}
	i := slices.IndexFunc(variants, func(w *variant) bool {
		return betweenGuests(w) && w.rail == fields[1] && (w.mpi == "") == (fields[2] == "") && w.carrier == fields[3]
	})
	if i < 0 {
		return "", fmt.Errorf("figures of nothing that is known: %q", line)
	}
	size, notSize := strconv.Atoi(fields[4])
	k := key{size, map[string]string{"latency": latency, "bandwidth": bandwidth}[fields[5]]}
	known := notSize == nil && slices.Contains(reported(), k)
	median, notMedian := strconv.ParseFloat(fields[7], 64)
	best, notBest := strconv.ParseFloat(fields[8], 64)
	if !known || notMedian != nil || notBest != nil {
		return "", fmt.Errorf("not figures: %q", line)
	}
	variants[i].add(k, median, best)
	return fmt.Sprintf("%-56s %7d bytes: %8.4g %s", variants[i].name(), size, median, units[k.metric]), nil
}
