package local

// guests.go - finds the guests that run on this machine without the agent.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"watari/internal/qemuprocesses"
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
	processes, err := qemuprocesses.List()
	if err != nil {
		return nil, fmt.Errorf("look for guests: %w", err)
	}
	var found []machine
	for _, p := range processes {
		if slices.ContainsFunc(records, func(record os.DirEntry) bool { return record.Name() == p.UID }) {
			found = append(found, machine{p.Name, p.PID})
		}
	}
	return found, nil
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
