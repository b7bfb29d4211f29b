// Finding and ending the lab's processes. They are known by their command lines: a crash would leave stale pid files.

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

// Helper runs this process as a host's first process or as the WAN's link process if args (os.Args) say so; then it
// never returns. Every program that calls Up must call Helper first in main, unless Options.Executable names another
// program.
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

// helperArgs returns the arguments, without the program's name, by which a helper is started and found again.
func helperArgs(verb, lab, host string) []string {
	args := []string{"lab", verb, lab}
	if host != "" {
		args = append(args, host)
	}
	return args
}

// findHelpers lists the processes whose arguments begin with args.
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

// hostProcess returns the id, as seen on this machine, of a host's first process; 0 if the host is not running.
func (l *Lab) hostProcess(host string) int {
	for _, pid := range findHelpers(helperArgs(verbHostInit, l.Name(), host)) {
		if alive(pid) {
			return pid
		}
	}
	return 0
}

// alive reports whether a process runs. A zombie counts as running while it has other threads: a host's first process
// still waits for the host's other processes to end.
func alive(pid int) bool { return aliveIn("/proc", strconv.Itoa(pid)) }

// aliveIn is alive with the given proc file system.
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

// kill kills processes and waits until they are gone. A host's first process takes all other processes of the host with
// it.
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

// namespaceOf identifies a namespace of a process ("net", "mnt") by its inode; 0 if the process is gone.
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

// inNamespaces lists the processes, without this one, in the network namespaces with these inodes.
func inNamespaces(inodes map[uint64]bool) []int {
	var found []int
	for _, pid := range allProcesses() {
		if pid == os.Getpid() {
			continue // one of its threads may be in such a namespace for a moment
		}
		if ino := namespaceOf(pid, "net"); ino != 0 && inodes[ino] {
			found = append(found, pid)
		}
	}
	return found
}
