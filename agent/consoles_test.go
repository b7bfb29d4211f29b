package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

func newConsoles(t *testing.T) *consoles {
	c := &consoles{dir: t.TempDir(), now: time.Now, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if err := os.MkdirAll(filepath.Join(c.dir, uid), 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *consoles) write(t *testing.T, uid, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(c.path(uid)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.path(uid), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func keptText(t *testing.T, c *consoles, epoch uint64) string {
	t.Helper()
	data, err := os.ReadFile(c.keptPath(uid, epoch))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// consoleOf returns what the agent serves of a console.
func (o *outside) consoleOf(epoch uint64) string {
	o.t.Helper()
	server := httptest.NewServer(o.agent.Handler())
	defer server.Close()
	stream, err := watariv1connect.NewAgentServiceClient(server.Client(), server.URL).Console(context.Background(),
		connect.NewRequest(&v1.ConsoleRequest{GuestUid: uid, Epoch: epoch}))
	if err != nil {
		o.t.Fatal(err)
	}
	defer stream.Close()
	var b bytes.Buffer
	for stream.Receive() {
		if m := stream.Msg(); uint64(b.Len()) == m.Offset {
			b.Write(m.Data)
		}
	}
	if err := stream.Err(); err != nil {
		o.t.Fatal(err)
	}
	return b.String()
}

func TestTheConsoleOfALifeThatEndedIsKeptAndQuoted(t *testing.T) {
	o := newOutside(t)
	o.ending = domain.End{How: "its QEMU crashed or was killed", Said: []string{"qemu: bad\x1b[2J"}}
	stop := o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.agent.consoles.write(t, uid, "booting\r\nKernel panic - not syncing: x\x1b[31m\r\n"+strings.Repeat("trace\n", 20))
	o.becomes(uid, domain.Absent)
	seen := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	if want := `it ended: its QEMU crashed or was killed; QEMU's log ends with: qemu: bad\x1b[2J`; seen.Message != want {
		t.Errorf("message %q, not %q", seen.Message, want)
	}
	if want := `Kernel panic - not syncing: x\x1b[31m` + strings.Repeat("\ntrace", quotedLines); seen.LastLines != want {
		t.Errorf("last lines %q, not %q", seen.LastLines, want)
	}
	stop()
	o.start() // a restarted agent serves the same
	if again := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE); again.LastLines != seen.LastLines {
		t.Errorf("a new agent says %q", again.LastLines)
	}
	o.take(guestWish(uid, run, 2))
	o.awaitReady(2)
	o.agent.consoles.write(t, uid, "booting again\n")
	if first, second := o.consoleOf(1), o.consoleOf(0); !strings.HasPrefix(first, "booting\r\n") || second != "booting again\n" {
		t.Errorf("kept %q, present %q", first, second)
	}
	o.take(guestWish(uid, absent, 2))
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
	list := o.agent.consoles.list(uid)
	if len(list) != 2 || list[0].End != seen.Message || list[1].End != "it was stopped" || list[0].Began.IsZero() {
		t.Errorf("kept: %+v", list)
	}
}

func TestAConsoleStaysOnTheHostThatAGuestLeft(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.agent.consoles.write(t, uid, "before the move\n")
	o.take(guestWish(uid, outgoing, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENT)
	o.take(guestWish(uid, absent, 1))
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
	list := o.agent.consoles.list(uid)
	if len(list) != 1 || list[0].Target != "elsewhere" || o.consoleOf(1) != "before the move\n" {
		t.Errorf("kept: %+v", list)
	}
}

func TestOfALongConsoleBeginningAndEndAreKept(t *testing.T) {
	c := newConsoles(t)
	c.write(t, uid, "begin"+strings.Repeat("x", keptHead+keptTail)+"end")
	if err := c.keep(uid, keptConsole{Epoch: 3}); err != nil {
		t.Fatal(err)
	}
	text := keptText(t, c, 3)
	if len(text) > keptHead+keptTail+100 || !strings.HasPrefix(text, "begin") || !strings.HasSuffix(text, "end") ||
		!strings.Contains(text, "[8 bytes were not kept]") {
		t.Errorf("%d bytes: %.20q ... %q", len(text), text, text[len(text)-20:])
	}
	if _, err := os.Stat(c.path(uid)); err == nil {
		t.Error("the next life would append to it")
	}
}

func TestConsolesThatVirtlogdRolledOverAreOne(t *testing.T) {
	c := newConsoles(t)
	c.write(t, uid, "four\n")
	for i, text := range []string{"three\n", "two\n", "one\n"} {
		if err := os.WriteFile(fmt.Sprintf("%s.%d", c.path(uid), i), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.tail(uid, 8); got != "ree\nfour\n"[1:] {
		t.Errorf("it ends with %q", got)
	}
	if err := c.keep(uid, keptConsole{Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if got := keptText(t, c, 1); got != "one\ntwo\nthree\nfour\n" {
		t.Errorf("kept %q", got)
	}
	if left := rolledOver(c.path(uid)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAGuestThatWritesWithoutEndTakesBoundedSpace(t *testing.T) {
	c := newConsoles(t)
	path := c.path(uid)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) // as QEMU opens it
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const head, tail = 8 << 10, 64 << 10
	line := []byte(strings.Repeat("y", 4095) + "\n")
	write := func(n int) {
		for range n {
			if _, err := file.Write(line); err != nil {
				t.Fatal(err)
			}
		}
		if err := boundConsole(path, head, tail); err != nil {
			t.Skipf("holes cannot be made in files of %s: %v", c.dir, err)
		}
	}
	if _, err := file.WriteString("the first line\n"); err != nil {
		t.Fatal(err)
	}
	write(256)
	write(256)
	if _, err := file.WriteString("the last line\n"); err != nil {
		t.Fatal(err)
	}
	f, err := openConsole(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b strings.Builder
	if err := f.copyFrom(&b, 0, f.total); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "the first line\n") || !strings.HasSuffix(b.String(), "\nthe last line\n") {
		t.Errorf("what is left begins with %.20q and ends with %q", b.String(), b.String()[max(0, b.Len()-20):])
	}
	if f.total != 512*4096+29 || b.Len() > 2*(head+2*tail) || !strings.Contains(b.String(), "bytes were not kept]") || strings.Contains(b.String(), "\x00") {
		t.Errorf("of %d bytes %d are left", f.total, b.Len())
	}
}

// The agent looks after the consoles by itself.
func TestAnAgentBoundsTheConsoleOfAGuest(t *testing.T) {
	o := newOutside(t)
	stop := o.start()
	c := o.agent.consoles
	const written = runningHead + 4*runningTail
	c.write(t, uid, strings.Repeat("y", written))
	stop()
	o.start() // an agent looks when it starts, and then every sampleEvery
	left := func() int64 {
		var stat unix.Stat_t
		if err := unix.Stat(c.path(uid), &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks * 512
	}
	for begun := time.Now(); left() > runningHead+2*runningTail; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatalf("of %d bytes %d are left", written, left())
		}
	}
}

func TestKeptConsolesAreBoundedInNumberBytesAndTime(t *testing.T) {
	c := newConsoles(t)
	now := time.Now()
	c.now = func() time.Time { return now }
	for epoch := uint64(1); epoch <= keptEpochs+3; epoch++ {
		c.write(t, uid, "x")
		if err := c.keep(uid, keptConsole{Epoch: epoch}); err != nil {
			t.Fatal(err)
		}
	}
	if list := c.list(uid); len(list) != keptEpochs || list[0].Epoch != 4 {
		t.Errorf("kept: %+v", list)
	}
	const many = 300
	for i := range many {
		other := fmt.Sprintf("00000000-0000-4000-8000-%012d", i+2)
		c.write(t, other, strings.Repeat("x", keptHead+keptTail))
		if err := c.keep(other, keptConsole{Epoch: 1}); err != nil {
			t.Fatal(err)
		}
	}
	found, _ := filepath.Glob(filepath.Join(c.dir, "*", "consoles", "*.log"))
	if most := keptOfAllGuests/(keptHead+keptTail) + keptEpochs; len(found) > most {
		t.Errorf("%d consoles are kept, more than %d", len(found), most)
	}
	now = now.Add(keepConsoles + time.Hour)
	c.clear()
	if left, _ := os.ReadDir(c.dir); len(left) != 0 {
		t.Errorf("left after their time: %v", left)
	}
}

func TestRecordsGoBeforeTheConsolesThatAreKept(t *testing.T) {
	c := newConsoles(t)
	c.write(t, uid, "x")
	if err := c.keep(uid, keptConsole{Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	s := NewRecordStore(c.dir)
	if err := s.Save(&machine.Record{UID: uid, Epoch: 1, Phase: machine.PhaseEnded, Outcome: machine.OutcomeForgotten}, false); err != nil {
		t.Fatal(err)
	}
	s.Now = func() time.Time { return time.Now().Add(25 * time.Hour) }
	s.Clear(24*time.Hour, func(string) bool { return false })
	if r, _ := s.read(uid); r != nil {
		t.Error("the record is kept")
	}
	if got := keptText(t, c, 1); got != "x" {
		t.Errorf("kept %q", got)
	}
}
