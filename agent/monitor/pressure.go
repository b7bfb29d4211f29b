package monitor

// pressure.go - how long tasks waited for processors, memory and disks: the kernel's PSI, of the host and of each guest.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	v1 "watari/api/watariv1"
)

// psi has the totals of one reading of PSI by "cpu", "memory" and "io", of the host or of a control group. A resource that the
// kernel does not tell about is missing.
type psi map[string]procfs.PSIStats

var resources = []string{"cpu", "memory", "io"}

// hostPSI reads the host's totals.
func (m *Monitor) hostPSI() psi {
	now := psi{}
	for _, resource := range resources {
		if stats, err := m.fs.PSIStatsForResource(resource); err == nil && stats.Some != nil {
			now[resource] = stats
		}
	}
	return now
}

// since returns the pressure on a resource since an earlier reading; nil: not known.
func (p psi) since(before psi, resource string, since time.Duration) *v1.Pressure {
	now, is := p[resource]
	then, was := before[resource]
	if !is || !was || since <= 0 {
		return nil
	}
	pressure := &v1.Pressure{Some: share(then.Some, now.Some, since)}
	if now.Full != nil && then.Full != nil {
		pressure.Full = share(then.Full, now.Full, since)
	}
	return pressure
}

// share returns the fraction of the time since an earlier reading by which a total, in microseconds, has grown.
func share(before, now *procfs.PSILine, since time.Duration) float64 {
	return min(1, rate(before.Total, now.Total, since)/1e6)
}

// guestPressureEvery is about how often the pressure on guests is read: it takes four files of each guest.
const guestPressureEvery = 4500 * time.Millisecond

// guestsPSI is the last reading of all guests.
type guestsPSI struct {
	at       time.Time // zero: none
	of       map[string]psi
	pressure map[string]map[string]*v1.Pressure // since the reading before, by uid and resource
}

// measureGuestPressure fills in the pressure on each guest's QEMU, and reads it anew if that is due. Only control groups of
// version 2 tell it.
func (m *Monitor) measureGuestPressure(guests map[string]*v1.GuestSample, now time.Time) {
	before := m.guestsPSI
	if since := now.Sub(before.at); since < 0 || since >= guestPressureEvery {
		m.guestsPSI = guestsPSI{now, map[string]psi{}, map[string]map[string]*v1.Pressure{}}
		for pid, p := range m.processes {
			uid := p.guest.UID
			if guests[uid] == nil {
				continue
			}
			totals := m.groupPSI(pid)
			m.guestsPSI.of[uid], m.guestsPSI.pressure[uid] = totals, map[string]*v1.Pressure{}
			for _, resource := range resources {
				m.guestsPSI.pressure[uid][resource] = totals.since(before.of[uid], resource, since)
			}
		}
	}
	for uid, g := range guests {
		p := m.guestsPSI.pressure[uid]
		g.CpuPressure, g.MemoryPressure, g.IoPressure = p["cpu"], p["memory"], p["io"]
	}
}

// groupPSI reads the totals of a guest's control group, by the process id of its QEMU.
func (m *Monitor) groupPSI(pid int) psi {
	now := psi{}
	p, err := m.fs.Proc(pid)
	if err != nil {
		return now
	}
	groups, err := p.Cgroups()
	if err != nil {
		return now
	}
	for _, g := range groups {
		own, is := domainGroup(g.Path)
		if g.HierarchyID != 0 || !is { // of version 1, or shared with others
			continue
		}
		dir := filepath.Join(m.config.Root, "sys/fs/cgroup", own)
		for _, resource := range resources {
			if stats, ok := readPSI(filepath.Join(dir, resource+".pressure")); ok {
				now[resource] = stats
			}
		}
	}
	return now
}

// domainGroup returns the group of a whole guest. libvirt keeps QEMU's own threads in a group named emulator below it; under
// systemd, a group named libvirt is in between. If libvirt makes no groups, QEMU is in one with other processes: false.
func domainGroup(of string) (group string, is bool) {
	group, is = strings.CutSuffix(of, "/emulator")
	return strings.TrimSuffix(group, "/libvirt"), is
}

// readPSI reads a group's file, which has the same lines as those of the host.
func readPSI(path string) (stats procfs.PSIStats, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return stats, false
	}
	for line := range strings.Lines(string(text)) {
		var kind string
		var l procfs.PSILine
		if n, _ := fmt.Sscanf(line, "%s avg10=%f avg60=%f avg300=%f total=%d", &kind, &l.Avg10, &l.Avg60, &l.Avg300, &l.Total); n != 5 {
			continue
		}
		switch kind {
		case "some":
			stats.Some = &l
		case "full":
			stats.Full = &l
		}
	}
	return stats, stats.Some != nil
}
