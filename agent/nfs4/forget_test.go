package nfs4

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// answers plays a server. It answers each call with the words after the header of an accepted reply.
func answers(t *testing.T, replies ...[]uint32) (net.Conn, chan []byte) {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	calls := make(chan []byte, len(replies)+4)
	go func() {
		defer close(calls)
		for _, reply := range replies {
			var head [4]byte
			if _, err := io.ReadFull(theirs, head[:]); err != nil {
				return
			}
			call := make([]byte, binary.BigEndian.Uint32(head[:])&^lastFragment)
			if _, err := io.ReadFull(theirs, call); err != nil {
				return
			}
			calls <- call
			w := &writer{}
			w.numbers(binary.BigEndian.Uint32(call), rpcReply, 0, authNone, 0, 0)
			w.numbers(reply...)
			out := &writer{}
			out.numbers(4) // in two fragments
			out.Write(w.Bytes()[:4])
			out.numbers(lastFragment | uint32(w.Len()-4))
			out.Write(w.Bytes()[4:])
			theirs.Write(out.Bytes())
		}
	}()
	return ours, calls
}

var (
	introduced = []uint32{statusOK, 0, 1, opExchangeID, statusOK, 7, 8, 1, 0, 0, 0, 0, 0, 0, 0}
	session    = []uint32{statusOK, 0, 1, opCreateSession, statusOK, 1, 2, 3, 4, 1, 0}
)

func TestTheServerMeetsTheClientAnew(t *testing.T) {
	conn, calls := answers(t, introduced, session, []uint32{statusOK, 0, 1, opDestroySession, statusOK}, []uint32{statusOK, 0, 1, opDestroyClientID, statusOK})
	owner := Owner(2, "0000-1", "md-0")
	if err := Forget(t.Context(), conn, 2, owner); err != nil {
		t.Fatal(err)
	}
	if owner != "Linux NFSv4.2 0000-1/md-0" {
		t.Errorf("the owner is %q", owner)
	}
	if call := <-calls; !strings.Contains(string(call), owner) {
		t.Errorf("it introduces itself by %q", call)
	}
	if call := <-calls; !strings.Contains(string(call), "\x00\x00\x00\x07\x00\x00\x00\x08") {
		t.Errorf("it makes a session of another client: %q", call)
	}
	if call := <-calls; !strings.HasSuffix(string(call), "\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04") {
		t.Errorf("it ends another session: %q", call)
	}
}

func TestRepliesThatMakeNoSenseAreErrors(t *testing.T) {
	for want, replies := range map[string][][]uint32{
		"NFS error 10004":          {{10004, 0, 1, opExchangeID, 10004}},
		"minor version":            {{minorVersionMismatch, 0, 0}},
		"too short":                {{statusOK, 0, 1, opExchangeID, statusOK, 7}},
		"answers operation":        {{statusOK, 0, 1, opCreateSession, statusOK}},
		"make a session: NFS erro": {introduced, {10017, 0, 1, opCreateSession, 10017}},
		"short":                    {{statusOK, 1 << 31, 1}},
	} {
		conn, _ := answers(t, replies...)
		if err := Forget(t.Context(), conn, 1, "x"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	conn, _ := answers(t, []uint32{minorVersionMismatch, 0, 0})
	if err := Forget(t.Context(), conn, 2, "x"); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte("\x80\x00\x00\x04abcd"))
	f.Fuzz(func(t *testing.T, reply []byte) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		go io.Copy(io.Discard, theirs)
		go func() { theirs.Write(reply); theirs.Close() }()
		ours.SetDeadline(time.Now().Add(time.Second))
		c := client{conn: ours, minor: 1}
		c.call(opExchangeID, func(*writer) {})
	})
}
