// Package nfs4 makes an NFS server forget a client, as if the client's machine had restarted.
//
// After a guest goes back to a checkpoint, its NFS client has the state of the checkpoint. It repeats request numbers that
// the server has answered since. The server would send it answers to other requests, or none. So the server has to forget
// the client before the guest runs. The client then finds its session unknown, makes a new one and opens its files again, as
// after a failure of the server.
package nfs4

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Numbers of ONC RPC (RFC 5531), NFS 4.1 (RFC 8881) and its XDR (RFC 5662).
const (
	rpcCall, rpcReply, rpcVersion       = 0, 1, 2
	nfsProgram, nfsVersion, compound    = 100003, 4, 1
	authNone, authSys                   = 0, 1
	lastFragment                        = 1 << 31
	opExchangeID, opCreateSession       = 42, 43
	opDestroySession, opDestroyClientID = 44, 57
	linuxFlags                          = 0x101 // moved file systems, state bound to the principal; servers tell clients apart by these flags, too
	statusOK, minorVersionMismatch      = 0, 10021
	sessionIDLength, maxReply           = 16, 1 << 20
)

// forgetTime bounds a whole call of Forget.
const forgetTime = 10 * time.Second

// ErrVersion means that the server does not speak a minor version of NFS 4.
var ErrVersion = errors.New("the server does not speak this minor version of NFS 4")

// Owner returns the client owner string that Linux' NFS client sends for a minor version of NFS 4 (1 or 2), given the
// client's identifier and its machine's host name (nfs4_init_uniform_client_string in the kernel's fs/nfs/nfs4proc.c).
func Owner(minor uint32, identifier, hostName string) string {
	return fmt.Sprintf("Linux NFSv4.%d %s/%s", minor, identifier, hostName)
}

// Forget introduces itself to the server as a restart of the client's machine, which ends all state that the server keeps of
// the client (RFC 8881, section 18.35.5, case 5), and leaves. It does nothing to a server that does not know the client.
// conn is a new connection to the server; the caller closes it.
func Forget(ctx context.Context, conn net.Conn, minor uint32, owner string) error {
	ctx, cancel := context.WithTimeout(ctx, forgetTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	c := client{conn: conn, minor: minor}
	var verifier [8]byte
	rand.Read(verifier[:])
	r, err := c.call(opExchangeID, func(w *writer) {
		w.raw(verifier[:])
		w.opaque([]byte(owner))
		w.numbers(linuxFlags, 0, 0) // no state protection, no implementation
	})
	if err != nil {
		return fmt.Errorf("introduce the client to the server: %w", err)
	}
	id, sequence := r.long(), r.number()
	if r.err != nil {
		return fmt.Errorf("introduce the client to the server: %w", r.err)
	}
	// The server forgets the earlier client when this one is confirmed by its first session.
	r, err = c.call(opCreateSession, func(w *writer) {
		w.long(id)
		w.numbers(sequence, 0)
		w.numbers(0, 1<<16, 1<<16, 1<<12, 8, 8, 0) // the fore channel: sizes, operations, slots
		w.numbers(0, 1<<12, 1<<12, 0, 2, 1, 0)     // the back channel
		w.numbers(0x40000000, 1, authNone)         // callbacks that never come
	})
	if err != nil {
		return fmt.Errorf("make a session: %w", err)
	}
	session := r.bytes(sessionIDLength)
	if r.err != nil {
		return fmt.Errorf("make a session: %w", r.err)
	}
	// A session that stays behind does no harm: it ends with its lease, or when the client introduces itself.
	if _, err := c.call(opDestroySession, func(w *writer) { w.raw(session) }); err == nil {
		_, _ = c.call(opDestroyClientID, func(w *writer) { w.long(id) })
	}
	return nil
}

type client struct {
	conn  net.Conn
	minor uint32
	xid   uint32
}

// call makes a request of one operation, and returns a reader of the result after the operation's status.
func (c *client) call(op uint32, arguments func(*writer)) (*reader, error) {
	c.xid++
	w := &writer{}
	w.numbers(c.xid, rpcCall, rpcVersion, nfsProgram, nfsVersion, compound)
	w.numbers(authSys, 20, 0, 0, 0, 0, 0) // time 0, no machine name, user 0, group 0, no other groups: like the kernel's client
	w.numbers(authNone, 0)
	w.opaque(nil) // no tag
	w.numbers(c.minor, 1, op)
	arguments(w)
	var head [4]byte
	binary.BigEndian.PutUint32(head[:], lastFragment|uint32(w.Len()))
	if _, err := c.conn.Write(append(head[:], w.Bytes()...)); err != nil {
		return nil, err
	}
	reply, err := c.receive()
	if err != nil {
		return nil, err
	}
	r := &reader{rest: reply}
	if xid, kind, denied := r.number(), r.number(), r.number(); r.err == nil && (xid != c.xid || kind != rpcReply || denied != 0) {
		return nil, fmt.Errorf("the server denies the call (%d, %d, %d)", xid, kind, denied)
	}
	r.number() // the verifier's flavor
	r.opaque()
	if accepted := r.number(); r.err == nil && accepted != 0 {
		return nil, fmt.Errorf("the server does not accept the call: %d", accepted)
	}
	status := r.number()
	r.opaque() // the tag
	if status == minorVersionMismatch {
		return nil, ErrVersion
	}
	count, answered, result := r.number(), r.number(), r.number()
	switch {
	case r.err != nil && status != statusOK:
		return nil, fmt.Errorf("NFS error %d", status)
	case r.err != nil:
		return nil, r.err
	case status != statusOK || result != statusOK:
		return nil, fmt.Errorf("NFS error %d", status)
	case count != 1 || answered != op:
		return nil, fmt.Errorf("the server answers operation %d with %d", op, answered)
	}
	return r, nil
}

// receive reads one reply.
func (c *client) receive() (reply []byte, err error) {
	for {
		var head [4]byte
		if _, err := io.ReadFull(c.conn, head[:]); err != nil {
			return nil, err
		}
		size := binary.BigEndian.Uint32(head[:])
		n := int(size &^ lastFragment)
		if len(reply)+n > maxReply {
			return nil, fmt.Errorf("a reply of more than %d bytes", maxReply)
		}
		part := make([]byte, n)
		if _, err := io.ReadFull(c.conn, part); err != nil {
			return nil, err
		}
		reply = append(reply, part...)
		if size&lastFragment != 0 {
			return reply, nil
		}
	}
}

// writer writes XDR (RFC 4506).
type writer struct{ bytes.Buffer }

func (w *writer) numbers(list ...uint32) {
	for _, n := range list {
		w.Write(binary.BigEndian.AppendUint32(nil, n))
	}
}

func (w *writer) long(n uint64) { w.Write(binary.BigEndian.AppendUint64(nil, n)) }

// raw writes bytes without their number, which both sides know. The number is a multiple of 4.
func (w *writer) raw(b []byte) { w.Write(b) }

func (w *writer) opaque(b []byte) {
	w.numbers(uint32(len(b)))
	w.Write(b)
	w.Write(make([]byte, (4-len(b)%4)%4))
}

// reader reads XDR. After the first error it returns zeros.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) bytes(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.rest) {
		if r.err == nil {
			r.err = errors.New("the reply is too short")
		}
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) number() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) long() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) opaque() []byte {
	n := int(r.number())
	return r.bytes(n + (4-n%4)%4)
}
