package doctor

// read.go - reads the facts of this machine. Facts that cannot be read stay empty.

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"watari/cmd/internal/probe"
	"watari/cmd/watari/local"
)

// probeTime is the time limit of the agent's probe, which tries KVM and waits for libvirt for up to a minute.
const probeTime = 90 * time.Second

// Read reads the facts of this machine. state is the directory in which Watari keeps, or would keep, its state.
func Read(ctx context.Context, state string) Facts {
	f := Facts{
		Root:      os.Geteuid() == 0,
		CPUFlag:   cpuFlag(text("/proc/cpuinfo")),
		KVMDevice: exists("/dev/kvm"),
		NestedPaging: firstOf(text("/sys/module/kvm_intel/parameters/ept"),
			text("/sys/module/kvm_amd/parameters/npt")),
		LibvirtSocket:           local.LibvirtSocket(),
		CgroupV2:                isCgroupV2(),
		UnprivilegedUserfaultfd: text("/proc/sys/vm/unprivileged_userfaultfd"),
		UserfaultfdDevice:       exists("/dev/userfaultfd"),
		TransparentHugePages:    chosen(text("/sys/kernel/mm/transparent_hugepage/enabled")),
		StateFolder:             state,
		DiskAvailable:           diskAvailable(state),
		Ports: []Port{
			{Network: "tcp", Number: 7070, Use: "the manager", Role: RoleManager},
			{Network: "tcp", Number: 7071, Use: "guests that migrate here", Role: RoleHost},
			{Network: "udp", Number: 7072, Use: "WireGuard", Role: RoleHost},
			{Network: "udp", Number: 7073, Use: "relays between hosts", Role: RoleHost},
		},
	}
	memory := meminfo(text("/proc/meminfo"))
	f.Memory, f.MemoryAvailable, f.HugePages = memory["MemTotal"]<<10, memory["MemAvailable"]<<10, memory["HugePages_Free"]
	f.Nftables, f.Libvirtd = installed("nft"), installed("libvirtd")
	f.ForwardDrops = forwardDrops()
	f.ClockSynchronised, f.ClockError = clock()
	f.LANInterface, f.LANMTU = lan()
	f.askAgent(ctx)
	for i := range f.Ports {
		f.Ports[i].Taken, f.Ports[i].Owner = portOwner(f.Ports[i].Network, f.Ports[i].Number)
	}
	return f
}

// askAgent runs the agent's program for facts that need KVM and libvirt's library.
func (f *Facts) askAgent(ctx context.Context) {
	path, err := local.Program("watari-agent")
	if err != nil {
		return
	}
	f.AgentProgram = path
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "probe").Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
		f.ProbeError = strings.TrimSpace(string(exit.Stderr))
		return
	}
	var found probe.Host
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		f.ProbeError = err.Error()
		return
	}
	f.Probe = &found
}

// forwardDrops lists the packet filters that drop forwarded packets by default. Only root can list them.
func forwardDrops() (drops []string) {
	connection, err := nftables.New()
	if err != nil {
		return nil
	}
	chains, err := connection.ListChains()
	if err != nil {
		return nil
	}
	for _, c := range chains {
		if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || c.Policy == nil || *c.Policy != nftables.ChainPolicyDrop {
			continue
		}
		family := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"}[c.Table.Family]
		if family != "" && c.Table.Name != "watari" {
			drops = append(drops, family+" "+c.Table.Name+" "+c.Name)
		}
	}
	return drops
}

// clock asks the kernel whether the clock is synchronised, and for its maximum error.
func clock() (synchronised bool, most time.Duration) {
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return false, 0
	}
	return t.Status&unix.STA_UNSYNC == 0, time.Duration(t.Maxerror) * time.Microsecond
}

// lan returns the interface of the default route.
func lan() (name string, mtu int) {
	routes, err := netlink.RouteList(nil, unix.AF_INET)
	if err != nil {
		return "", 0
	}
	for _, route := range routes {
		if route.Dst != nil && route.Dst.IP.IsUnspecified() || route.Dst == nil {
			if link, err := net.InterfaceByIndex(route.LinkIndex); err == nil {
				return link.Name, link.MTU
			}
		}
	}
	return "", 0
}

func isCgroupV2() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// diskAvailable also works for a directory that does not exist yet.
func diskAvailable(folder string) uint64 {
	for {
		var fs unix.Statfs_t
		if unix.Statfs(folder, &fs) == nil {
			return fs.Bavail * uint64(fs.Bsize)
		}
		if folder == filepath.Dir(folder) {
			return 0
		}
		folder = filepath.Dir(folder)
	}
}

func installed(program string) bool {
	_, err := local.Program(program)
	return err == nil
}

func text(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
