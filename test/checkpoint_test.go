package test

// checkpoint_test.go - a cluster is restored from a checkpoint under a program that checks itself.

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// savedCluster has the fields of a checkpoint that the test reads.
type savedCluster struct {
	Meta         struct{ Name, UID string }
	State        string
	Message      string
	StoodMs      uint32
	Verification struct{ State, Guest, Host string }
	Volume       *struct{ File struct{ Hosts []string } } // nil: the cluster has none
	Members      []struct {
		Guest, GuestUID string
		File            struct {
			Hosts []string
			Base  string
			Blob  struct {
				Digest string
				Size   json.Number
			}
		}
	}
}

// TestAClusterGoesOnFromACheckpoint restores a cluster under one run: on request, and because a host is lost. For the
// last restore, the test stops the agent of a guest's host, as if the host were disconnected: the agent can neither hear
// from the manager nor end the guest. The host's watchdog ends the guest before its lease ends. When the agent continues, it
// has old orders to run the guest.
func TestAClusterGoesOnFromACheckpoint(t *testing.T) {
	newCluster(t, "saved", 2, "--spread", "site", "--lease", "25s", "--on-host-loss", "restore")
	const steps = 150
	during := filepath.Join(t.TempDir(), "during")
	done := make(chan error, 1)
	go func() {
		_, err := shared.watari(patience, meltOf("saved", "saved-during", strconv.Itoa(steps), "--collect", "log.lammps:"+during)...)
		done <- err
	}()
	computing(t, time.Minute, "saved-during")
	must(t, "run", "saved", "--name", "saved-removed", "--detach", "--", "sleep", "86399")
	made := checkpointed(t, "saved")
	t.Logf("checkpoint %s: guests were paused for %d ms", made.Meta.Name, made.StoodMs)
	if !strings.HasSuffix(made.State, "_DONE") || len(made.Members) != 2 {
		t.Fatalf("the checkpoint is %+v", made)
	}
	// The next checkpoint has only the differences, and the cluster is restored from it.
	whole := made
	made = checkpointed(t, "saved")
	for i, m := range made.Members {
		first := whole.Members[i].File
		t.Logf("guest %s: a file of %s bytes, and one of %s that builds on it", m.Guest, first.Blob.Size, m.File.Blob.Size)
		if m.File.Base != first.Blob.Digest {
			t.Errorf("the second file of %s builds on %q, not on %q", m.Guest, m.File.Base, first.Blob.Digest)
		}
	}
	made = copied(t, made.Meta.Name)
	// An altered file is detected, and copied again from the other host. A guest is restored on trial beside the running
	// one.
	alter(t, made, 0, made.Members[0].File.Hosts[:1])
	must(t, "checkpoint", "verify", made.Meta.Name)
	made = copied(t, made.Meta.Name)
	if v := made.Verification; !strings.HasSuffix(v.State, "_DONE") || !strings.HasPrefix(v.Guest, "saved-") {
		t.Errorf("the verification is %+v", v)
	}
	// A restore brings back the program of a run that is removed now. No run controls it any more, so it is ended.
	must(t, "run", "cancel", "saved-removed")
	until(t, time.Minute, "the cancelled run is removed", func() (bool, string) {
		out, err := shared.watari(patience, "run", "remove", "saved-removed")
		return err == nil, out
	})
	// The next checkpoint is altered or truncated on all hosts, and then requested. The one before is used instead.
	for _, damage := range []func(c savedCluster){
		func(c savedCluster) { alter(t, c, 1, c.Members[1].File.Hosts) },
		func(c savedCluster) { truncate(t, c, 1) },
	} {
		damaged := copied(t, checkpointed(t, "saved").Meta.Name)
		damage(damaged)
		const certificate = "/run/watari/pki/certificate.pem"
		saved := must(t, "guest", "exec", "saved-0", "--", "cat", certificate)
		must(t, "checkpoint", "restore", damaged.Meta.Name)
		settled(t, "saved", 2)
		// The saved one may have expired, and may be one of those that were revoked.
		until(t, time.Minute, "the restored guest has a new certificate", func() (bool, string) {
			now, err := shared.watari(patience, "guest", "exec", "saved-0", "--", "cat", certificate)
			return err == nil && now != saved, fmt.Sprint(err)
		})
		until(t, time.Minute, "the program of the removed run is ended", func() (bool, string) {
			out, err := shared.watari(patience, "guest", "exec", "saved-0", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
			return err == nil && !strings.Contains(out, "sleep 86399"), out
		})
		if now := decoded[savedCluster](t, "checkpoint", "show", damaged.Meta.Name); !strings.HasSuffix(now.State, "_DAMAGED") {
			t.Errorf("the damaged checkpoint is %s: %s", now.State, now.Message)
		}
		eventsTell(t, "is restored from "+made.Meta.Name+": checkpoint "+damaged.Meta.Name+" could not be restored")
	}

	lost := guestNamed(t, "saved-1")
	signal(lost.Host, "watari-agent --manager", syscall.SIGSTOP)
	t.Cleanup(func() { signal(lost.Host, "watari-agent --manager", syscall.SIGCONT) })
	stopped := time.Now()
	until(t, 40*time.Second, "the lost guest's process ends", func() (bool, string) { return copies(lost.Meta.UID) == 0, "" })
	ended := time.Since(stopped)
	until(t, time.Minute, "the lost guest is restored elsewhere", func() (bool, string) {
		now := guestNamed(t, "saved-1")
		return now.Host != "" && now.Host != lost.Host && copies(lost.Meta.UID) == 1, now.Message
	})
	t.Logf("a host's agent stopped; the watchdog ended the guest after %.1f s, and it was restored elsewhere after %.1f s", ended.Seconds(), time.Since(stopped).Seconds())
	signal(lost.Host, "watari-agent --manager", syscall.SIGCONT)

	if err := <-done; err != nil {
		t.Fatalf("the run did not survive the restores: %v", err)
	}
	rightAnswer(t, table(t, during), steps)
	settled(t, "saved", 2)
	must(t, "checkpoint", "delete", made.Meta.Name)
}

// copied waits until each file of a checkpoint is on two hosts.
func copied(t *testing.T, name string) (now savedCluster) {
	t.Helper()
	until(t, max(time.Minute, settle), "each file is on two hosts", func() (bool, string) {
		now = decoded[savedCluster](t, "checkpoint", "show", name)
		for _, m := range now.Members {
			if len(m.File.Hosts) < 2 {
				return false, m.Guest
			}
		}
		return now.Volume == nil || len(now.Volume.File.Hosts) >= 2, "the volume"
	})
	return now
}

// alter changes bytes in the middle of a guest's file of a checkpoint, on some hosts.
func alter(t *testing.T, c savedCluster, guest int, hosts []string) {
	t.Helper()
	for _, host := range hosts {
		inHost(t, host, fmt.Sprintf("printf altered | dd of=%s/checkpoints/%s/%s bs=1 seek=5000 conv=notrunc 2>/dev/null", agentState, c.Meta.UID, c.Members[guest].GuestUID))
	}
}

// truncate cuts off the end of a guest's file of a checkpoint, on all hosts.
func truncate(t *testing.T, c savedCluster, guest int) {
	t.Helper()
	for _, host := range c.Members[guest].File.Hosts {
		inHost(t, host, fmt.Sprintf("truncate -s -1000 %s/checkpoints/%s/%s", agentState, c.Meta.UID, c.Members[guest].GuestUID))
	}
}

// checkpointed makes a checkpoint of a cluster. Guests are paused for 3 s at most, so a checkpoint may fail on a busy
// machine. Then checkpointed tries again.
func checkpointed(t *testing.T, cluster string) (made savedCluster) {
	t.Helper()
	for try := range 4 {
		out, err := shared.watari(max(2*time.Minute, settle), "-o", "json", "checkpoint", "create", cluster)
		if err == nil {
			return decoded[savedCluster](t, "checkpoint", "show", newestCheckpoint(t, cluster))
		}
		t.Logf("checkpoint create %s: %v\n%s", cluster, err, out)
		made = decoded[savedCluster](t, "checkpoint", "show", newestCheckpoint(t, cluster))
		late := strings.Contains(made.Message, "within") || strings.Contains(made.Message, "stopped for too long")
		if try == 3 || !strings.HasSuffix(made.State, "_FAILED") || !late {
			t.Fatalf("checkpoint %s is %s: %s", made.Meta.Name, made.State, made.Message)
		}
	}
	return made
}

func newestCheckpoint(t *testing.T, cluster string) string {
	list := decoded[[]savedCluster](t, "checkpoint", "list", cluster)
	if len(list) == 0 {
		t.Fatalf("cluster %s has no checkpoint", cluster)
	}
	return list[len(list)-1].Meta.Name
}
