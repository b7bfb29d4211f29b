package test

// runs_test.go - runs, while a part of the system below them fails.

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// started waits until a run's program has written something.
func started(t *testing.T, name string) {
	t.Helper()
	until(t, time.Minute, "run "+name+" writes", func() (bool, string) {
		out, _ := shared.watari(20*time.Second, "run", "logs", name)
		return strings.Contains(out, "begun"), out
	})
}

func TestRunEndsWhenAGuestIsLostUnderIt(t *testing.T) {
	newCluster(t, "loses", 2, "--spread", "site")
	must(t, "run", "loses", "--name", "loses-run", "--detach", "--", "sh", "-c", "echo begun; sleep 300")
	started(t, "loses-run")
	mustKill(t, guestNamed(t, "loses-1").Host, "qemu-system.*watari-loses-1")
	out, err := shared.watari(settle, "run", "attach", "loses-run")
	if code := exitCode(err); code != 1 || !strings.Contains(out, "guest loses-1 ended") {
		t.Errorf("status %d, want 1 and the guest's name:\n%s", code, out)
	}
	settled(t, "loses", 2)
	if out, err := shared.watari(time.Minute, "guest", "exec", "loses-0", "--", "pidof", "sleep"); err == nil {
		t.Errorf("the program goes on where its launcher was: %s", out)
	}
	if out := must(t, "run", "loses", "--", "hostname"); !strings.Contains(out, "loses-1") {
		t.Errorf("the next run: %s", out)
	}
}

func TestGuestAgentThatIsKilled(t *testing.T) {
	full(t)
	newCluster(t, "agent", 2, "--spread", "site")
	unmarked := mark(t, "agent-0", "agent-1")
	must(t, "guest", "exec", "agent-1", "--", "sh", "-c", "echo kept > /home/watari/file")
	killAgent := func(guest string) {
		t.Helper()
		out, err := shared.watari(time.Minute, "guest", "exec", guest, "--", "sh", "-c", "kill -9 $(cat /run/watari/agent.pid)")
		if err == nil || !strings.Contains(out, "guest agent was restarted") {
			t.Errorf("the program that ended the agent: %v: %s", err, out)
		}
	}
	for _, guest := range []string{"agent-0", "agent-1"} { // the launcher's guest and another one
		name := fmt.Sprintf("%s-run-%x", guest, time.Now().UnixMilli()) // a run's name is kept after its cluster is deleted
		must(t, "run", "agent", "--name", name, "--detach", "--", "sh", "-c", "echo begun; sleep 300")
		started(t, name)
		killAgent(guest)
		out, err := shared.watari(settle, "run", "attach", name)
		if exitCode(err) <= 1 || !strings.Contains(out, guest) {
			t.Errorf("%v of a run when the agent of %s was ended:\n%s", err, guest, out)
		}
		settled(t, "agent", 2)
	}
	for _, guest := range []string{"agent-0", "agent-1"} {
		if out := must(t, "guest", "exec", guest, "--", "cat", "/home/watari/file"); !strings.Contains(out, "kept") {
			t.Errorf("the home in guest %s holds %q", guest, out)
		}
	}
	if out := must(t, "run", "agent", "--", "hostname"); !strings.Contains(out, "agent-1") {
		t.Errorf("the next run: %s", out)
	}
	noneRestarted(t, unmarked)
}
