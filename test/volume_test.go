package test

// volume_test.go - the home of a cluster lies on a volume.

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// A cluster's files outlive it. Its guest uses the volume from another host than the volume's, while it moves, while both agents and the
// volume's daemon are killed.
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
	must(t, "cluster", "delete", "archive", "--wait")
	gone = true
	must(t, create...)
	gone = false
	settled(t, "archive", 2)
	if seen := must(t, "guest", "exec", "-u", "watari", "archive-1", "--", "sh", "-c", "cd; wc -l <lines; sha256sum -c sums"); !strings.HasPrefix(seen, "25\n") || strings.Count(seen, ": OK") != 4 {
		t.Errorf("the next cluster finds\n%s", seen)
	}
}
