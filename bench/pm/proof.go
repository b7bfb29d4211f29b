// proof.go verifies which transport has carried the messages.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// endpoint is an endpoint in the output of pm-info.
type endpoint struct {
	PID              int    `json:"pid"`
	MessagesReceived uint64 `json:"messages_received"`
	MessageBytes     uint64 `json:"message_bytes_received"`
	ReadBytes        uint64 `json:"read_bytes"`
	WriteBytes       uint64 `json:"write_bytes"`
	Dropped          uint64 `json:"dropped"`
}

// endpoints returns the endpoints of this machine, or of both sides of a cable.
func (b *bench) endpoints(ctx context.Context, c *cable) ([]endpoint, error) {
	commands := [][]string{{filepath.Join(b.build, "pm-info"), "--json"}}
	if c != nil {
		commands = [][]string{append(c.in(0), commands[0]...), append(c.in(1), commands[0]...)}
	}
	var all []endpoint
	for _, command := range commands {
		out, err := run(ctx, command[0], command[1:]...)
		if err != nil {
			return nil, err
		}
		var found []endpoint
		if err := json.Unmarshal([]byte(out), &found); err != nil {
			return nil, fmt.Errorf("read pm-info's answer: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// prove checks that the two processes of this run, which are held for the check, have sent everything over PM, or
// nothing if another carrier is measured: an MPI may silently use another transport.
func (w *variant) prove(ctx context.Context, b *bench, hold string, sent moved) error {
	endpoints, err := b.endpoints(ctx, w.cable)
	if err != nil {
		return err
	}
	byProcess := map[int]endpoint{}
	var bytesMoved uint64
	for _, e := range endpoints {
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", e.PID))
		if !bytes.Contains(environment, []byte("PINGPONG_HOLD="+hold)) {
			continue // another program's endpoint
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
