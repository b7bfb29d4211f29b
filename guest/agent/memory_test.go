package agent

import (
	"testing"
	"time"
)

func TestTheKernelsRecordOfAProcessThatItEndedIsRead(t *testing.T) {
	for _, test := range []struct {
		record, process string
		pid             uint32
		bytes           uint64
	}{
		{"3,512,98765432,-;Out of memory: Killed process 123 (lmp) total-vm:203148kB, anon-rss:143000kB, file-rss:300kB, shmem-rss:60kB, UID:1000 pgtables:340kB oom_score_adj:0\n", "lmp", 123, 143360 << 10},
		{"3,512,98765432,-,caller=T9;Out of memory: Killed process 7 (a) b (c) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB\n", "a) b (c", 7, 1 << 10},
		{"3,5,98765432,-;Memory cgroup out of memory: Killed process 8 (x) total-vm:1kB, anon-rss:2kB, file-rss:0kB, shmem-rss:0kB\n", "x", 8, 2 << 10},
		{"3,5,98765432,-;Out of memory (oom_kill_allocating_task): Killed process 9 (y) total-vm:1kB, anon-rss:2kB, file-rss:0kB, shmem-rss:0kB\n", "y", 9, 2 << 10},
		{record: "6,1,98765432,-;oom_reaper: reaped process 123 (lmp), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB\n"},
		{record: "12,1,98765432,-;Out of memory: Killed process 1 (init) total-vm:1kB, anon-rss:2kB, file-rss:0kB, shmem-rss:0kB\n"},
	} {
		process, up, ok := parseKill(test.record)
		if ok != (test.process != "") || process.GetProcess() != test.process || process.GetPid() != test.pid || process.GetBytes() != test.bytes {
			t.Errorf("%q: %v, %v", test.record, process, ok)
		}
		if want := 98765432 * time.Microsecond; ok && up != want {
			t.Errorf("%q: at %v, want %v", test.record, up, want)
		}
	}
}

func TestKillsAreCounted(t *testing.T) {
	var m memoryWatch
	if m.state() != nil {
		t.Errorf("at first: %v", m.state())
	}
	for _, name := range []string{"first", "second"} {
		process, _, _ := parseKill("3,5,1,-;Out of memory: Killed process 9 (" + name + ") total-vm:1kB, anon-rss:2kB, file-rss:0kB, shmem-rss:0kB")
		m.add(process, time.Unix(100, 0))
	}
	if s := m.state(); s.GetKills() != 2 || s.GetProcess() != "second" || s.GetAt().GetSeconds() != 100 {
		t.Errorf("%v", s)
	}
}
