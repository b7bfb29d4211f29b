package test

// policy_test.go - guests that move because of a policy.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// harvestPolicy withdraws hosts that match, for their owners.
const harvestPolicy = `
owners:
- match: %s
  busy:
  - when: host.terminal_idle < duration("10s")
  - when: host.owner_cpu > 0.3
    for: 2s
  idle:
    when: host.terminal_idle > duration("10s") && host.owner_cpu < 0.2
    for: 3s
harvest:
  throttle: {weight: 1, cpu: 20%%, stop_after: 30s}
`

// applyPolicy puts a policy in force until the test ends.
func applyPolicy(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, "policy", "apply", file)
	t.Cleanup(func() {
		must(t, "policy", "apply", "testdata/still.yaml")
		hostsReady(t) // withdrawn hosts take guests again
	})
}

// owner plays the owner of a host until the test ends, or until the result is called.
func owner(t *testing.T, host, does string) (leave func()) {
	t.Helper()
	must(t, "lab", "owner", "--name", labName, host, does)
	leave = func() { must(t, "lab", "owner", "--name", labName, host, "away") }
	t.Cleanup(leave)
	return leave
}

// withdrawn waits until a host is withdrawn, or given back.
func withdrawn(t *testing.T, host string, want bool) {
	t.Helper()
	until(t, time.Minute, fmt.Sprintf("host %s is withdrawn: %v", host, want), func() (bool, string) {
		h := decoded[struct {
			Withdrawn []struct{ Policy, Reason string }
		}](t, "host", "show", host)
		return len(h.Withdrawn) > 0 == want, fmt.Sprintf("%+v", h)
	})
}

// left waits until a guest has left a host.
func left(t *testing.T, name, host string) {
	t.Helper()
	until(t, settle, "guest "+name+" leaves host "+host, func() (bool, string) {
		g := guestNamed(t, name)
		return g.Host != host && strings.HasSuffix(g.State, "_RUNNING"), fmt.Sprintf("%+v", g)
	})
}

// ticking writes a line each second, or whatever pause is, 40 times.
func ticking(pause string) string {
	return "echo begun; for i in $(seq 40); do echo tick $i; sleep " + pause + "; done"
}

