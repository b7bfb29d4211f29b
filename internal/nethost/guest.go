// guest.go is a substitute for a VM: a namespace with one interface, whose frames go through a host's tap.
package nethost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"watari/overlay"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var past, never = time.Unix(1, 0), time.Time{}

// Guest is a guest with the interface eth0. It is connected to at most one host's tap at a time.
type Guest struct {
	overlay.Guest
	namespace  string // path of the namespace
	descriptor int    // keeps the namespace alive
	nic        *os.File

	mu      sync.Mutex
	tap     *os.File // nil: unplugged
	stopped sync.WaitGroup
}

// NewGuest makes a guest. It configures the interface like the guest agent: with the guest's MAC and address, and the
// gateway as a permanent neighbour.
func NewGuest(g overlay.Guest, mtu int) (*Guest, error) {
	guest := &Guest{Guest: g}
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		made <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			// The descriptor keeps the namespace alive after the thread has ended.
			namespace, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			fd, err := unix.FcntlInt(namespace.Fd(), unix.F_DUPFD_CLOEXEC, 3)
			namespace.Close()
			if err != nil {
				return err
			}
			guest.descriptor = fd
			guest.namespace = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
			if guest.nic, err = openTap("eth0"); err != nil {
				return err
			}
			return setUpGuest(g, mtu)
		}()
	}()
	if err := <-made; err != nil {
		return nil, fmt.Errorf("make guest %s: %w", g.UID, err)
	}
	return guest, nil
}

func setUpGuest(g overlay.Guest, mtu int) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	gateway := overlay.Gateway.AsSlice()
	own := &net.IPNet{IP: g.Address.AsSlice(), Mask: net.CIDRMask(32, 32)}
	index := link.Attrs().Index
	route := &netlink.Route{LinkIndex: index, Gw: gateway, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
	route.SetFlag(netlink.FLAG_ONLINK)
	return errors.Join(
		netlink.LinkSetUp(loopback),
		netlink.LinkSetHardwareAddr(link, overlay.GuestMAC(g.Address)),
		netlink.LinkSetMTU(link, mtu),
		netlink.LinkSetUp(link),
		netlink.AddrReplace(link, &netlink.Addr{IPNet: own}),
		netlink.NeighSet(&netlink.Neigh{
			LinkIndex: index, Family: unix.AF_INET, State: unix.NUD_PERMANENT,
			IP: gateway, HardwareAddr: overlay.GatewayMAC,
		}),
		netlink.RouteReplace(route),
	)
}

// openTap opens a tap with one queue and virtio headers, and turns on offloads, as QEMU does for a guest with a current
// virtio driver.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open tap %s: %w", name, err)
	}
	offloads := unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set offloads of tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Plug connects the guest to a host's tap. It disconnects the guest from another tap first.
func (g *Guest) Plug(h *Host, tap string) error {
	g.Unplug()
	return inNamespace(h.Namespace(), func() error {
		file, err := openTap(tap)
		if err != nil {
			return err
		}
		g.mu.Lock()
		g.tap = file
		g.mu.Unlock()
		g.stopped.Add(2)
		go g.move(g.nic, file, file)
		go g.move(file, g.nic, file)
		return nil
	})
}

// Unplug closes the tap, as a stopped VM does.
func (g *Guest) Unplug() {
	g.mu.Lock()
	tap := g.tap
	g.tap = nil
	g.mu.Unlock()
	if tap == nil {
		return
	}
	tap.Close()
	// One of the copying goroutines is blocked on the guest's interface. A deadline in the past wakes it.
	g.nic.SetReadDeadline(past)
	g.stopped.Wait()
	g.nic.SetReadDeadline(never)
}

// move copies frames, including virtio headers, until tap is closed.
func (g *Guest) move(from, to, tap *os.File) {
	defer g.stopped.Done()
	frame := make([]byte, 1<<16+64)
	for {
		n, err := from.Read(frame)
		if err != nil && (from == tap || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed)) {
			return
		}
		if err == nil {
			to.Write(frame[:n]) // if the queue is full or the end is closed, the frame is dropped, as on a wire
		}
	}
}

// Close ends the guest.
func (g *Guest) Close() {
	g.Unplug()
	g.nic.Close()
	unix.Close(g.descriptor)
}

// Command returns a command that runs in the guest.
func (g *Guest) Command(ctx context.Context, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + g.namespace, "--"}, words...)...)
}

// Run runs a command in the guest and returns its output. The error contains the output, too.
func (g *Guest) Run(ctx context.Context, words ...string) (string, error) {
	return run(g.Command(ctx, words...), "guest "+g.UID)
}

// Ping sends count pings from the guest, 20 ms apart, each with size bytes of data and without fragmentation. It
// returns an error unless all are answered.
func (g *Guest) Ping(ctx context.Context, to netip.Addr, count, size int) error {
	_, err := g.Run(ctx, "ping", "-n", "-q", "-i", "0.02", "-W", "1", "-M", "do",
		"-c", fmt.Sprint(count), "-w", fmt.Sprint(20+count/40), "-s", fmt.Sprint(size), to.String())
	return err
}
