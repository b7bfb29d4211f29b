package test

// checkpoint_badluck_test.go - lost hosts while a cluster is saved or restored, and full disks.

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// crash ends a host and all its processes at once.
func crash(t *testing.T, host string) {
	t.Helper()
	must(t, "lab", "host", "crash", "--name", labName, host)
}

// awaitProgress waits until the program of counting continues to count. Its cluster may be restored meanwhile.
func awaitProgress(t *testing.T, cluster string) {
	t.Helper()
	settledWithin(t, 3*time.Minute, cluster, 2)
	before := counted(t, cluster)
	until(t, time.Minute, "the program counts on", func() (bool, string) {
		run := decoded[struct{ State, Message string }](t, "run", "show", cluster+"-count")
		if !strings.HasSuffix(run.State, "_RUNNING") {
			t.Fatalf("the run is %s: %s", run.State, run.Message)
		}
		return counted(t, cluster) > before+5, ""
	})
}

func TestHostsAreLostWhileAClusterIsSavedAndRestored(t *testing.T) {
	hostsReady(t)
	newCluster(t, "struck", 2, "--spread", "site", "--lease", "25s", "--on-host-loss", "restore")
	counting(t, "struck")
	kept := copied(t, checkpointed(t, "struck").Meta.Name)

	// A host is lost while the next checkpoint is made.
	done := make(chan error, 1)
	go func() {
		_, err := shared.watari(3*time.Minute, "checkpoint", "create", "struck")
		done <- err
	}()
	until(t, 30*time.Second, "the next checkpoint has begun", func() (bool, string) { return newestCheckpoint(t, "struck") != kept.Meta.Name, "" })
	lost := guestNamed(t, "struck-1").Host
	crash(t, lost)
	t.Logf("host %s is lost under a checkpoint, which says: %v", lost, <-done)
	awaitProgress(t, "struck")
	must(t, "lab", "host", "start", "--name", labName, lost)
	hostsReady(t)
	kept = copied(t, checkpointed(t, "struck").Meta.Name)

	// A host is lost while the cluster is restored.
	go func() {
		_, err := shared.watari(4*time.Minute, "checkpoint", "restore", kept.Meta.Name)
		done <- err
	}()
	until(t, time.Minute, "the cluster is being restored", func() (bool, string) {
		c := decoded[struct{ Restore struct{ State string } }](t, "cluster", "show", "struck")
		return strings.HasSuffix(c.Restore.State, "_RESTORING") && guestNamed(t, "struck-1").Host != "", c.Restore.State
	})
	lost = guestNamed(t, "struck-1").Host
	crash(t, lost)
	err := <-done
	t.Logf("host %s is lost under a restore, which says: %v", lost, err)
	awaitProgress(t, "struck")
	must(t, "lab", "host", "start", "--name", labName, lost)
	hostsReady(t)
	must(t, "run", "cancel", "struck-count")
}

func TestACheckpointThatFindsNoRoom(t *testing.T) {
	hostsReady(t)
	newCluster(t, "narrow", 2, "--spread", "site")
	counting(t, "narrow")
	kept := copied(t, checkpointed(t, "narrow").Meta.Name)
	host := guestNamed(t, "narrow-0").Host
	fill := func(host string) (free func()) {
		inHost(t, host, "mkdir -p -m 700 "+agentState+"/checkpoints && mount -t tmpfs -o size=1m full "+agentState+"/checkpoints")
		return func() { inHost(t, host, "umount "+agentState+"/checkpoints") }
	}
	// The host of a guest has no room for the guest's file: no checkpoint is made, and the guests continue.
	free := fill(host)
	until(t, time.Minute, "the checkpoint fails for lack of room", func() (bool, string) { // on a busy machine, it may fail before
		out, err := shared.watari(time.Minute, "checkpoint", "create", "narrow")
		if err == nil {
			t.Fatalf("a checkpoint is made without room:\n%s", out)
		}
		return strings.Contains(out, "narrow-0") && strings.Contains(out, "room"), out
	})
	free()
	awaitProgress(t, "narrow")
	// The host for a copy has no room: another host stores the copy.
	var frees []func()
	for _, other := range hosts {
		if other != host && other != guestNamed(t, "narrow-1").Host && len(frees) == 0 {
			frees = append(frees, fill(other))
		}
	}
	copied(t, checkpointed(t, "narrow").Meta.Name)
	for _, free := range frees {
		free()
	}
	must(t, "checkpoint", "restore", kept.Meta.Name)
	awaitProgress(t, "narrow")
	must(t, "run", "cancel", "narrow-count")
}

// A program over PM continues after checkpoints, is restored from the last one twice, the second time on another host, and
// computes the same result as an undisturbed run.
func TestAProgramOverPMGoesBackToACheckpoint(t *testing.T) {
	full(t)
	hostsReady(t)
	newCluster(t, "rail", 2, "--spread", "site", "--lease", "25s", "--on-host-loss", "restore")
	log := filepath.Join(t.TempDir(), "log")
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := shared.watari(8*time.Minute, meltOf("rail", "rail-run", "100", append([]string{"--collect", "log.lammps:" + log}, overPM...)...)...)
		done <- result{out, err}
	}()
	computing(t, time.Minute, "rail-run")
	for range 2 {
		made := checkpointed(t, "rail")
		t.Logf("checkpoint %s: guests were paused for %d ms", made.Meta.Name, made.StoodMs)
	}
	copied(t, newestCheckpoint(t, "rail"))
	must(t, "checkpoint", "restore", "rail")
	settled(t, "rail", 2)
	time.Sleep(2 * time.Second) // the program sends and receives messages meanwhile
	lost := guestNamed(t, "rail-1").Host
	crash(t, lost)
	settledWithin(t, 3*time.Minute, "rail", 2)
	if now := guestNamed(t, "rail-1").Host; now == lost {
		t.Errorf("guest rail-1 is back on host %s, which is lost", lost)
	}
	must(t, "lab", "host", "start", "--name", labName, lost)
	ended := <-done
	if ended.err != nil {
		t.Fatalf("the run did not survive: %v\n%s", ended.err, ended.out)
	}
	carriedByPM(t, ended.out, 2, 5e6)
	rightAnswer(t, table(t, log), 100)
	hostsReady(t)
}
