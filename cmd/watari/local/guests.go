package local

// guests.go - finds the guests that run on this machine without the agent.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// machine is a QEMU process that runs a guest of this machine's agent.
type machine struct {
	name string
	pid  int
}

func names(machines []machine) []string {
	var all []string
	for _, m := range machines {
		all = append(all, m.name)
	}
	slices.Sort(all)
	return all
}

// findGuests finds the guests that run here: QEMU processes with the UUID of a guest in the agent's records, in this
// process's own PID namespace (a lab's hosts have others).
func findGuests(agentState string) ([]machine, error) {
	records, err := os.ReadDir(filepath.Join(agentState, "guests"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for guests: %w", err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	own, _ := os.Readlink("/proc/self/ns/pid")
	var found []machine
	for _, path := range processes {
		name, uid := guestOf(path)
		namespace, _ := os.Readlink(filepath.Join(filepath.Dir(path), "ns", "pid"))
		if uid == "" || namespace != own {
			continue
		}
		if slices.ContainsFunc(records, func(record os.DirEntry) bool { return record.Name() == uid }) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			found = append(found, machine{name, pid})
		}
	}
	return found, nil
}

// guestOf returns a guest's name and UUID from a QEMU command line; "" if the process is not one of Watari's guests.
func guestOf(path string) (name, uid string) {
	text, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(text, []byte("guest=watari-")) {
		return "", ""
	}
	words := strings.Split(string(text), "\x00")
	for i, word := range words[:len(words)-1] {
		switch word {
		case "-name":
			name, _, _ = strings.Cut(strings.TrimPrefix(words[i+1], "guest=watari-"), ",")
		case "-uuid":
			uid = words[i+1]
		}
	}
	return name, uid
}

// endGuests runs the agent's program to end this machine's guests and to remove the overlay from this machine.
func endGuests(ctx context.Context, l layout) error {
	path, err := Program("watari-agent")
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, path, "cleanup", "--guests", "--state", l.agentState(), "--run", defaultRun).CombinedOutput()
	if err != nil {
		return fmt.Errorf("end this machine's guests: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
