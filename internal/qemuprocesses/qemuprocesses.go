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

// namePrefix is the prefix of the domain names of guests.
const namePrefix = "watari-"

// Process is the QEMU process of a guest.
type Process struct {
	PID  int
	UID  string // uid of the guest
	Name string // name of the guest
}

// List reads the process table once. It returns the guests in its own PID namespace: a machine that is a host and also
// has a lab sees the guests of the lab's hosts, too. If it cannot inspect a process, which may be a guest's, it returns
// an error and the other processes. A process that ends meanwhile is not an error.
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

// Of returns the guest of a QEMU process; false: the process is not a guest's QEMU, or has ended.
func Of(proc string, pid int) (Process, bool) {
	own, err := os.Readlink(filepath.Join(proc, "self/ns/pid"))
	if err != nil {
		return Process{}, false
	}
	p, err := read(filepath.Join(proc, strconv.Itoa(pid)), pid, own)
	if err != nil || p == nil {
		return Process{}, false
	}
	return *p, true
}

// ended reports whether a process that could not be inspected has ended. Not even root can read the links of a process
// that is ending or is a zombie.
func ended(dir string, err error) bool {
	if gone(err) {
		return true
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return gone(err)
	}
	// "123 (name) Z ...": the name may contain any character.
	_, after, found := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(") "))
	return found && len(after) > 0 && strings.IndexByte("ZXx", after[0]) >= 0
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// read inspects a process; nil if it is not a guest's QEMU in the PID namespace own.
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

// ByGuest returns the pids by the guests' uids.
func ByGuest(list []Process) map[string][]int {
	pids := map[string][]int{}
	for _, p := range list {
		pids[p.UID] = append(pids[p.UID], p.PID)
	}
	return pids
}
