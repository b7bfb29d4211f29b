package rsh

// input.go - passes a launcher's input to a peer.

import (
	"context"
	"sync"

	v1 "watari/api/watariv1"
)

const (
	// inputLimit is the number of bytes of input that wait until the peer has received them. It bounds a session's
	// memory.
	inputLimit = 64 << 10
	// inputChunk is the most bytes of input in one message.
	inputChunk = 16 << 10
)

// input keeps the launcher's input until the peer has received it, so that a broken connection loses nothing.
type input struct {
	more func() // asks the launcher for a part

	mu     sync.Mutex
	sent   uint64 // bytes of input that the peer has received
	kept   []byte // input from sent on
	asked  bool   // the launcher has been asked for a part and has not sent it
	closed bool   // there is no more input
	wake   chan struct{}
}

func newInput(more func()) *input { return &input{more: more, wake: make(chan struct{}, 1)} }

// want asks the launcher for input if there is room. It blocks while the launcher does not read its output.
func (i *input) want() {
	i.mu.Lock()
	ask := !i.asked && !i.closed && len(i.kept)+packetSize <= inputLimit
	i.asked = i.asked || ask
	i.mu.Unlock()
	if ask {
		i.more()
	}
}

// take stores a part of the launcher's input; an empty part is the end. It drops a part that the agent did not ask for,
// so that a launcher cannot fill the agent's memory.
func (i *input) take(b []byte) {
	i.mu.Lock()
	if i.asked {
		i.asked = false
		i.kept = append(i.kept, b...)
		i.closed = len(b) == 0
	}
	i.mu.Unlock()
	i.poke()
}

// had drops input that the peer has received.
func (i *input) had(offset uint64) {
	i.mu.Lock()
	more := offset > i.sent
	if more {
		i.kept = i.kept[min(offset-i.sent, uint64(len(i.kept))):]
		i.sent = offset
		if len(i.kept) == 0 {
			i.kept = nil // otherwise a later append would keep the old memory
		}
	}
	i.mu.Unlock()
	if more {
		i.poke()
	}
}

// poke wakes send.
func (i *input) poke() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// next returns the message with the input from an offset on; nil: there is none.
func (i *input) next(offset uint64) *v1.AttachRequest {
	i.mu.Lock()
	defer i.mu.Unlock()
	m := &v1.AttachRequest{StdinOffset: offset}
	if offset >= i.sent && offset-i.sent < uint64(len(i.kept)) {
		rest := i.kept[offset-i.sent:]
		m.Stdin = append([]byte(nil), rest[:min(len(rest), inputChunk)]...)
	}
	m.StdinClosed = i.closed && offset+uint64(len(m.Stdin)) >= i.sent+uint64(len(i.kept))
	if len(m.Stdin) == 0 && !m.StdinClosed {
		return nil
	}
	return m
}

// send sends the input that the peer has not received, and later input, until the input's end.
func (i *input) send(ctx context.Context, to func(*v1.AttachRequest) error) {
	i.mu.Lock()
	next := i.sent
	i.mu.Unlock()
	for {
		i.want()
		if m := i.next(next); m != nil {
			if to(m) != nil || m.GetStdinClosed() {
				return
			}
			next += uint64(len(m.GetStdin()))
			continue
		}
		select {
		case <-i.wake:
		case <-ctx.Done():
			return
		}
	}
}
