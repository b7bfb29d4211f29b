// Package bare runs guests directly under QEMU, without a host and a manager, for tests and benchmarks of guests. At
// most two guests share a network. Each is the other's gateway, as a host would be.
package bare

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/guest/link"
)

// Cache keeps packages, roots and kernels of test images.
const Cache = "/var/cache/watari/test-images"

// Options describe a guest.
type Options struct {
	Image     string // directory with kernel, initrd and root (squashfs)
	Directory string // existing directory for the guest's sockets and its console's log
	Network   string // a path; both guests of a network have the same
	Index     int    // 0 or 1: which end of the network
	Memory    int    // MiB; 0: 256
	CPUs      string // value of QEMU's -smp; "": 1
	More      []string
}

// Guest is a running guest.
type Guest struct {
	*Client
	Identity *v1.Identity
	Console  string            // path of its console's log
	Monitor  string            // path of the socket of QEMU's monitor
	Link     http.RoundTripper // connection to the guest's agent
	Ended    chan struct{}     // closed when QEMU has ended

	link *link.Client
	qemu *exec.Cmd
}

// Start starts a guest. The guest ends with End or when this process ends in any way.
func Start(identity *v1.Identity, o Options) (*Guest, error) {
	channel := filepath.Join(o.Directory, "channel")
	g := &Guest{
		Identity: identity, Console: filepath.Join(o.Directory, "console"), Ended: make(chan struct{}),
		Monitor: filepath.Join(o.Directory, "monitor"),
	}
	g.qemu = exec.Command("qemu-system-x86_64", append(o.More, g.arguments(o, channel)...)...)
	g.qemu.Stderr = os.Stderr
	g.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.qemu.Start(); err != nil {
		return nil, err
	}
	go func() {
		g.qemu.Wait()
		close(g.Ended)
	}()
	g.link = link.NewClient(func(ctx context.Context) (net.Conn, error) { return link.DialUnix(ctx, channel) })
	g.Link, g.Client = g.link, newClient(g.link)
	return g, nil
}

// kernelArguments are the kernel arguments of emulated guests on hosts, whose reasons are in agent/vm. Here the guest
// prints fewer messages at boot.
const kernelArguments = "console=ttyS0 quiet tsc=reliable no_timer_check norandmaps"

// arguments use conventional PCI slots, because an ivshmem device can be added to them while the guest runs.
func (g *Guest) arguments(o Options, channel string) []string {
	memory, cpus := o.Memory, o.CPUs
	if memory == 0 {
		memory = 256
	}
	if cpus == "" {
		cpus = "1"
	}
	ends := []string{o.Network + ".0", o.Network + ".1"}
	return []string{
		"-qmp", "unix:" + g.Monitor + ",server=on,wait=off",
		"-machine", "pc,usb=off", "-cpu", "max", "-accel", "tcg,tb-size=128", "-m", fmt.Sprint(memory), "-smp", cpus,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "file:" + g.Console,
		"-kernel", filepath.Join(o.Image, "kernel"), "-initrd", filepath.Join(o.Image, "initrd"),
		"-append", kernelArguments + " watari.root=/dev/vda watari.rootfstype=squashfs",
		"-drive", "file=" + filepath.Join(o.Image, "root") + ",if=none,id=d,format=raw,readonly=on",
		"-device", "virtio-blk-pci,drive=d",
		"-chardev", "socket,path=" + channel + ",server=on,wait=off,id=c",
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=c,name=" + link.PortName,
		"-netdev", fmt.Sprintf("dgram,id=n,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", ends[o.Index], ends[1-o.Index]),
		"-device", "virtio-net-pci,netdev=n,romfile=,mac=52:54:00:12:34:56", "-device", "virtio-rng-pci",
	}
}

// End ends the guest at once, like a crash.
func (g *Guest) End() {
	g.qemu.Process.Kill()
	<-g.Ended
	g.link.Close()
}

// Identify waits until the guest answers, and gives it its identity.
func (g *Guest) Identify(ctx context.Context) (*v1.DescribeResponse, error) {
	var description *v1.DescribeResponse
	err := g.Until(ctx, "identify", func() error {
		r, err := g.Guests.Identify(ctx, connect.NewRequest(&v1.IdentifyRequest{Identity: g.Identity, Now: timestamppb.Now()}))
		if err == nil {
			description = r.Msg.GetDescription()
		}
		if c := connect.CodeOf(err); c == connect.CodeInternal || c == connect.CodeInvalidArgument {
			return final{err}
		}
		return err
	})
	return description, err
}

// final is an error for which another attempt is useless.
type final struct{ error }

// Until repeats do until it succeeds, or until ctx or the guest ends.
func (g *Guest) Until(ctx context.Context, what string, do func() error) error {
	failed := func(err error) error { return fmt.Errorf("%s %s: %w", what, g.Identity.GetName(), err) }
	for {
		err := do()
		if err == nil {
			return nil
		}
		if final, ok := err.(final); ok {
			return failed(final.error)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return failed(err)
		case <-g.Ended:
			return failed(errors.New("QEMU has ended"))
		}
	}
}