// The owner of a machine comes back: the guests leave, their programs continue, and the machine takes guests again after the
// owner has left.
func TestTheOwnerComesBack(t *testing.T) {
	newCluster(t, "lent", 2, "--site", "a", "--spread", "host")
	settled(t, "lent", 2)
	host := guestNamed(t, "lent-0").Host
	unmarked := mark(t, "lent-0", "lent-1")
	applyPolicy(t, fmt.Sprintf(harvestPolicy, fmt.Sprintf("host.name == %q", host)))
	must(t, "run", "lent", "--name", "lent-run", "--detach", "--", "sh", "-c", ticking("0.5"))
	started(t, "lent-run")
	leave := owner(t, host, "types")
	withdrawn(t, host, true)
	left(t, "lent-0", host)
	refused(t, []string{"its owner uses it"}, "migrate", "lent-0", "--to", host)
	for _, want := range []string{"the owner of host " + host + " is back", "nothing asks it to move"} {
		if out := must(t, "explain", "guest", "lent-0"); !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if out := must(t, "explain", "host", host); !strings.Contains(out, "host.terminal_idle") || !strings.Contains(out, "takes no guests since") {
		t.Errorf("host %s is explained so:\n%s", host, out)
	}
	leave()
	withdrawn(t, host, false)
	if out := must(t, "run", "logs", "--follow", "lent-run"); strings.Count(out, "tick") != 2*40 {
		t.Errorf("%d lines of output, want 80", strings.Count(out, "tick"))
	}
	settled(t, "lent", 2)
	noneRestarted(t, unmarked)
	// A replay of the measurements finds what has happened, and another manager has the measurements, too.
	replay := func(who string) {
		t.Helper()
		out := must(t, "policy", "test", "--since", "10m")
		if !strings.Contains(out, "host "+host+" takes no guests") {
			t.Errorf("a test of the policy by %s finds no return of the owner:\n%s", who, out)
		}
	}
	replay("the manager")
	restartManager(t)
	hostsReady(t)
	replay("the next manager")
	settled(t, "lent", 2)
	noneRestarted(t, unmarked)
}

// All owners come back at once: no host has room, so guests are slowed down where they are. Then their cluster is suspended,
// and resumed when an owner has left.
func TestAllOwnersComeBack(t *testing.T) {
	newCluster(t, "all", 1)
	settled(t, "all", 1)
	unmarked := mark(t, "all-0")
	host, uid := guestNamed(t, "all-0").Host, guestNamed(t, "all-0").Meta.UID
	applyPolicy(t, fmt.Sprintf(harvestPolicy, "true")+"  suspend_after: 10s\n")
	var away []func()
	other := ""
	for _, h := range hosts {
		if h != host {
			if other == "" {
				other = h
			}
			away = append(away, owner(t, h, "types"))
		}
	}
	for _, h := range hosts {
		if h != host {
			withdrawn(t, h, true)
		}
	}
	must(t, "run", "all", "--name", "all-run", "--detach", "--", "sh", "-c", ticking("0.7"))
	started(t, "all-run")
	away = append(away, owner(t, host, "types"))
	withdrawn(t, host, true)
	until(t, time.Minute, "status and explain say that the guest cannot leave", func() (bool, string) {
		status, _ := shared.watari(20*time.Second, "status")
		explained := must(t, "explain", "guest", "all-0")
		return strings.Contains(status, "guests have to leave host "+host) && strings.Contains(explained, "no host has room for it") && strings.Contains(explained, "of a processor's time"), status + explained
	})
	slowedDown(t, host, true)
	refused(t, []string{"no host for guest 1 of 1", "its owner uses it"}, "cluster", "create", "none", "--guests", "1", "--memory", "256M", "--image", imageName)
	until(t, 2*time.Minute, "the cluster is suspended", func() (bool, string) {
		out := must(t, "cluster", "show", "all") + must(t, "checkpoint", "list", "all")
		return copies(uid) == 0 && strings.Contains(out, "suspended by policy harvest"), out
	})
	away[0]()
	until(t, 2*time.Minute, "the cluster goes on", func() (bool, string) {
		g := guestNamed(t, "all-0")
		return g.Host == other && strings.HasSuffix(g.State, "_RUNNING"), fmt.Sprintf("%+v", g)
	})
	must(t, "run", "logs", "--follow", "all-run") // the output may repeat what the run has written since the checkpoint
	if out := must(t, "run", "logs", "all-run"); strings.Count(out, "tick") != 40 {
		t.Errorf("%d lines of output, want 40:\n%s", strings.Count(out, "tick"), out)
	}
	settled(t, "all", 1)
	noneRestarted(t, unmarked)
	for _, leave := range away[1:] {
		leave()
	}
}

// slowedDown waits until guests of a host have a limit of their processor time, or until none has.
func slowedDown(t *testing.T, host string, want bool) {
	t.Helper()
	until(t, settle, fmt.Sprintf("guests are slowed down on host %s: %v", host, want), func() (bool, string) {
		out, err := onHost(t, host, "sh", "-c", "find /sys/fs/cgroup -name 'watari-vcpu-*' -type d | xargs -I{} sh -c 'cat {}/cpu.cfs_quota_us {}/cpu.max 2>/dev/null' | grep -v '^-1\\|max' || [ $? = 1 ]")
		return err == nil && out != "" == want, out
	})
}

// The owner of a machine comes back while no manager is there: the machine itself slows the guest down, even if its agent was
// restarted meanwhile. The next manager moves the guest away.
func TestTheOwnerComesBackWhileNoManagerIsThere(t *testing.T) {
	newCluster(t, "alone", 1)
	settled(t, "alone", 1)
	unmarked := mark(t, "alone-0")
	host := guestNamed(t, "alone-0").Host
	applyPolicy(t, fmt.Sprintf(harvestPolicy, fmt.Sprintf("host.name == %q", host)))
	until(t, settle, "the host knows the policy", func() (bool, string) {
		out, err := onHost(t, host, "cat", agentState+"/alone-policy.yaml")
		return err == nil && strings.Contains(out, "terminal_idle"), out
	})
	killManager(t)
	leave := owner(t, host, "types")
	slowedDown(t, host, true)
	mustKill(t, host, "watari-agent --manager")
	leave()
	slowedDown(t, host, false) // the next agent finds that the owner is away
	owner(t, host, "types")
	slowedDown(t, host, true)
	startManager(t)
	left(t, "alone-0", host)
	settled(t, "alone", 1)
	noneRestarted(t, unmarked)
}

// The manager is killed in the middle of an evacuation, and started again.
func TestManagerKilledWhileGuestsLeave(t *testing.T) {
	newCluster(t, "mid", 2, "--site", "a", "--spread", "host")
	settled(t, "mid", 2)
	unmarked := mark(t, "mid-0", "mid-1")
	host := guestNamed(t, "mid-0").Host
	applyPolicy(t, fmt.Sprintf(harvestPolicy, fmt.Sprintf("host.name == %q", host)))
	owner(t, host, "types")
	until(t, time.Minute, "guest mid-0 begins to move", func() (bool, string) {
		out := must(t, "migrate", "list", "-o", "json")
		return strings.Contains(out, `"mid-0"`), out
	})
	killManager(t)
	startManager(t)
	left(t, "mid-0", host)
	settled(t, "mid", 2)
	noneRestarted(t, unmarked)
}

// Guests leave a host before a maintenance window, and the host takes guests again afterwards.
func TestMaintenance(t *testing.T) {
	newCluster(t, "care", 1, "--site", "a")
	settled(t, "care", 1)
	host := guestNamed(t, "care-0").Host
	must(t, "volume", "create", "care", "--size", "256M", "--host", host)
	t.Cleanup(func() { must(t, "volume", "delete", "care") })
	begin := time.Now().Add(8 * time.Second)
	maintained := func(end time.Time) {
		applyPolicy(t, fmt.Sprintf("maintenance:\n  windows:\n  - match: host.name == %q\n    begin: %s\n    end: %s\n    lead: 5s\n", host,
			begin.Format(time.RFC3339), end.Format(time.RFC3339)))
	}
	maintained(begin.Add(10 * time.Minute))
	withdrawn(t, host, true)
	left(t, "care-0", host)
	if now := time.Now(); now.Before(begin.Add(-5 * time.Second)) {
		t.Errorf("the guest had left %v before the window", begin.Sub(now))
	}
	until(t, time.Minute, "the host's volume has left, too", func() (bool, string) {
		v := volumeNamed(t, "care")
		return v.Host != host && strings.HasSuffix(v.State, "_READY"), v.Host + " " + v.Message
	})
	if now := time.Now(); begin.Before(now) {
		begin = now
	}
	maintained(begin.Add(2 * time.Second))
	withdrawn(t, host, false)
	settled(t, "care", 1)
}

// A policy with an error is refused with the line of the error, and the policy in force stays.
func TestPolicyWithAnError(t *testing.T) {
	applyPolicy(t, fmt.Sprintf(harvestPolicy, "host.lent"))
	before := must(t, "policy", "show")
	file := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(file, []byte("owners:\n- busy:\n  - when: host.owner_cpuu > 1.0\n  idle: {when: 'true'}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, []string{"wrong.yaml:3:", "undeclared reference", "host.owner_cpu"}, "policy", "apply", file)
	refused(t, []string{"wrong.yaml:3:"}, "policy", "test", file)
	if after := must(t, "policy", "show"); after != before {
		t.Errorf("the policy in force was\n%s\nand is\n%s", before, after)
	}
	if out := must(t, "status"); !strings.Contains(out, "policy") {
		t.Errorf("the status does not tell of the policy:\n%s", out)
	}
	must(t, "policy", "rollback")
	if after := must(t, "policy", "show"); after == before {
		t.Error("the policy was not rolled back")
	}
}

// balancePolicy has a short interval, so that the test is short.
const balancePolicy = "balance: {interval: 2s, cool_down: 10m}\n"

// spinning computes for a time, and prints a line from time to time.
const spinning = "echo begun; end=$(($(date +%s) + 100)); while [ $(date +%s) -lt $end ]; do i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done; echo tick; done"

// One host is overloaded, and another is idle: guests move to the idle host while a program runs in them, with a reason, and
// stay there.
func TestBalance(t *testing.T) {
	full(t)
	names := []string{"even-0", "even-1", "even-2"}
	newCluster(t, "even", 3, "--site", "a")
	settled(t, "even", 3)
	host := guestNamed(t, "even-0").Host
	for _, name := range names[1:] {
		if guestNamed(t, name).Host != host {
			must(t, "migrate", name, "--to", host)
		}
	}
	unmarked := mark(t, names...)
	applyPolicy(t, balancePolicy)
	must(t, "run", "even", "--name", "even-run", "--detach", "--", "sh", "-c", spinning)
	started(t, "even-run")
	owner(t, host, "busy")
	moved := ""
	until(t, 90*time.Second, "a guest leaves host "+host, func() (bool, string) {
		explained := ""
		for _, name := range names {
			if g := guestNamed(t, name); g.Host != host && strings.HasSuffix(g.State, "_RUNNING") {
				moved = name
			}
			explained += must(t, "explain", "guest", name)
		}
		return moved != "", explained
	})
	out := must(t, "explain", "guest", moved)
	for _, want := range []string{"balance: the load of " + host + " falls from", "it used", "nothing asks it to move"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if out := must(t, "events"); !strings.Contains(out, "balance: the load of "+host+" falls from") {
		t.Errorf("the events do not tell of the move:\n%s", out)
	}
	if out := must(t, "run", "logs", "--follow", "even-run"); !strings.Contains(out, "tick") {
		t.Errorf("the program has said nothing:\n%s", out)
	}
	settled(t, "even", 3)
	moves := map[string]int{}
	for _, m := range decoded[[]struct{ Guest, Policy string }](t, "migrate", "list", "--all") {
		if m.Policy == "balance" {
			moves[m.Guest]++
		}
	}
	for name, n := range moves {
		if n > 1 {
			t.Errorf("policy balance has moved guest %s %d times", name, n)
		}
	}
	noneRestarted(t, unmarked)
}
