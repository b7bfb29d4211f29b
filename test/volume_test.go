package test

// volume_test.go - a cluster's home on a volume.

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// volume is what a test reads of a volume.
type volume struct {
	Meta                 struct{ Name, UID string }
	Host, State, Message string
	Move                 struct{ State, Message, CopiedBytes, TotalBytes string }
}

func volumeNamed(t *testing.T, name string) volume {
	t.Helper()
	return decoded[volume](t, "volume", "show", name)
}

// A cluster's files outlive it. Its guest uses the volume from another host than the volume's, while the guest moves, and
// while both agents and the volume's daemon are killed. A snapshot restores the earlier files, on another host.
func TestFilesOutliveTheirCluster(t *testing.T) {
	hostsReady(t)
	must(t, "volume", "create", "data", "--size", "1G", "--host", "b1")
	t.Cleanup(func() { must(t, "volume", "delete", "data") })
	refused(t, []string{"there is no volume \"dta\"", "data"}, "cluster", "create", "archive", "--image", imageName, "--memory", "256M", "--volume", "dta")
	create := []string{"cluster", "create", "archive", "--guests", "2", "--memory", "256M", "--image", imageName, "--wait", "--site", "a", "--spread", "host", "--volume", "data"}
	must(t, create...)
	gone := false
	t.Cleanup(func() {
		if !gone {
			must(t, "cluster", "delete", "archive", "--wait")
		}
	})
	settled(t, "archive", 2)
	refused(t, []string{"cluster archive uses volume data"}, "volume", "delete", "data")
	const write = "echo begun; cd; for i in $(seq 25); do echo line $i >>lines; dd if=/dev/urandom of=block$((i % 4)) bs=1M count=1 conv=fsync 2>/dev/null; sha256sum block* >sums; sync; sleep 0.3; done"
	must(t, "run", "archive", "--name", "archive-run", "-n", "1", "--detach", "--", "sh", "-c", write)
	started(t, "archive-run")
	mover := guestNamed(t, "archive-0")
	signal(mover.Host, "watari-agent --manager", syscall.SIGKILL)
	signal("b1", "watari-agent --manager", syscall.SIGKILL)
	signal("b1", "qemu-storage-daemon", syscall.SIGKILL)
	hostsReady(t)
	to := map[string]string{"a1": "a2", "a2": "a1"}[mover.Host]
	until(t, time.Minute, "the guest can be moved", func() (bool, string) {
		out, err := shared.watari(time.Minute, "migrate", "archive-0", "--to", to)
		return err == nil, out
	})
	out := must(t, "run", "logs", "--follow", "archive-run")
	if seen := must(t, "guest", "exec", "-u", "watari", "archive-1", "--", "sh", "-c", "cd; wc -l <lines; sha256sum -c sums"); !strings.HasPrefix(seen, "25\n") || strings.Count(seen, ": OK") != 4 {
		t.Errorf("the other guest sees\n%s\n%s", seen, out)
	}
	if sums := must(t, "volume", "cp", "data:sums", "-"); strings.Count(sums, "block") != 4 {
		t.Errorf("the copied file has %s", sums)
	}
	must(t, "volume", "snapshot", "data")
	must(t, "guest", "exec", "-u", "watari", "archive-1", "--", "sh", "-c", "cd; echo later >>lines; rm block0; sync")
	must(t, "volume", "snapshot", "data")
	sizes := decoded[[]struct {
		Volume struct {
			File struct{ Blob struct{ Size string } }
		}
	}](t, "checkpoint", "list", "--volume", "data")
	if len(sizes) != 2 {
		t.Fatalf("there are %d snapshots", len(sizes))
	}
	t.Logf("the first snapshot has %s bytes, the next %s", sizes[0].Volume.File.Blob.Size, sizes[1].Volume.File.Blob.Size)
	refused(t, []string{"cluster archive uses volume data"}, "volume", "restore", "data-s1")
	must(t, "cluster", "delete", "archive", "--wait")
	gone = true
	must(t, "volume", "restore", "data-s1", "--host", "b2")
	if host := volumeNamed(t, "data").Host; host != "b2" {
		t.Errorf("the volume is on host %s", host)
	}
	must(t, create...)
	gone = false
	settled(t, "archive", 2)
	if seen := must(t, "guest", "exec", "-u", "watari", "archive-1", "--", "sh", "-c", "cd; wc -l <lines; sha256sum -c sums"); !strings.HasPrefix(seen, "25\n") || strings.Count(seen, ": OK") != 4 {
		t.Errorf("the next cluster finds\n%s", seen)
	}

	counting(t, "archive")
	made := checkpointed(t, "archive")
	t.Logf("checkpoint %s: guests were paused for %d ms", made.Meta.Name, made.StoodMs)
	taken := counted(t, "archive")
	until(t, 30*time.Second, "the program goes on", func() (bool, string) { return counted(t, "archive") > taken+5, "" })
	made = copied(t, made.Meta.Name)
	must(t, "checkpoint", "verify", made.Meta.Name)
	if v := copied(t, made.Meta.Name).Verification; !strings.HasSuffix(v.State, "_DONE") || v.Guest != "archive-0" { // which has the volume
		t.Errorf("the verification is %+v", v)
	}
	must(t, "checkpoint", "restore", made.Meta.Name)
	settled(t, "archive", 2)
	goesOnCounting(t, "archive", taken)
}

