// perf.go runs pm-perf on one machine, or with its server on the other side of a cable.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// perf runs pm-perf and returns its output. With a cable, it starts the server first and ends it afterwards; both get
// the environment.
func (b *bench) perf(ctx context.Context, c *cable, environment []string, arguments ...string) (string, error) {
	program := filepath.Join(b.build, "pm-perf")
	if c == nil {
		return run(ctx, "env", slices.Concat(environment, []string{program}, arguments)...)
	}
	environment = slices.Concat(os.Environ(), []string{"PM_JOB_KEY=" + b.jobKey}, environment)
	server := exec.CommandContext(ctx, c.in(1)[0], append(c.in(1)[1:], program, "--server")...)
	server.Env = environment
	var complaint bytes.Buffer
	server.Stderr = &complaint
	said, err := server.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := server.Start(); err != nil {
		return "", err
	}
	address, _ := bufio.NewReader(said).ReadString('\n')
	client := exec.CommandContext(ctx, c.in(0)[0], append(append(c.in(0)[1:], program, strings.TrimSpace(address)), arguments...)...)
	client.Env = environment
	client.Stderr = &complaint
	out, err := client.Output()
	if err != nil {
		server.Process.Kill() // otherwise it would wait for its client
	}
	if ended := server.Wait(); err == nil {
		err = ended
	}
	if err != nil {
		return "", fmt.Errorf("pm-perf over a %s: %w\n%s", whole, err, complaint.String())
	}
	return string(out), nil
}

// measurePerf takes the figures from pm-perf's CSV. pm-perf's bandwidth is that of many messages in flight. To be
// comparable with a ping-pong, PM's bandwidth is that of one remote write after another; variants that are only
// compared with PM itself use many in flight.
func (w *variant) measurePerf(ctx context.Context, b *bench) error {
	out, err := b.perf(ctx, w.cable, w.environment, w.perf...)
	if err != nil {
		return err
	}
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil {
		return fmt.Errorf("read pm-perf's answer: %w", err)
	}
	return w.takePerf(lines[1:])
}

func (w *variant) takePerf(lines [][]string) error {
	for _, line := range lines {
		curve, metric := line[0], line[2]
		size, _ := strconv.Atoi(line[1])
		median, err := strconv.ParseFloat(line[4], 64)
		if err != nil {
			return fmt.Errorf("read pm-perf's answer: %w", err)
		}
		least, _ := strconv.ParseFloat(line[5], 64)
		greatest, _ := strconv.ParseFloat(line[6], 64)
		switch {
		case w.streaming:
			if metric == "bandwidth" {
				w.curves[curve].add(key{size, bandwidth}, median, greatest)
			}
		case metric == "latency" && size == small && (curve == "flag" || curve == "message"):
			w.curves[curve].add(key{small, latency}, median, least)
		case metric == "latency" && size == large && (curve == "memcpy" || curve == "write"):
			w.curves[curve].add(key{large, bandwidth}, large/median, large/least)
		}
	}
	return nil
}
