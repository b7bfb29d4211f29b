// Hosts made of namespaces, seen from outside.

package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"watari/internal/durable"
)

// agentState is the path of the agent's state directory in the host's directory of the lab's state.
const agentState = "var-lib-watari/agent"

func (h namespaceHost) dir() string { return h.lab.hostDir(h.Name) }

func (h namespaceHost) prepare(ctx context.Context, o Options, agent agentSetup) error {
	if err := h.lab.writeHostFiles(h.Host); err != nil {
		return fmt.Errorf("write its files: %w", err)
	}
	var old hostConfig
	_ = readJSON(h.lab.hostFile(h.Name), &old)
	config := hostConfig{
		Name: h.Name, Libvirtd: []string{"libvirtd", "--pid-file", "/run/libvirtd.pid"},
		Binaries: filepath.Dir(o.AgentBinary), Agent: old.Agent,
	}
	state := filepath.Join(h.dir(), agentState)
	if o.Agent {
		if err := os.MkdirAll(state, 0o755); err != nil { // QEMU's user must reach the images below
			return err
		}
	}
	if agent.token != "" {
		if err := durable.WriteFile(filepath.Join(state, "token"), []byte(agent.token+"\n"), 0o600); err != nil {
			return err
		}
	}
	if len(agent.arguments) > 0 {
		config.Agent = append([]string{inHost + "/bin/" + filepath.Base(o.AgentBinary)}, agent.arguments...)
		config.Agent = append(config.Agent, "--memory", strconv.FormatUint(h.lab.memoryShare(), 10),
			"--allow-unconfined") // AppArmor does not work inside of a namespace host
		config.Agent = append(config.Agent, h.lab.agentGroup(h.Name)...)
	}
	return writeJSON(h.lab.hostFile(h.Name), config)
}

func (h namespaceHost) start(ctx context.Context) error {
	pid := h.lab.hostProcess(h.Name)
	ran := pid != 0
	if !ran {
		var err error
		pid, err = h.lab.spawnHost(ctx, h.Host, syscall.CLONE_NEWNS|syscall.CLONE_NEWNET|syscall.CLONE_NEWUTS|syscall.CLONE_NEWPID|
			syscall.CLONE_NEWIPC|syscall.CLONE_NEWCGROUP)
		if err != nil {
			return err
		}
	}
	if err := h.plugIn(pid); err != nil {
		if !alive(pid) {
			return h.lab.ended(h.Host)
		}
		return fmt.Errorf("connect it to its LAN: %w", err)
	}
	if ran {
		return h.reload(ctx, pid)
	}
	return nil
}

// reload makes the first process read its configuration again: an agent may have been added.
func (h namespaceHost) reload(ctx context.Context, pid int) error {
	status := filepath.Join(fmt.Sprintf("/proc/%d/root", pid), statusFile) // exists once the process handles signals
	err := waitFor(ctx, 10*time.Second, "first process of host "+h.Name+" to report", func() bool {
		_, err := os.Stat(status)
		return err == nil || !alive(pid)
	})
	if err != nil {
		return err
	}
	_ = syscall.Kill(pid, syscall.SIGHUP) // if the process has ended, waitForHosts reports it
	return nil
}

// plugIn connects the host to its LAN and sets its address.
func (h namespaceHost) plugIn(pid int) error {
	p := h.lab.state.plan()
	router := h.lab.namespacePath(routerNamespace(h.site))
	inside := fmt.Sprintf("/proc/%d/ns/net", pid)
	err := ensureLink(
		end{namespace: router, name: h.Name},
		end{inside, linkHost, p.hardwareAddress(macHost, h.site, h.number), netip.PrefixFrom(h.Address, 24)},
	)
	if err != nil {
		return err
	}
	if err := ensurePort(router, h.Name, linkLAN); err != nil {
		return err
	}
	return ensureRoute(inside, netip.PrefixFrom(netip.IPv4Unspecified(), 0), p.router(h.site))
}

func (h namespaceHost) ready(pid int) (bool, error) {
	c, err := net.Dial("unix", fmt.Sprintf("/proc/%d/root/run/libvirt/libvirt-sock", pid))
	if err != nil {
		return false, nil
	}
	c.Close()
	return true, nil
}

func (h namespaceHost) readyLimit() time.Duration { return 2 * time.Minute }

func (h namespaceHost) crashed(context.Context) error { return nil }

// joined reports whether the agent has its certificate.
func (h namespaceHost) joined() bool {
	_, err := os.Stat(filepath.Join(h.dir(), agentState, "pki", "certificate.pem"))
	return err == nil
}

func (h namespaceHost) command(pid int, _ bool, argv []string) *exec.Cmd {
	args := []string{"-t", strconv.Itoa(pid), "-m", "-n", "-u", "-i", "-p", "-C", "--", "setpriv", "--pdeathsig", "KILL", "--"}
	return exec.Command("nsenter", append(args, argv...)...)
}

func (h namespaceHost) daemons(_ context.Context, pid int) []DaemonStatus {
	var daemons []daemon
	_ = readJSON(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), statusFile), &daemons)
	var status []DaemonStatus
	for _, d := range daemons {
		status = append(status, DaemonStatus{d.Name, d.PID, d.Starts, d.Since, d.Error})
	}
	return status
}

func (h namespaceHost) lastLogLine() string {
	return fmt.Sprintf("its log %s says: %s", filepath.Join(h.dir(), "log", "libvirtd.log"), h.lab.lastLine(h.Name, "libvirtd"))
}

func (h namespaceHost) lastAgentLogLine() string {
	return fmt.Sprintf("its agent's log %s says: %s", filepath.Join(h.dir(), "log", "agent.log"), h.lab.lastLine(h.Name, "agent"))
}