// counting runs a program that writes numbers to a file in the cluster's home, and fails if the file has other lines than
// the program has written.
func counting(t *testing.T, cluster string) {
	const count = "cd; rm -f numbers; n=0; while n=$((n+1)); do echo $n >>numbers; sync; test $(wc -l <numbers) = $n || exit 9; test $n != 1 || echo begun; sleep 0.1; done"
	must(t, "run", cluster, "--name", cluster+"-count", "-n", "1", "--detach", "--", "sh", "-c", count)
	started(t, cluster+"-count")
}

// counted returns how many numbers the disk has, read by a guest with empty caches.
func counted(t *testing.T, cluster string) int {
	t.Helper()
	out := must(t, "guest", "exec", cluster+"-0", "--", "sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches; awk '$1 != NR {print \"line\", NR, \"is\", $0; exit 1} END {print NR}' /home/watari/numbers")
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatalf("the numbers are %s", out)
	}
	return n
}

// goesOnCounting checks that the program continues from the checkpoint, which was made soon after it had counted to a
// number.
func goesOnCounting(t *testing.T, cluster string, taken int) {
	t.Helper()
	back := counted(t, cluster)
	until(t, time.Minute, "the program goes on after the restore", func() (bool, string) {
		run := decoded[struct{ State, Message string }](t, "run", "show", cluster+"-count")
		return counted(t, cluster) > back+5 && strings.HasSuffix(run.State, "_RUNNING"), run.State + " " + run.Message
	})
	t.Logf("it had counted to %d when the checkpoint was whole, and to %d after the restore", taken, back)
	must(t, "run", "cancel", cluster+"-count")
}

