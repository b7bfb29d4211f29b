package test

// double_test.go - two processes killed at once, in the middle of a move.

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"watari/test/evidence"
)

// The manager is killed together with an agent or a libvirt daemon of a move while memory is sent. The move fails, and the
// guest and its program go on at the source.
func TestTwoFailuresAtOnceDuringAMove(t *testing.T) {
	hostsReady(t)
	newCluster(t, "both", 2, "--site", "a", "--spread", "host")
	settled(t, "both", 2)
	unmarked := mark(t, "both-0", "both-1")
	p := computes(t, "both")
	for _, f := range []struct {
		victim  string
		host    func(from, to string) string
		pattern string
		long    bool
	}{
		{"agent of the source", source, anAgent, true},
		{"agent of the target", target, anAgent, false},
		{"libvirt daemon of the source", source, aDaemon, true},
		{"libvirt daemon of the target", target, aDaemon, true},
	} {
		t.Run("manager and "+f.victim, func(t *testing.T) {
			if f.long {
				full(t)
			}
			strikes(t, func() (bool, string) { return killTwo(t, f.host, f.pattern) })
		})
	}
	p.right(t)
	settled(t, "both", 2)
	noneRestarted(t, unmarked)
}

// killTwo moves a guest, kills the manager and a daemon of one end while the guest's memory is sent, and waits until
// everything works again.
func killTwo(t *testing.T, host func(from, to string) string, pattern string) (struck bool, how string) {
	t.Helper()
	settled(t, "both", 2)
	hostsReady(t)
	from, to := guestNamed(t, "both-0").Host, emptyHost(t)
	move := beginMove(t, "both-0", to, "--bandwidth", "4M")
	move.sends(t)
	daemons := processesOn(host(from, to), pattern)
	victims := append([]int{daemonPID(t, "manager")}, daemons...)
	if len(daemons) == 0 {
		t.Fatalf("no process on %s matches %s", host(from, to), pattern)
	}
	begun := time.Now()
	signalAll(t, victims, syscall.SIGKILL)
	done := time.Now()
	startManager(t)
	last := move.ended(t)
	settled(t, "both", 2)
	hostsReady(t)
	at := guestNamed(t, "both-0").Host
	struck, how = move.struck(t, evidence.Transferring, begun, done)
	how += fmt.Sprintf("; %s: %s; the guest is on %s, moved from %s to %s", last.State, last.Message, at, from, to)
	if struck && (!strings.HasSuffix(last.State, "_FAILED") || at != from || last.Message == "") {
		t.Errorf("the move has ended %s (%s), and the guest is on %s", last.State, last.Message, at)
	}
	return struck, how
}
