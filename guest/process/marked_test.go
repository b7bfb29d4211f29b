package process

import (
	"context"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

// awaitMarked waits until the processes that come from a process of a table are as wanted.
func awaitMarked(t *testing.T, id string, wanted func([]*v1.RunProcess) bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		list, omitted, err := Marked(t.Context(), id, 50*time.Millisecond, MaxMarked)
		if err != nil || omitted != 0 {
			t.Fatalf("%d omitted, %v", omitted, err)
		}
		if wanted(list) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are %v", list)
		}
	}
}

func TestTheProcessesOfARunAreListedWithWhatTheyUse(t *testing.T) {
	table := newTable(t)
	start(t, table, shell("run-1", "(OMPI_COMM_WORLD_RANK=3 exec sh -c 'while :; do :; done') & (exec env -i sleep 1003) & wait"))
	start(t, table, shell("run-2", "exec sleep 1003"))
	var rank, sleeps *v1.RunProcess
	awaitMarked(t, "run-1", func(list []*v1.RunProcess) bool {
		for _, p := range list {
			if p.Rank != nil {
				rank = p
			}
			if p.GetName() == "sleep" { // its environment is empty
				sleeps = p
			}
		}
		return len(list) == 3 && rank != nil && sleeps.GetState() == "S"
	})
	if rank.GetRank() != 3 || rank.GetName() != "sh" || rank.GetPid() == 0 || rank.GetMemoryBytes() == 0 {
		t.Errorf("the rank: %v", rank)
	}
	if mark := MarkOf(int(rank.GetPid())); mark != "WATARI_PROCESS=run-1" {
		t.Errorf("the mark of the rank: %q", mark)
	}
	if mark := MarkOf(int(sleeps.GetPid())); mark != "" {
		t.Errorf("the mark of a process without environment: %q", mark)
	}

	list, omitted, err := Marked(t.Context(), "run-1", 500*time.Millisecond, 1)
	if err != nil || omitted != 2 || len(list) != 1 || list[0].GetPid() != rank.GetPid() {
		t.Fatalf("the process that has computed most: %v, %d omitted, %v", list, omitted, err)
	}
	if one := list[0]; one.GetCpu() <= 0 || one.GetCpu() > 1.5 || one.GetCpuTimeNs() == 0 {
		t.Errorf("a process that computes: %v", one)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if _, _, err := Marked(ended, "run-1", time.Hour, 1); err == nil {
		t.Error("a call that was given up goes on")
	}
}

func TestAProcessKeepsTheMarkThatItIsGiven(t *testing.T) {
	request := shell("here", "exec sleep 1003")
	request.Env = []string{Mark + "=there"}
	start(t, newTable(t), request)
	awaitMarked(t, "there", func(list []*v1.RunProcess) bool { return len(list) == 1 })
	awaitMarked(t, "here", func(list []*v1.RunProcess) bool { return len(list) == 0 })
}
