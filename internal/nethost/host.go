// Package nethost makes hosts and guests from network namespaces of this machine, for tests and benchmarks of the
// overlay. A host is a process in its own namespaces, in which the real package overlay works. A guest is a namespace
// behind a tap, which nethost opens as QEMU does. The package needs root. Its hosts and guests end with the process
// that uses it.
package nethost

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	v1 "watari/api/watariv1"
	"watari/overlay"

	"google.golang.org/protobuf/proto"
)

// Host is one host. Its /run and its state are private and disappear with it.
type Host struct {
	Name      string
	Address   netip.Addr
	RelayPort int // of the host's agent; 0: the agent neither relays nor watches
	command   *exec.Cmd
	calls     *rpc.Client
	exited    chan struct{}
}

// Missing lists what this machine lacks for nethost, or returns "".
func Missing() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return "/dev/net/tun"
	}
	for _, program := range []string{"nft", "ip", "nsenter", "ping"} {
		if _, err := exec.LookPath(program); err != nil {
			return "program " + program
		}
	}
	return ""
}

// Start starts a host in new network, mount, PID and UTS namespaces. The calling program must call Main first in its
// main (or TestMain).
func Start(name string) (*Host, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "calls"), os.NewFile(uintptr(pair[1]), "calls")
	defer theirs.Close()
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), environment+"="+name)
	command.ExtraFiles = []*os.File{theirs}
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
	}
	if err := command.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start host %s: %w", name, err)
	}
	h := &Host{Name: name, command: command, calls: rpc.NewClient(ours), exited: make(chan struct{})}
	go func() { command.Wait(); close(h.exited) }()
	if err := h.call("Prepare", name, nil); err != nil {
		h.Kill()
		return nil, fmt.Errorf("prepare host %s: %w", name, err)
	}
	return h, nil
}

// Kill ends the host and all its processes, like a power failure.
func (h *Host) Kill() {
	h.command.Process.Kill()
	<-h.exited
	h.calls.Close()
}

// PID returns the id of the host's first process, as seen on this machine.
func (h *Host) PID() int { return h.command.Process.Pid }

// Namespace returns the path of the host's network namespace.
func (h *Host) Namespace() string { return fmt.Sprintf("/proc/%d/ns/net", h.PID()) }

// Command returns a command that runs on the host.
func (h *Host) Command(ctx context.Context, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{
		"--target", strconv.Itoa(h.PID()), "--net", "--mount", "--pid", "--"}, words...)...)
}

// Run runs a command on the host and returns its output. The error contains the output, too.
func (h *Host) Run(ctx context.Context, words ...string) (string, error) {
	return run(h.Command(ctx, words...), h.Name)
}

// Script runs each line as a command on the host, with words separated by spaces, until one fails.
func (h *Host) Script(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if _, err := h.Run(ctx, strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

func run(command *exec.Cmd, where string) (string, error) {
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("on %s: %s: %w: %s", where, strings.Join(command.Args[1:], " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func (h *Host) call(method string, args, reply any) error {
	if reply == nil {
		reply = new(struct{})
	}
	if args == nil {
		args = struct{}{}
	}
	err := h.calls.Call("Service."+method, args, reply)
	if errors.Is(err, rpc.ErrShutdown) {
		return fmt.Errorf("host %s is gone", h.Name)
	}
	return err
}

// StartAgent makes the host's overlay.Overlay. Another call stands for a new agent after the old one was killed.
func (h *Host) StartAgent() (publicKey string, err error) {
	err = h.call("StartAgent", AgentArgs{h.Name, h.Address, h.RelayPort}, &publicKey)
	return publicKey, err
}

// Plug calls PlugGuest on the host.
func (h *Host) Plug(g overlay.Guest, mtu int) (tap string, err error) {
	err = h.call("Plug", PlugArgs{g, mtu}, &tap)
	return tap, err
}

// Unplug calls UnplugGuest on the host.
func (h *Host) Unplug(uid string) error { return h.call("Unplug", uid, nil) }

// OpenStorage calls OpenStorage on the host.
func (h *Host) OpenStorage(ports map[string][]uint16) error { return h.call("OpenStorage", ports, nil) }

// Listen lets the host accept connections to TCP ports.
func (h *Host) Listen(ports ...int) error { return h.call("Listen", ports, nil) }

// Apply calls Apply on the host and returns its duration in milliseconds.
func (h *Host) Apply(wanted *v1.NetworkWanted, local ...overlay.Guest) (milliseconds float64, err error) {
	data, err := proto.Marshal(wanted)
	if err != nil {
		return 0, err
	}
	err = h.call("Apply", ApplyArgs{data, local}, &milliseconds)
	return milliseconds, err
}

// MoveLAN calls MoveLAN on the host.
func (h *Host) MoveLAN(address netip.Addr) error { return h.call("MoveLAN", address, nil) }

// Check calls Check on the host.
func (h *Host) Check() (problems []string, err error) {
	err = h.call("Check", nil, &problems)
	return problems, err
}

// Sent calls Sent on the host.
func (h *Host) Sent() (sent map[string]map[netip.Addr]uint64, err error) {
	err = h.call("Sent", nil, &sent)
	return sent, err
}

// Path returns the host's state of the path to another host.
func (h *Host) Path(other string) (path Path, err error) {
	err = h.call("Path", other, &path)
	return path, err
}

// Cleanup calls Cleanup on the host.
func (h *Host) Cleanup() error { return h.call("Cleanup", nil, nil) }
