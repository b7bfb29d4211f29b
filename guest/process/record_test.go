package process

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func TestATableThatIsMadeAnewReportsWhatWasLost(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "processes")
	before, err := NewTable(directory)
	if err != nil {
		t.Fatal(err)
	}
	whole := start(t, before, shell("whole", "echo done; exit 3"))
	ended(t, whole)
	// A child in its own process group, as launchers make them.
	lost := start(t, before, shell("lost", "set -m; sleep 100 & echo $!; wait"))
	deadline := time.Now().Add(5 * time.Second)
	for lost.Describe().GetStdoutBytes() == 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}

	table, err := NewTable(directory)
	if err != nil {
		t.Fatal(err)
	}
	again := start(t, table, shell("whole", "echo done; exit 3"))
	if d := ended(t, again); d.GetExitCode() != 3 || d.GetMessage() != "" {
		t.Errorf("a process that had ended: %v", d)
	}
	if out := all(t, again.ReadStdout, 0); out != "done\n" {
		t.Errorf("its output: %q", out)
	}
	p, err := table.Get("lost")
	if err != nil {
		t.Fatal(err)
	}
	if d := ended(t, p); d.GetExitCode() != 137 || !strings.Contains(d.GetMessage(), "guest agent") {
		t.Errorf("a process that was under way: %v", d)
	}
	child, err := strconv.Atoi(strings.TrimSpace(all(t, p.ReadStdout, 0)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline = time.Now().Add(10 * time.Second); ; {
		if _, _, err := sessionOf(child); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is left", child)
		}
		time.Sleep(10 * time.Millisecond)
	}
	ended(t, lost)
	table.Forget("lost")
	if _, err := table.Get("lost"); err == nil {
		t.Error("it is there though it was forgotten")
	}
}

// The agent may be killed right after it has started a program, before its record has the program's id.
func TestAProgramWhoseStartWasNotRecordedIsEnded(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "processes")
	before, err := NewTable(directory)
	if err != nil {
		t.Fatal(err)
	}
	started := start(t, before, shell("begun", "sleep 1003 & wait"))
	awaitMarked(t, "begun", func(list []*v1.RunProcess) bool { return len(list) == 2 })
	early := &Process{request: started.request, directory: started.directory, started: started.started}
	early.save() // as it was before the start
	table, err := NewTable(directory)
	if err != nil {
		t.Fatal(err)
	}
	again := start(t, table, shell("begun", "sleep 1003 & wait"))
	if d := ended(t, again); d.GetExitCode() != 137 {
		t.Errorf("it is started again: %v", d)
	}
	awaitMarked(t, "begun", func(list []*v1.RunProcess) bool { return len(list) == 0 })
	ended(t, started) // its table writes no more
}
