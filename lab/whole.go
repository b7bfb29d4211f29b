// Which hosts of a lab are whole machines, and what machines these are.

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

// Whole says which hosts are whole machines: virtual machines that play hosts. What is left zero has a default.
type Whole struct {
	Hosts  []string          // names of hosts, or of sites for all hosts of these; none: all hosts
	Suites map[string]string // Debian release of a host or of a site's hosts; "" for the others' (default: bookworm)
	Models map[string]string // likewise the CPU model, as QEMU's -cpu has it (default: machine.DefaultModel)
	Memory uint64            // MiB of each; default: 3 GiB
	Cells  int               // NUMA cells of each; default: 2
}

const (
	defaultSuite  = "bookworm"
	defaultMemory = 3 << 10
	defaultCells  = 2
)

// Check refuses whole hosts that a lab of that shape cannot have.
func (w *Whole) Check(sites, hosts int) error {
	_, err := w.specs(plan{sites: sites, hosts: hosts})
	return err
}

// specs decides the machine of each whole host, by the host's name.
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
				return nil, fmt.Errorf("%s %s of %s: none of these hosts is a whole machine", what, value, name)
			}
		}
	}
	return specs, nil
}

// ofHost is what values has for a host: its own, that of its site, or that of all.
func ofHost(values map[string]string, h Host, otherwise string) string {
	for _, name := range []string{h.Name, h.Site, ""} {
		if value := values[name]; value != "" {
			return value
		}
	}
	return otherwise
}

// prepareMachines makes the templates that hosts without a disk start from, and the key that the lab logs in with.
func (l *Lab) prepareMachines(ctx context.Context) error {
	if len(l.state.Whole) == 0 {
		return nil
	}
	if missing := machine.Missing(); len(missing) > 0 {
		return fmt.Errorf("whole hosts need what this machine lacks: %s", strings.Join(missing, "; "))
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

// templatesInUse lists the folders of the templates from which hosts of any lab were started.
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
