package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// TestUpIsKilled kills a program that brings up a lab, each time at a later moment. The rest must always be removable,
// and Up must be able to complete it.
func TestUpIsKilled(t *testing.T) {
	needLab(t)
	const name = "test-killed"
	t.Cleanup(func() { _ = Down(context.Background(), name, nil) })
	for moment := 5 * time.Millisecond; ; moment += 7 * time.Millisecond {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), upOnly+"="+name)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(moment, func() { _ = cmd.Process.Kill() })
		finished := cmd.Wait() == nil
		timer.Stop()
		if int(moment/time.Millisecond)%2 == 0 { // complete every other lab before removing it
			l, err := Up(deadline(t), Options{Name: name, Sites: 2, Hosts: 1})
			if err != nil {
				t.Fatalf("up after a kill at %s: %v", moment, err)
			}
			made := testLab{l, t}
			made.until(fmt.Sprintf("a1 reaches b1 after a kill at %s", moment), func() bool { return made.reaches("a1", "b1") })
		}
		marks := testLab{at(name), t}.marksOfAny()
		if err := Down(deadline(t), name, nil); err != nil {
			t.Fatalf("down after a kill at %s: %v", moment, err)
		}
		nothingLeft(t, name, marks)
		if finished {
			t.Logf("undisturbed at %s", moment)
			return
		}
	}
}

func TestTwoLabsDoNotMeet(t *testing.T) {
	one := up(t, Options{Name: "test-one", Sites: 1, Hosts: 1})
	two := up(t, Options{Name: "test-two", Sites: 1, Hosts: 1})
	if one.state.plan().prefix().Overlaps(two.state.plan().prefix()) {
		t.Errorf("prefixes %s and %s overlap", one.state.plan().prefix(), two.state.plan().prefix())
	}
	if _, received := one.ping("a1", two.Hosts()[0].Address.String(), 2); received != 0 {
		t.Error("a host of one lab reaches the other lab")
	}
	if names, err := List(); err != nil || !slices.Contains(names, "test-one") || !slices.Contains(names, "test-two") {
		t.Errorf("labs %v, %v", names, err)
	}
}

// TestUpIsInterrupted cancels the context while Up runs.
func TestUpIsInterrupted(t *testing.T) {
	needLab(t)
	const name = "test-interrupted"
	t.Cleanup(func() { _ = Down(context.Background(), name, nil) })
	ctx, cancel := context.WithCancel(deadline(t))
	steps := 0
	_, err := Up(ctx, Options{Name: name, Sites: 2, Hosts: 1, Progress: func(string) {
		if steps++; steps == 3 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted up: %v", err)
	}
	l := up(t, Options{Name: name, Sites: 2, Hosts: 1})
	if !l.reaches("a1", "b1") {
		t.Error("a1 does not reach b1")
	}
}