// replicated makes a volume on b2 with a file on it. It returns when snapshots that include the file are on two hosts, and
// no cluster uses the volume.
func replicated(t *testing.T, name, text string) {
	t.Helper()
	must(t, "volume", "create", name, "--size", "256M", "--host", "b2", "--replicas", "2", "--every", "10s")
	t.Cleanup(func() { must(t, "volume", "delete", name) })
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "cluster", "create", name, "--guests", "1", "--memory", "256M", "--image", imageName, "--wait", "--volume", name)
	must(t, "volume", "cp", file, name+":file")
	must(t, "cluster", "delete", name, "--wait") // writes the file to the disk
	written := time.Now()
	until(t, time.Minute, "a snapshot of volume "+name+" is on two hosts", func() (bool, string) {
		list := decoded[[]struct {
			Meta   meta
			State  string
			Taken  time.Time
			Volume struct{ File struct{ Hosts []string } }
		}](t, "checkpoint", "list", "--volume", name)
		for _, c := range list {
			if c.Taken.After(written) && strings.HasSuffix(c.State, "_DONE") && len(c.Volume.File.Hosts) == 2 {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", list)
	})
	must(t, "volume", "snapshot", name, "--every", "0")
}

// A volume's host is lost: its agent and the volume's daemon are stopped for good. The cluster is restored from its
// checkpoint, with the volume on another host. Another volume, which no cluster uses, is restored from the replica of its
// snapshot. The old host deletes its disks when it comes back.
func TestAVolumeWhoseHostIsLost(t *testing.T) {
	full(t)
	hostsReady(t)
	must(t, "volume", "create", "away", "--size", "256M", "--host", "b2")
	t.Cleanup(func() { must(t, "volume", "delete", "away") })
	replicated(t, "twice", "on two hosts\n")
	newCluster(t, "away", 2, "--site", "a", "--volume", "away", "--lease", "12s", "--on-host-loss", "restore")
	counting(t, "away")
	made := checkpointed(t, "away")
	taken := counted(t, "away")
	until(t, time.Minute, "the volume's file is on two hosts", func() (bool, string) {
		return len(decoded[struct {
			Volume struct{ File struct{ Hosts []string } }
		}](t, "checkpoint", "show", made.Meta.Name).Volume.File.Hosts) == 2, ""
	})
	for _, process := range []string{"watari-agent --manager", "qemu-storage-daemon"} {
		signal("b2", process, syscall.SIGSTOP)
		t.Cleanup(func() { signal("b2", process, syscall.SIGCONT) })
	}
	stopped := time.Now()
	until(t, 3*time.Minute, "the volume is ready on another host", func() (bool, string) {
		now := volumeNamed(t, "away")
		return now.Host != "b2" && strings.HasSuffix(now.State, "_READY"), now.Host + " " + now.Message
	})
	settled(t, "away", 2)
	t.Logf("the cluster ran again %.0f s after the volume's host was lost", time.Since(stopped).Seconds())
	must(t, "volume", "restore", "twice")
	if host := volumeNamed(t, "twice").Host; host == "b2" || host == "" {
		t.Errorf("the replicated volume is on host %q", host)
	}
	newCluster(t, "twice", 1, "--site", "a", "--volume", "twice")
	if text := must(t, "volume", "cp", "twice:file", "-"); !strings.Contains(text, "on two hosts") {
		t.Errorf("the replica's file has %q", text)
	}
	for _, process := range []string{"watari-agent --manager", "qemu-storage-daemon"} {
		signal("b2", process, syscall.SIGCONT)
	}
	goesOnCounting(t, "away", taken)
	until(t, time.Minute, "the old disks are gone", func() (bool, string) {
		left := inHost(t, "b2", "ls "+agentState+"/volumes")
		return left == "", left
	})
}

// A volume moves to another site and back while a program writes to it. Both agents and the volume's daemon are killed while it is
// copied, and the guest moves meanwhile. Programs only wait. A drained host's volume moves away.
func TestAVolumeMovesWhileAProgramWrites(t *testing.T) {
	full(t)
	hostsReady(t)
	must(t, "volume", "create", "trek", "--size", "512M", "--host", "b1")
	t.Cleanup(func() { must(t, "volume", "delete", "trek") })
	newCluster(t, "trek", 2, "--site", "a", "--volume", "trek")
	must(t, "guest", "exec", "-u", "watari", "trek-0", "--", "sh", "-c", "cd; dd if=/dev/urandom of=big bs=1M count=160 conv=fsync 2>/dev/null; sha256sum big >sums")
	counting(t, "trek")
	whole := func() {
		t.Helper()
		n := counted(t, "trek")
		until(t, time.Minute, "the program goes on", func() (bool, string) { return counted(t, "trek") > n+5, "" })
		if out := must(t, "guest", "exec", "-u", "watari", "trek-1", "--", "sh", "-c", "cd; sha256sum -c sums"); !strings.Contains(out, "big: OK") {
			t.Errorf("the other guest sees %s", out)
		}
	}
	noDisk := func(host string) {
		t.Helper()
		until(t, time.Minute, "the old disk on "+host+" is gone", func() (bool, string) {
			left := inHost(t, host, "ls "+agentState+"/volumes")
			return left == "", left
		})
	}
	moved := func(to string) {
		t.Helper()
		until(t, 3*time.Minute, "the volume has moved to "+to, func() (bool, string) {
			now := volumeNamed(t, "trek")
			return now.Host == to && strings.HasSuffix(now.Move.State, "_DONE"), fmt.Sprint(now)
		})
	}
	begun := func() {
		t.Helper()
		until(t, time.Minute, "some of it is copied", func() (bool, string) {
			now := volumeNamed(t, "trek")
			return now.Move.CopiedBytes != "" && now.Move.CopiedBytes != "0", fmt.Sprint(now)
		})
	}

	refused(t, []string{"is on host b1 already"}, "volume", "move", "trek", "--host", "b1")
	must(t, "volume", "move", "trek", "--host", "a2", "--detach")
	begun()
	must(t, "volume", "move", "trek", "--cancel")
	if now := volumeNamed(t, "trek"); now.Host != "b1" || !strings.HasSuffix(now.Move.State, "_CANCELLED") {
		t.Errorf("a cancelled move has ended as %v", now)
	}
	noDisk("a2")
	must(t, "volume", "move", "trek", "--host", "a2", "--detach")
	begun()
	signal("b1", "watari-agent --manager", syscall.SIGKILL)
	began := time.Now()
	moved("a2")
	t.Logf("the volume had moved %.1f s after its host's agent was killed", time.Since(began).Seconds())
	whole()
	noDisk("b1")

	t.Cleanup(func() { must(t, "host", "drain", "b2", "--undo") })
	must(t, "host", "drain", "b2")
	must(t, "volume", "move", "trek", "--site", "b", "--detach")
	begun()
	must(t, "host", "drain", "b2", "--undo")
	signal("b1", "watari-agent --manager", syscall.SIGKILL)
	signal("a2", "qemu-storage-daemon", syscall.SIGKILL)
	hostsReady(t)
	guest := guestNamed(t, "trek-0")
	must(t, "migrate", "trek-0", "--to", map[string]string{"a1": "a2", "a2": "a1"}[guest.Host])
	moved("b1")
	whole()
	noDisk("a2")

	t.Cleanup(func() { must(t, "host", "drain", "b1", "--undo") })
	must(t, "host", "drain", "b1")
	until(t, time.Minute, "the volume has left the drained host", func() (bool, string) {
		now := volumeNamed(t, "trek")
		return now.Host != "b1" && strings.HasSuffix(now.Move.State, "_DONE"), fmt.Sprint(now)
	})
	whole()
	must(t, "run", "cancel", "trek-count")
	settled(t, "trek", 2)
}
