package test

// checkpoint_test.go - a cluster goes on from a checkpoint under a program that checks itself.

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// savedCluster is what the test reads of a checkpoint.
type savedCluster struct {
	Meta    struct{ Name string }
	State   string
	Message string
	StoodMs uint32
	Members []struct {
		Guest string
		File  struct{ Hosts []string }
	}
}

func TestAClusterGoesOnFromACheckpoint(t *testing.T) {
	newCluster(t, "saved", 2, "--spread", "site")
	dir := t.TempDir()
	melt := func(name string, log string, more ...string) []string {
		return append([]string{"run", "saved", "--name", name, "--stage", "../examples/melt/in.melt", "--collect", "log.lammps:" + log}, append(more,
			"--", "lmp", "-in", "in.melt", "-var", "steps", "150")...)
	}
	alone := filepath.Join(dir, "alone")
	must(t, melt("saved-alone", alone)...)

	during := filepath.Join(dir, "during")
	done := make(chan error, 1)
	go func() {
		_, err := shared.watari(5*time.Minute, melt("saved-during", during)...)
		done <- err
	}()
	until(t, time.Minute, "the program writes its table", func() (bool, string) {
		out, _ := shared.watari(20*time.Second, "run", "logs", "saved-during")
		return strings.Contains(out, "Step"), out
	})
	made := decoded[savedCluster](t, "checkpoint", "create", "saved")
	t.Logf("checkpoint %s: guests stood for %d ms", made.Meta.Name, made.StoodMs)
	if !strings.HasSuffix(made.State, "_DONE") || len(made.Members) != 2 {
		t.Fatalf("the checkpoint is %+v", made)
	}
	until(t, time.Minute, "each file is on two hosts", func() (bool, string) {
		now := decoded[savedCluster](t, "checkpoint", "show", made.Meta.Name)
		for _, m := range now.Members {
			if len(m.File.Hosts) < 2 {
				return false, m.Guest
			}
		}
		return true, ""
	})
	must(t, "checkpoint", "restore", made.Meta.Name)
	if err := <-done; err != nil {
		t.Fatalf("the run did not survive the restore: %v", err)
	}
	if a, b := table(t, alone), table(t, during); a != b {
		t.Errorf("the answers differ:\n%s\n---\n%s", a, b)
	}
	settled(t, "saved", 2)
	must(t, "checkpoint", "delete", made.Meta.Name)
}
