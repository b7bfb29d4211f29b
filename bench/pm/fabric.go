// fabric.go runs libfabric's own ping-pong over a provider. It shows which part of an MPI's time the provider takes.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const fabricRounds = 200000

// throughFabric returns libfabric alone, over PM's provider and over its own shared-memory provider.
func (b *bench) throughFabric() []*variant {
	return []*variant{
		{rail: "shm", carrier: "pm by libfabric", provider: "pm", environment: b.pmEnvironment()},
		{rail: "shm", carrier: "libfabric shm", provider: "shm"},
	}
}

// freePort returns a port on which no program listened a moment ago.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	return port, err
}

// waitForListener returns when a program listens at a port. It does not connect: fi_pingpong accepts only one
// connection.
func waitForListener(ctx context.Context, port string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	for ; ; time.Sleep(10 * time.Millisecond) {
		for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			if listens(file, fmt.Sprintf(":%04X", number)) {
				return nil
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("nobody listens at port %s: %w", port, ctx.Err())
		}
	}
}

// listens looks for a listener (state 0A) in a file of the kernel such as /proc/net/tcp.
func listens(file, port string) bool {
	sockets, _ := os.ReadFile(file)
	for line := range strings.Lines(string(sockets)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && strings.HasSuffix(fields[1], port) && fields[3] == "0A" {
			return true
		}
	}
	return false
}

// readFabric returns the half round trip in us from fi_pingpong's table, which has one line.
func readFabric(out string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(lines) != 2 || len(fields) != 8 {
		return 0, fmt.Errorf("not fi_pingpong's table: %q", out)
	}
	return strconv.ParseFloat(fields[6], 64)
}

// measureFabric runs fi_pingpong between two processes.
func (w *variant) measureFabric(ctx context.Context) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	var complaint bytes.Buffer
	command := func(arguments ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, "fi_pingpong", append([]string{"-p", w.provider, "-e", "rdm", "-m", "tagged",
			"-S", strconv.Itoa(small), "-I", strconv.Itoa(fabricRounds)}, arguments...)...)
		c.Env = append(os.Environ(), w.environment...)
		c.Stderr = &complaint
		return c
	}
	server, client := command("-B", port), command("-P", port, "127.0.0.1")
	if err := server.Start(); err != nil {
		return err
	}
	if err := waitForListener(ctx, port); err != nil {
		return errors.Join(err, server.Process.Kill(), server.Wait())
	}
	out, err := client.Output()
	if err != nil {
		server.Process.Kill() // otherwise it would wait for its client
	}
	if err := errors.Join(err, server.Wait()); err != nil {
		return fmt.Errorf("fi_pingpong over %s: %w\n%s", w.provider, err, complaint.String())
	}
	half, err := readFabric(string(out))
	if err != nil {
		return err
	}
	w.add(key{small, latency}, half, half)
	return nil
}
