package rsh

// input.go - input of a launcher on its way to a peer.

import (
	"context"
	"sync"

	v1 "watari/api/watariv1"
)

const (
	// inputLimit is how many bytes of input are kept until the peer has had them; it bounds a session's memory.
	inputLimit = 64 << 10
	// inputChunk is the most bytes of input in one message.
	inputChunk = 16 << 10
)

// input keeps what the launcher gave until the peer has had it: a connection that breaks loses nothing.
type input struct {
	more func() // asks the launcher for a part

	mu     sync.Mutex
	sent   uint64 // offset of input that the peer has had
	kept   []byte // input from sent on
	asked  bool   // the launcher owes a part
	closed bool   // there is no more input
	wake   chan struct{}
}

func newInput(more func()) *input { return &input{more: more, wake: make(chan struct{}, 1)} }

// want asks for input where there is room for it. It waits while the launcher does not take its output.
func (i *input) want() {
	i.mu.Lock()
	ask := !i.asked && !i.closed && len(i.kept)+packetSize <= inputLimit
	i.asked = i.asked || ask
	i.mu.Unlock()
	if ask {
		i.more()
	}
}

// take keeps a part that the launcher gave; none is the end. A part that was not asked for is dropped, so that a
// launcher cannot fill the agent's memory.
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

// had drops input that the peer has had.
func (i *input) had(offset uint64) {
	i.mu.Lock()
	more := offset > i.sent
	if more {
		i.kept = i.kept[min(offset-i.sent, uint64(len(i.kept))):]
		i.sent = offset
		if len(i.kept) == 0 {
			i.kept = nil // an append would keep the memory before it
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

// next is the message with the input from an offset on, nil while there is none.
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

// send sends input that the peer has not had, and what comes, until its end.
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
