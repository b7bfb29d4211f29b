package main

// processes.go - the QEMU processes of guests, found without libvirt.

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// findProcesses are the processes of a guest: those whose command line has "-uuid <uid>".
func findProcesses(uid string) []int {
	var pids []int
	for _, p := range guestProcesses() {
		if p.uid == uid {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

type guestProcess struct {
	pid       int
	uid, name string
}

// guestProcesses are the QEMU processes of Watari's guests on this host: those of its own PID namespace, for a
// machine that is a host and has a lab too sees the guests of the lab's hosts as well.
func guestProcesses() []guestProcess {
	var list []guestProcess
	own, _ := os.Readlink("/proc/self/ns/pid")
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, []byte("\x00-uuid\x00")) {
			continue
		}
		args := bytes.Split(data, []byte{0})
		if namespace, _ := os.Readlink(filepath.Join(filepath.Dir(path), "ns", "pid")); namespace != own {
			continue
		}
		p := guestProcess{}
		p.pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
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
		if bytes.HasPrefix([]byte(p.name), []byte("watari-")) {
			list = append(list, p)
		}
	}
	return list
}
