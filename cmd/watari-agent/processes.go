package main

// processes.go - finds the QEMU processes of guests without libvirt.

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

// findProcesses returns the processes of guests by the guests' uids: those with "-uuid <uid>" on their command line.
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

// guestProcesses returns the QEMU processes of Watari's guests on this host. They are in its own PID namespace: a
// machine that is a host and also has a lab sees the guests of the lab's hosts, too. guestProcesses fails if it cannot
// inspect a process, which may be a guest's.
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

// ended reports whether a process ended while it was inspected.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// readProcess inspects a process; nil if it is not a guest's QEMU in the PID namespace own.
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
