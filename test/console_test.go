package test

// console_test.go - the event and the console of a guest that ends by itself.

import (
	"strings"
	"testing"
	"time"
)

type keptConsole struct {
	Host, Epoch, Target, End string
	Life                     uint32
}

// endsAgain waits until a guest is ready in a later epoch, and returns the event of the end before it.
func endsAgain(t *testing.T, name, epoch string) string {
	t.Helper()
	until(t, 4*time.Minute, "guest "+name+" to be restarted", func() (bool, string) {
		g := guestNamed(t, name)
		return g.Ready && g.Epoch != epoch, g.State + " " + g.Message
	})
	events := must(t, "events")
	at := strings.LastIndex(events, "ended on ")
	if at < 0 {
		t.Fatalf("no event tells of the end:\n%s", events)
	}
	return events[at:]
}

func TestTheConsoleOfAGuestThatEndedIsKeptAndQuoted(t *testing.T) {
	hostsReady(t)
	newCluster(t, "ending", 1)
	const name = "ending-0"
	left := guestNamed(t, name)

	must(t, "guest", "exec", name, "--", "sh", "-c",
		`printf '\033[2Jfarewell\n' >/dev/kmsg; (sleep 1; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &`)
	event := endsAgain(t, name, left.Epoch)
	for _, word := range []string{"the guest powered itself off or reset itself", "Kernel panic - not syncing: sysrq triggered crash"} {
		if !strings.Contains(event, word) {
			t.Errorf("the event does not say %q:\n%s", word, event)
		}
	}
	if strings.Contains(event, "\x1b") {
		t.Errorf("the event has the guest's escape sequences: %q", event)
	}
	if text := must(t, "guest", "console", "--previous", name); !strings.Contains(text, "farewell") {
		t.Errorf("the console of the life that ended:\n%s", text)
	}

	from, to := elsewhere(t, name)
	must(t, "guest", "exec", name, "--", "sh", "-c", "echo before the move >/dev/kmsg")
	must(t, "migrate", name, "--to", to)
	must(t, "guest", "exec", name, "--", "sh", "-c", "echo after the move >/dev/kmsg")
	moved := guestNamed(t, name)
	mustKill(t, to, "qemu-system.*watari-"+name)
	if event := endsAgain(t, name, moved.Epoch); !strings.Contains(event, "its QEMU crashed or was killed") {
		t.Errorf("the event: %s", event)
	}
	text := must(t, "guest", "console", "--previous", name)
	before, after := strings.Index(text, "before the move"), strings.Index(text, "after the move")
	if before < 0 || after < before {
		t.Errorf("the console over the move:\n%s", text)
	}
	var lives []string
	for _, k := range decoded[[]keptConsole](t, "guest", "console", "--list", name) {
		if k.Life == 1 {
			lives = append(lives, k.Host)
		}
	}
	if len(lives) != 2 || lives[0] != from || lives[1] != to {
		t.Errorf("the last life was on %v, not on %s and %s", lives, from, to)
	}
}
