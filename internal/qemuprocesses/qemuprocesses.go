// Package qemuprocesses finds the QEMU processes of guests, and of other domains of libvirt, on this host, without libvirt.
package qemuprocesses

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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
	p := domain(proc, pid).guest()
	if p == nil {
		return Process{}, false
	}
	return *p, true
}

// Domain returns the name of the libvirt domain, which need not be a guest, of a QEMU process; false: the process is not a
// domain's QEMU, or has ended.
func Domain(proc string, pid int) (name string, is bool) {
	p := domain(proc, pid)
	if p == nil {
		return "", false
	}
	return p.Name, true
}

// domain inspects a process; nil if it is not a domain's QEMU in the own PID namespace, or cannot be inspected.
func domain(proc string, pid int) *Process {
	own, err := os.Readlink(filepath.Join(proc, "self/ns/pid"))
	if err != nil {
		return nil
	}
	p, err := readDomain(filepath.Join(proc, strconv.Itoa(pid)), pid, own)
	if err != nil {
		return nil
	}
	return p
}

// guest returns the guest of a domain's process; nil if the domain is not a guest.
func (p *Process) guest() *Process {
	if p == nil {
		return nil
	}
	name, ours := strings.CutPrefix(p.Name, namePrefix)
	if !ours {
		return nil
	}
	return &Process{PID: p.PID, UID: p.UID, Name: name}
}

var domainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$`)

// CheckDomain refuses names that people may not give for a libvirt domain that is not a guest.
func CheckDomain(name string) error {
	switch {
	case !domainName.MatchString(name):
		return fmt.Errorf("%q: give the name of a libvirt domain with at most 100 letters, digits, '.', '_', '+' and '-', the first a letter or digit", name)
	case strings.HasPrefix(name, namePrefix):
		return fmt.Errorf("%q is a guest of Watari, not a virtual machine of the owner", name)
	}
	return nil
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
	p, err := readDomain(dir, pid, own)
	return p.guest(), err
}

// readDomain inspects a process; nil if it is not a libvirt domain's QEMU in the PID namespace own. Name is the domain's, and UID
// the domain's UUID.
func readDomain(dir string, pid int, own string) (*Process, error) {
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
