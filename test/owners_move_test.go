package test

// owners_move_test.go - owners who come back to a host while a guest moves to it or away from it.

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"watari/test/evidence"
)

// The owner of the target comes back while memory is sent there: the move is cancelled. The owner of the source comes back:
// the move goes on. Either way the guest is soon off the owner's host, and its program does not notice.
func TestOwnersComeBackDuringAMove(t *testing.T) {
	hostsReady(t)
	newCluster(t, "back", 2, "--site", "a", "--spread", "host")
	settled(t, "back", 2)
	applyPolicy(t, fmt.Sprintf(harvestPolicy, "true"))
	unmarked := mark(t, "back-0", "back-1")
	p := computes(t, "back")
	for _, c := range []struct {
		name string
		host func(from, to string) string
		end  string // of the move
	}{{"target", target, "cancelled"}, {"source", source, "done"}} {
		t.Run("the owner of the "+c.name, func(t *testing.T) {
			strikes(t, func() (bool, string) { return returnDuringAMove(t, c.host, c.end) })
		})
	}
	p.right(t)
	settled(t, "back", 2)
	noneRestarted(t, unmarked)
}

// returnDuringAMove moves a guest, and lets the owner of one end come back while the guest's memory is sent.
func returnDuringAMove(t *testing.T, host func(from, to string) string, end string) (struck bool, how string) {
	t.Helper()
	settled(t, "back", 2)
	from, to := guestNamed(t, "back-0").Host, emptyHost(t)
	busy := host(from, to)
	move := beginMove(t, "back-0", to, "--bandwidth", "6M")
	move.sends(t)
	begun := time.Now()
	owner(t, busy, "types")
	withdrawn(t, busy, true)
	done := time.Now()
	last := move.ended(t)
	left(t, "back-0", busy)
	settled(t, "back", 2)
	struck, how = move.struck(t, evidence.Transferring, begun, done)
	how += fmt.Sprintf("; %s: %s; the guest is on %s, moved from %s to %s", last.State, last.Message, guestNamed(t, "back-0").Host, from, to)
	if !struck {
		return struck, how
	}
	if !strings.HasSuffix(last.State, "_"+strings.ToUpper(end)) {
		t.Errorf("the move has ended %s (%s), and not %s", last.State, last.Message, end)
	}
	if want := fmt.Sprintf("%s, from %s to %s: user ", end, from, to); !strings.Contains(must(t, "explain", "guest", "back-0"), want) {
		t.Errorf("no %q in:\n%s", want, must(t, "explain", "guest", "back-0"))
	}
	if out := must(t, "explain", "host", busy); !strings.Contains(out, "takes no guests since") {
		t.Errorf("host %s is explained so:\n%s", busy, out)
	}
	if busy == to {
		eventsTell(t, fmt.Sprintf("its move from %s to %s is cancelled: %s takes no guests any more (its owner uses it)", from, to, to))
	}
	return struck, how
}

// sends waits until the guest's memory is being sent.
func (l *moveLog) sends(t *testing.T) {
	t.Helper()
	until(t, settle, "memory is being sent", func() (bool, string) {
		m := decoded[migration](t, "migrate", "show", l.move)
		return m.Progress.ProcessedBytes != "", m.State + " " + m.Message
	})
}

// ended waits until the move has ended.
func (l *moveLog) ended(t *testing.T) (m migration) {
	t.Helper()
	until(t, 3*time.Minute, "move "+l.move+" has ended", func() (bool, string) {
		m = decoded[migration](t, "migrate", "show", l.move)
		for _, end := range []string{"_DONE", "_FAILED", "_CANCELLED"} {
			if strings.HasSuffix(m.State, end) {
				return true, ""
			}
		}
		return false, m.State + " " + m.Message
	})
	return m
}
