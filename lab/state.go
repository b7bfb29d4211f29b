// The persistent state of a lab, written before any part of the lab is made, and the locks around it.

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"watari/internal/durable"
	"watari/lab/machine"
)

// lockWait is the longest wait for a lock that another process holds. After lockQuiet the wait is reported.
const (
	lockWait  = 10 * time.Minute
	lockQuiet = time.Second
)

const (
	stateRoot = "/var/lib/watari/lab"
	runRoot   = "/run/watari/lab"
)

// state is lab.json.
type state struct {
	Name  string `json:"name"`
	Slot  int    `json:"slot"` // index of its /20 in 198.18.0.0/15
	Sites int    `json:"sites"`
	Hosts int    `json:"hosts"` // on each site
	WAN   WAN    `json:"wan"`
	// Cut names the sites that are cut off the WAN.
	Cut []string `json:"cut,omitempty"`
	// NAT names the sites and hosts that are behind NAT.
	NAT []string `json:"nat,omitempty"`
	// RootEnd is this machine's address in the lab: hosts reach a manager on this machine there.
	RootEnd netip.Addr           `json:"root_end"`
	UUIDs   map[string]uuid.UUID `json:"host_uuids"` // libvirt identifies the host by it
	// Whole maps the names of the whole hosts to their machines.
	Whole map[string]machine.Spec `json:"whole,omitempty"`
	// CPUs limits the CPU time of hosts, in CPUs; other hosts have no limit.
	CPUs map[string]float64 `json:"cpus,omitempty"`
}

func (s state) plan() plan { return plan{slot: s.Slot, sites: s.Sites, hosts: s.Hosts} }

// Hosts lists the lab's hosts, site by site.
func (l *Lab) Hosts() []Host { return l.state.plan().all() }

// Host finds a host by name.
func (l *Lab) Host(name string) (Host, error) {
	for _, h := range l.Hosts() {
		if h.Name == name {
			return h, nil
		}
	}
	return Host{}, fmt.Errorf("lab %s has no host %q; `watari lab status --name %[1]s` shows its hosts", l.Name(), name)
}

// RootEnd returns this machine's address in the lab: the lab's hosts reach this machine there.
func (l *Lab) RootEnd() netip.Addr { return l.state.RootEnd }

// Dir returns the directory of the lab's persistent state. A host's state is in hosts/<name>, its logs in
// hosts/<name>/log.
func (l *Lab) Dir() string { return l.dir }

func (l *Lab) load() error {
	data, err := os.ReadFile(filepath.Join(l.dir, "lab.json"))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s", ErrNotFound, l.state.Name)
	}
	if err != nil {
		return fmt.Errorf("read lab %s: %w", l.state.Name, err)
	}
	if err := json.Unmarshal(data, &l.state); err != nil {
		return fmt.Errorf("read lab %s: %w", l.state.Name, err)
	}
	return nil
}

func (l *Lab) save() error {
	return writeJSON(filepath.Join(l.dir, "lab.json"), l.state)
}

// openOrCreate loads the lab, or creates its state with a free slot. The lab stays locked until unlock is called.
func openOrCreate(ctx context.Context, o Options) (l *Lab, unlock func(), err error) {
	l = at(o.Name)
	l.executable, l.progress = o.Executable, o.Progress
	unlock, err = lockDirectory(ctx, l.dir, l.progress)
	if err != nil {
		return nil, nil, err
	}
	unlockAll, err := lockDirectory(ctx, stateRoot, l.progress) // so that two labs cannot choose the same slot
	if err == nil {
		err = l.decide(o)
		unlockAll()
	}
	if err != nil {
		_ = os.Remove(l.dir) // removes it only if it is empty, that is, new
		unlock()
		return nil, nil, err
	}
	return l, unlock, nil
}

func (l *Lab) decide(o Options) error {
	whole, err := o.Whole.specs(plan{sites: o.Sites, hosts: o.Hosts})
	if err != nil {
		return err
	}
	err = l.load()
	switch {
	case err == nil && (l.state.Sites != o.Sites || l.state.Hosts != o.Hosts):
		return fmt.Errorf("%w: %s has %d sites of %d hosts, not %d of %d (take it down first, or choose another name)",
			ErrShape, o.Name, l.state.Sites, l.state.Hosts, o.Sites, o.Hosts)
	case err == nil && o.Whole != nil && !maps.Equal(l.state.Whole, whole):
		return fmt.Errorf("%w: %s has other whole hosts (take it down first, or choose another name)", ErrShape, o.Name)
	case err != nil && !errors.Is(err, ErrNotFound):
		return err
	case err != nil:
		slot, err := freeSlot(o.Name)
		if err != nil {
			return err
		}
		l.state = state{Name: o.Name, Slot: slot, Sites: o.Sites, Hosts: o.Hosts, UUIDs: map[string]uuid.UUID{}, Whole: whole}
		l.state.RootEnd = l.state.plan().rootEnd()
		for _, h := range l.Hosts() {
			l.state.UUIDs[h.Name] = uuid.New()
		}
	}
	if o.WAN != nil {
		l.state.WAN = *o.WAN
	}
	if err := l.setShares(o.CPUs); err != nil {
		return err
	}
	return l.save()
}

// freeSlot returns the first /20 that no other lab has and that overlaps no route of this machine.
func freeSlot(name string) (int, error) {
	names, err := List()
	if err != nil {
		return 0, err
	}
	taken := make([]bool, slots)
	for _, other := range names {
		l := at(other)
		if other != name && l.load() == nil && l.state.Slot < slots {
			taken[l.state.Slot] = true
		}
	}
	routes, err := netlink.RouteList(nil, unix.AF_INET)
	if err != nil {
		return 0, fmt.Errorf("list this machine's routes: %w", err)
	}
	for slot := range slots {
		if !taken[slot] && !slices.ContainsFunc(routes, overlaps(plan{slot: slot}.prefix())) {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("all %d prefixes for labs in 198.18.0.0/15 are taken: take a lab down", slots)
}

func overlaps(prefix netip.Prefix) func(netlink.Route) bool {
	return func(r netlink.Route) bool {
		if r.Dst == nil {
			return false
		}
		address, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		ones, _ := r.Dst.Mask.Size()
		return ok && ones > 0 && netip.PrefixFrom(address, ones).Overlaps(prefix)
	}
}

// lockDirectory makes a directory and locks it. It waits while another process holds the lock, and tells progress so.
// The holder may remove the directory: then a waiting process makes it again.
func lockDirectory(ctx context.Context, path string, progress func(line string)) (unlock func(), err error) {
	begun, told := time.Now(), false
	for {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return func() { f.Close() }, nil
		}
		f.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told && time.Since(begun) > lockQuiet {
			told = true
			progress("waiting for another command that works on " + path)
		}
		if time.Since(begun) > lockWait {
			return nil, fmt.Errorf("lock %s: another process has held it for %s; fuser -v %[1]s names it", path, lockWait)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: another process holds it: %w", path, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func sameFile(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// writeJSON replaces a file atomically.
func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return durable.WriteFile(path, append(data, '\n'), 0o644)
}
