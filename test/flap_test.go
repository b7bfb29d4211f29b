package test

// flap_test.go - a host whose connection to the manager comes and goes.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A host is cut off from the manager and comes back, once or five times. Then its agent is killed as often, each time as soon as
// the one before is at work. The host's guest and the program do not notice.
func TestAHostThatFlaps(t *testing.T) {
	hostsReady(t)
	times := 1
	if long() {
		times = 5
	}
	newCluster(t, "flaps", 2, "--spread", "site")
	settled(t, "flaps", 2)
	unmarked := mark(t, "flaps-0", "flaps-1")
	before := guestNamed(t, "flaps-1")
	p := computes(t, "flaps")
	begun := time.Now()
	for range times {
		restore := cutFromManager(t, before.Host)
		until(t, settle, "the manager misses the host", func() (bool, string) {
			g := guestNamed(t, "flaps-1")
			return strings.HasSuffix(g.State, "_UNKNOWN"), g.State
		})
		restore()
		atWork(t, "flaps-1")
	}
	for range times {
		connected := connections(t, before.Host)
		mustKill(t, before.Host, anAgent)
		until(t, settle, "the next agent connects", func() (bool, string) { return connections(t, before.Host) > connected, "" })
		atWork(t, "flaps-1")
	}
	t.Logf("host %s was away %d times within %.0f s", before.Host, 2*times, time.Since(begun).Seconds())
	p.right(t)
	settled(t, "flaps", 2)
	if now := guestNamed(t, "flaps-1"); now.Host != before.Host || now.Epoch != before.Epoch {
		t.Errorf("the guest is on %s at epoch %s, and was on %s at %s", now.Host, now.Epoch, before.Host, before.Epoch)
	}
	noneRestarted(t, unmarked)
}

// atWork waits until the manager knows that a guest runs.
func atWork(t *testing.T, guest string) {
	t.Helper()
	until(t, settle, "the manager knows that guest "+guest+" runs", func() (bool, string) {
		g := guestNamed(t, guest)
		return g.Ready && strings.HasSuffix(g.State, "_RUNNING"), g.State + " " + g.Message
	})
}

// cutFromManager drops all packets between a host and the manager until restore is called. The other hosts still reach the
// host.
func cutFromManager(t *testing.T, host string) (restore func()) {
	t.Helper()
	port := listen[strings.LastIndex(listen, ":")+1:]
	inHost(t, host, fmt.Sprintf("nft 'table ip flap { chain out { type filter hook output priority 0; tcp dport %[1]s drop; }; "+
		"chain in { type filter hook input priority 0; tcp sport %[1]s drop; }; }'", port))
	cut := true
	restore = func() {
		if cut {
			cut = false
			inHost(t, host, "nft delete table ip flap")
		}
	}
	t.Cleanup(restore)
	return restore
}

// connections returns how often a host's agent has connected, by the manager's log.
func connections(t *testing.T, host string) int {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(shared.state, "manager", "manager.log"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(log), `msg="agent connected" host=`+host+" ")
}
