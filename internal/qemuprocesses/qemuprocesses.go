// Package qemuprocesses finds the QEMU processes of guests on this host, without libvirt.
package qemuprocesses

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

// namePrefix begins the names that libvirt has given the domains of guests.
const namePrefix = "watari-"

// Process is the QEMU process of a guest.
type Process struct {
	PID  int
	UID  string // the guest's
	Name string // the guest's
}

// List looks at the process table once. It finds the guests of its own PID namespace: a machine that is a host and has a
// lab too sees the guests of the lab's hosts as well. It fails where a process cannot be looked at, which may be a guest's,
// and returns the others. A process that ends meanwhile is no failure.
func List() ([]Process, error) { return list("/proc") }

func list(proc string) ([]Process, error) {
	own, err := os.Readlink(filepath.Join(proc, "self/ns/pid"))
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	var found []Process
	var problem error
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		dir := filepath.Join(proc, entry.Name())
		p, err := read(dir, pid, own)
		if err != nil && !ended(dir, err) && problem == nil {
			problem = fmt.Errorf("the process table could not be read whole: %w", err)
		}
		if p != nil {
			found = append(found, *p)
		}
	}
	return found, problem
}

// ended tells whether a process that could not be looked at has ended. The links of one that is ending, or that nobody has
// waited for yet, are refused even to root.
func ended(dir string, err error) bool {
	if gone(err) {
		return true
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return gone(err)
	}
	// "123 (name) Z ...": the name may have any character in it.
	_, after, found := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(") "))
	return found && len(after) > 0 && strings.IndexByte("ZXx", after[0]) >= 0
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// read looks at a process; nil: it is no guest's QEMU of the PID namespace own.
func read(dir string, pid int, own string) (*Process, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || !bytes.Contains(data, []byte("\x00-uuid\x00")) {
		return nil, err
	}
	if namespace, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err != nil || namespace != own {
		return nil, err
	}
	p := &Process{PID: pid}
	args := bytes.Split(data, []byte{0})
	for i, arg := range args[:len(args)-1] {
		switch string(arg) {
		case "-uuid":
			p.UID = string(args[i+1])
		case "-name":
			// "guest=watari-md-1,debug-threads=on"
			name, _, _ := bytes.Cut(args[i+1], []byte{','})
			p.Name = string(bytes.TrimPrefix(name, []byte("guest=")))
		}
	}
	name, ours := strings.CutPrefix(p.Name, namePrefix)
	if !ours {
		return nil, nil
	}
	p.Name = name
	return p, nil
}

// ByGuest are the pids by the guests' uids.
func ByGuest(list []Process) map[string][]int {
	pids := map[string][]int{}
	for _, p := range list {
		pids[p.UID] = append(pids[p.UID], p.PID)
	}
	return pids
}
