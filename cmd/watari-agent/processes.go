package main

// processes.go - the QEMU processes of guests, found without libvirt.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// findProcesses are the processes of guests by the guests' uids: those whose command line has "-uuid <uid>".
func findProcesses() (map[string][]int, error) {
	list, err := guestProcesses()
	pids := map[string][]int{}
	for _, p := range list {
		pids[p.uid] = append(pids[p.uid], p.pid)
	}
	return pids, err
}

type guestProcess struct {
	pid       int
	uid, name string
}

// guestProcesses are the QEMU processes of Watari's guests on this host: those of its own PID namespace, for a
// machine that is a host and has a lab too sees the guests of the lab's hosts as well.
// It fails where a process cannot be looked at: that one may be a guest's.
func guestProcesses() ([]guestProcess, error) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	var list []guestProcess
	var problems []error
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		p, err := readProcess(pid, own)
		if err != nil && !ended(err) {
			problems = append(problems, err)
		}
		if p != nil {
			list = append(list, *p)
		}
	}
	if len(problems) > 0 {
		return list, fmt.Errorf("the process table could not be read whole: %w", problems[0])
	}
	return list, nil
}

// ended tells that a process ended while it was looked at.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// readProcess looks at a process; nil: it is no guest's QEMU of the PID namespace own.
func readProcess(pid int, own string) (*guestProcess, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	data, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || !bytes.Contains(data, []byte("\x00-uuid\x00")) {
		return nil, err
	}
	if namespace, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err != nil || namespace != own {
		return nil, err
	}
	p := &guestProcess{pid: pid}
	args := bytes.Split(data, []byte{0})
	for i, arg := range args[:len(args)-1] {
		switch string(arg) {
		case "-uuid":
			p.uid = string(args[i+1])
		case "-name":
			// "guest=watari-md-1,debug-threads=on"
			name, _, _ := bytes.Cut(args[i+1], []byte{','})
			p.name = string(bytes.TrimPrefix(name, []byte("guest=")))
		}
	}
	if !strings.HasPrefix(p.name, "watari-") {
		return nil, nil
	}
	return p, nil
}
