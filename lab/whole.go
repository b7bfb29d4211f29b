// The whole hosts of a lab, and their machines.

package lab

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"watari/lab/machine"
)

// Whole says which hosts are whole hosts, that is, virtual machines. Zero fields have defaults.
type Whole struct {
	Hosts  []string          // names of hosts, or of sites for all their hosts; empty: all hosts
	Suites map[string]string // Debian release by host or site; "" is for all others (default: bookworm)
	Models map[string]string // likewise the CPU model, in the form of QEMU's -cpu (default: machine.DefaultModel)
	Memory uint64            // MiB of each; default: 3 GiB
	Cells  int               // NUMA cells of each; default: 2
}

const (
	defaultSuite  = "bookworm"
	defaultMemory = 3 << 10
	defaultCells  = 2
)

// Check checks whether a lab of that shape can have these whole hosts.
func (w *Whole) Check(sites, hosts int) error {
	_, err := w.specs(plan{sites: sites, hosts: hosts})
	return err
}

// specs returns the machine of each whole host, by the host's name.
func (w *Whole) specs(p plan) (map[string]machine.Spec, error) {
	if w == nil {
		return nil, nil
	}
	known := map[string]bool{"": true}
	for _, h := range p.all() {
		known[h.Name], known[h.Site] = true, true
	}
	for _, name := range slices.Concat(w.Hosts, slices.Sorted(maps.Keys(w.Suites)), slices.Sorted(maps.Keys(w.Models))) {
		if !known[name] {
			return nil, fmt.Errorf("whole host %q: the lab has no such host or site", name)
		}
	}
	specs := map[string]machine.Spec{}
	for _, h := range p.all() {
		if len(w.Hosts) > 0 && !slices.Contains(w.Hosts, h.Name) && !slices.Contains(w.Hosts, h.Site) {
			continue
		}
		spec := machine.Spec{Suite: ofHost(w.Suites, h, defaultSuite), Model: ofHost(w.Models, h, machine.DefaultModel), Memory: w.Memory, Cells: w.Cells}
		if spec.Memory == 0 {
			spec.Memory = defaultMemory
		}
		if spec.Cells == 0 {
			spec.Cells = defaultCells
		}
		if err := spec.Check(); err != nil {
			return nil, fmt.Errorf("whole host %s: %w", h.Name, err)
		}
		specs[h.Name] = spec
	}
	for what, values := range map[string]map[string]string{"suite": w.Suites, "CPU model": w.Models} {
		for name, value := range values {
			if !slices.ContainsFunc(p.all(), func(h Host) bool {
				_, whole := specs[h.Name]
				return whole && (name == "" || name == h.Name || name == h.Site)
			}) {
				return nil, fmt.Errorf("%s %s of %s: none of these hosts is a whole host", what, value, name)
			}
		}
	}
	return specs, nil
}

// ofHost returns the value for a host: the one under its own name, its site's name, or "".
func ofHost(values map[string]string, h Host, otherwise string) string {
	for _, name := range []string{h.Name, h.Site, ""} {
		if value := values[name]; value != "" {
			return value
		}
	}
	return otherwise
}

// prepareMachines makes the templates for hosts that have no disk yet, and the lab's login key.
func (l *Lab) prepareMachines(ctx context.Context) error {
	if len(l.state.Whole) == 0 {
		return nil
	}
	if missing := machine.Missing(); len(missing) > 0 {
		return fmt.Errorf("this machine lacks what whole hosts need: %s", strings.Join(missing, "; "))
	}
	if err := ensureKey(l.loginKey()); err != nil {
		return err
	}
	l.templates = map[machine.Spec]machine.Template{}
	for _, name := range slices.Sorted(maps.Keys(l.state.Whole)) {
		spec := l.state.Whole[name]
		var config hostConfig
		if _, made := l.templates[spec]; made || readJSON(l.hostFile(name), &config) == nil && config.Machine != nil {
			continue
		}
		template, err := machine.Prepare(ctx, spec, templatesInUse(), l.say)
		if err != nil {
			return fmt.Errorf("make the template of host %s: %w", name, err)
		}
		l.templates[spec] = template
	}
	return nil
}

// templatesInUse lists the directories of the templates from which hosts of any lab were started.
func templatesInUse() []string {
	var used []string
	files, _ := filepath.Glob(filepath.Join(stateRoot, "*", "hosts", "*", "host.json"))
	for _, file := range files {
		var config hostConfig
		if readJSON(file, &config) == nil && config.Machine != nil {
			used = append(used, config.Machine.Template.Dir)
		}
	}
	return used
}
