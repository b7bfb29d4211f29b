// Finding and ending the lab's processes. They are known by their command line, not by files that a crash leaves wrong.

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	verbHostInit = "host-init"
	verbWANLink  = "wan-link"
)

// Helper must be called first in main by any program that calls Up, unless Options.Executable names another one:
// where args (os.Args) say that this process is to be a host's first process or the WAN's link, it does that and
// never returns.
func Helper(args []string) {
	if len(args) < 4 || args[1] != "lab" {
		return
	}
	var err error
	switch args[2] {
	case verbHostInit:
		err = hostInit(args[3:])
	case verbWANLink:
		err = wanLink(args[3:])
	default:
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", args[2], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// helperArgs are the arguments, after the program's name, by which a helper is started and found again.
func helperArgs(verb, lab, host string) []string {
	args := []string{"lab", verb, lab}
	if host != "" {
		args = append(args, host)
	}
	return args
}

// findHelpers lists the processes started with those arguments, or with them and more.
func findHelpers(args []string) []int {
	var found []int
	for _, pid := range allProcesses() {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(data) == 0 {
			continue
		}
		words := strings.Split(string(bytes.TrimRight(data, "\x00")), "\x00")
		if len(words) > len(args) && slices.Equal(words[1:1+len(args)], args) {
			found = append(found, pid)
		}
	}
	return found
}

func allProcesses() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// hostProcess is the process id, seen from outside, of a host's first process; 0 if the host does not run.
func (l *Lab) hostProcess(host string) int {
	for _, pid := range findHelpers(helperArgs(verbHostInit, l.Name(), host)) {
		if alive(pid) {
			return pid
		}
	}
	return 0
}

// alive is false for a zombie as well, but only when its last thread has ended: until then a host's first process is
// still waiting for the host's other processes to end.
func alive(pid int) bool { return aliveIn("/proc", strconv.Itoa(pid)) }

// aliveIn is alive for a process as the given /proc has it.
func aliveIn(proc, pid string) bool {
	data, err := os.ReadFile(filepath.Join(proc, pid, "stat"))
	if err != nil {
		return false
	}
	state := strings.TrimSpace(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X") {
		return true
	}
	threads, err := os.ReadDir(filepath.Join(proc, pid, "task"))
	return err == nil && len(threads) > 1
}

// kill ends processes and waits until they are gone; a host's first process takes all others of the host with it.
func kill(ctx context.Context, pids ...int) error {
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return waitFor(ctx, 30*time.Second, fmt.Sprintf("processes %v to end", pids), func() bool {
		return !slices.ContainsFunc(pids, alive)
	})
}

// namespaceOf is what tells a namespace of a process ("net", "mnt") from others: its inode, 0 if it is gone.
func namespaceOf(pid int, kind string) uint64 {
	return inode(filepath.Join("/proc", strconv.Itoa(pid), "ns", kind))
}

func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// inNamespaces lists the other processes whose network namespace is one of those.
func inNamespaces(inodes map[uint64]bool) []int {
	var found []int
	for _, pid := range allProcesses() {
		if pid == os.Getpid() {
			continue // one of its threads may be there for a moment
		}
		if ino := namespaceOf(pid, "net"); ino != 0 && inodes[ino] {
			found = append(found, pid)
		}
	}
	return found
}
