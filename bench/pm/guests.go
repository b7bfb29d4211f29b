// guests.go measures between two guests of one host, emulated, which pm/bench/guests brings up once for all turns: Open
// MPI over memory that they share, and over their network, what that memory can do without MPI, and PM's curves over verbs.
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

// guestsPatience is for all turns, and for the guests' image, which takes minutes where it has never been made.
const guestsPatience = 30 * time.Minute

// Exit statuses with which pm/bench/guests has not begun to measure: something is missing, or guests did not come up.
const (
	somethingMissing = 77
	notUp            = 125
)

// curveSizes are those of the curves over verbs, which end with large: 8 KiB is that of which the paper has figures.
var curveSizes = []int{4, 64, 1024, 4096, 8192, 16384, 65536, 262144, large}

// verbsWrite is PM's remote write over verbs, as a program has it that writes from the same memory again and again.
const verbsWrite = "write"

// guestWays are those of pm/bench/guests. What is compared with PM is compared with its ivshmem rail, the first.
func guestWays() []*way {
	ways := []*way{
		{guests: "memory", rail: "ivshmem", carrier: "flag in a cache line"},
		{guests: "memory", rail: "ivshmem", carrier: "memcpy"},
		{guests: "ivshmem,udp", rail: "ivshmem", mpi: debianOpenMPI, carrier: "pm"},
		{guests: "udp", rail: "udp", mpi: debianOpenMPI, carrier: "pm"},
		{guests: "tcp", rail: "tcp", mpi: debianOpenMPI, carrier: "tcp BTL"},
		{guests: "verbs,udp:3", rail: "verbs", mpi: debianOpenMPI, carrier: "pm"},
	}
	for _, carrier := range []string{"ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw"} {
		ways = append(ways, &way{guests: "verbs:2", rail: "verbs", carrier: carrier})
	}
	for _, carrier := range []string{"message", "message-copies", verbsWrite, "write-hits-100", "write-hits-50", "write-hits-0"} {
		ways = append(ways, &way{guests: "curves:3", rail: "verbs", carrier: carrier})
	}
	for _, w := range ways {
		w.path = twoGuests
	}
	return ways
}

// guestTurns are what pm/bench/guests is asked for: each way in each turn, but those over verbs, which take long, in fewer
func guestTurns(ways []*way, runs int) []string {
	turns := []string{strconv.Itoa(runs)}
	for _, w := range ways {
		if betweenGuests(w) && !slices.Contains(turns, w.guests) {
			turns = append(turns, w.guests)
		}
	}
	return turns
}

func betweenGuests(w *way) bool { return w.path == twoGuests }

// hasCurve is of ways between guests with figures of many sizes.
func (w *way) hasCurve() bool {
	return betweenGuests(w) && slices.ContainsFunc(curveSizes, func(size int) bool {
		return size != large && len(w.figures[key{size, bandwidth}]) > 0
	})
}

// measureGuests takes the figures of the ways asked for between guests, and of those of all that come with them. Where
// there can be no guests, it notes why.
func (b *bench) measureGuests(ctx context.Context, asked, all []*way, runs int) error {
	limited, cancel := context.WithTimeout(ctx, guestsPatience)
	defer cancel()
	command := exec.CommandContext(limited, "pm/bench/guests", guestTurns(asked, runs)...)
	command.Env = append(os.Environ(), "PM_BUILD="+b.build, "GUESTS="+b.guests)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) } // so that it ends the guests
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

// readGuests takes figures as they come. The first line, which names the columns, comes when the guests are up; what
// comes in place of it is the reason why they are not.
func readGuests(out io.Reader, ways []*way, runs int) (reason string, up bool, err error) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch line := lines.Text(); {
		case up:
			told, err := readGuestsLine(line, ways)
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

// readGuestsLine takes a figure and tells it. A line is ROUND,RAIL,MPI,PEER,SIZE,METRIC,UNIT,MEDIAN,BEST.
func readGuestsLine(line string, ways []*way) (string, error) {
	fields, err := csv.NewReader(strings.NewReader(line)).Read()
	if err != nil || len(fields) != 9 {
		return "", fmt.Errorf("not a line of figures: %q", line)
	}
	i := slices.IndexFunc(ways, func(w *way) bool {
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
	ways[i].add(k, median, best)
	return fmt.Sprintf("%-56s %7d bytes: %8.4g %s", ways[i].name(), size, median, units[k.metric]), nil
}
