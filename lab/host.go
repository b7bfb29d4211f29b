// Hosts from outside: writing down what each is to be, starting, crashing, and running commands inside.

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostConfig is host.json: what a host's first process is to do.
type hostConfig struct {
	Name     string   `json:"name"`
	Libvirtd []string `json:"libvirtd"` // command
	Binaries string   `json:"binaries"` // directory of the agent on this machine, seen as inHost+"/bin" in the host
	Agent    []string `json:"agent"`    // command; none: no agent
}

// inHost is where a host sees its own directory of the lab's state (host/) and the agent's directory (bin/).
const inHost = "/run/watari-lab"

// agentState is the agent's state directory within a host's directory of the lab's state.
const agentState = "var-lib-watari/agent"

func (l *Lab) hostDir(host string) string { return filepath.Join(l.dir, "hosts", host) }

// prepareHosts writes every host's files, and asks for the join tokens of those whose agent has not joined.
func (l *Lab) prepareHosts(ctx context.Context, o Options) error {
	for i, host := range l.Hosts() {
		if err := l.writeHostFiles(host); err != nil {
			return fmt.Errorf("write the files of host %s: %w", host.Name, err)
		}
		var old hostConfig
		_ = readJSON(filepath.Join(l.hostDir(host.Name), "host.json"), &old)
		config := hostConfig{
			Name: host.Name, Libvirtd: []string{"libvirtd", "--pid-file", "/run/libvirtd.pid"},
			Binaries: filepath.Dir(o.AgentBinary), Agent: old.Agent,
		}
		if o.Agent {
			token := ""
			if len(o.Tokens) > 0 {
				token = o.Tokens[i]
			}
			if err := l.prepareAgent(ctx, o, host, token, &config); err != nil {
				return fmt.Errorf("prepare the agent of host %s: %w", host.Name, err)
			}
		}
		if err := writeJSON(filepath.Join(l.hostDir(host.Name), "host.json"), config); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) prepareAgent(ctx context.Context, o Options, host Host, token string, config *hostConfig) error {
	dir := filepath.Join(l.hostDir(host.Name), agentState)
	if err := os.MkdirAll(dir, 0o755); err != nil { // QEMU's user reads images below it
		return err
	}
	joined := l.joined(host.Name)
	if o.Admit != nil {
		if err := o.Admit(ctx, host, joined); err != nil {
			return err
		}
	}
	manager := o.Manager
	if !joined || (manager == "" && len(config.Agent) == 0) {
		port := ":" + DefaultManagerPort
		if token == "" {
			if o.TokenFunc == nil {
				return errors.New("it needs a join token: give one for each host, or start the hosts without agents")
			}
			var err error
			token, port, err = o.TokenFunc(ctx, host.Site)
			if err != nil {
				return fmt.Errorf("get a join token: %w", err)
			}
		}
		if manager == "" {
			manager = "https://" + net.JoinHostPort(l.RootEnd().String(), strings.TrimPrefix(port, ":"))
		}
		if err := writeFile(filepath.Join(dir, "token"), []byte(token+"\n"), 0o600); err != nil {
			return err
		}
	}
	if manager == "" { // joined before, and nothing new is asked for
		return nil
	}
	config.Agent = []string{
		inHost + "/bin/" + filepath.Base(o.AgentBinary),
		"--manager", manager, "--token-file", "/var/lib/watari/agent/token",
		"--state", "/var/lib/watari/agent", "--run", "/run/watari",
		"--name", host.Name, "--site", host.Site, "--lan-address", host.Address.String(),
		"--memory", strconv.FormatUint(memoryShare(len(l.Hosts())), 10),
		"--allow-unconfined", // AppArmor does not work inside of a namespace host
	}
	return nil
}

// memoryShare is what each of n hosts offers to guests, MiB: together they have this one machine's memory, of which
// a quarter is left to everything else.
func memoryShare(n int) uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1024
	}
	return max(uint64(info.Totalram)*uint64(info.Unit)/4*3>>20/uint64(n), 256)
}

// Joined lists the hosts whose agent has joined a manager.
func (l *Lab) Joined() []Host {
	return slices.DeleteFunc(l.Hosts(), func(h Host) bool { return !l.joined(h.Name) })
}

// joined says whether a host's agent has its certificate.
func (l *Lab) joined(host string) bool {
	_, err := os.Stat(filepath.Join(l.hostDir(host), agentState, "pki", "certificate.pem"))
	return err == nil
}

// waitForAgents returns when the agent of every host has joined the manager.
func (l *Lab) waitForAgents(ctx context.Context) error {
	for _, host := range l.Hosts() {
		err := waitFor(ctx, time.Minute, "agent of host "+host.Name+" to join the manager", func() bool { return l.joined(host.Name) })
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%w; %s", err, l.LastWords(host.Name))
		}
		if err != nil {
			return err
		}
	}
	l.say("all agents have joined")
	return nil
}

// LastWords is what the agent of a host logged last, for an error.
func (l *Lab) LastWords(host string) string {
	return fmt.Sprintf("its agent's log %s says: %s", filepath.Join(l.hostDir(host), "log", "agent.log"), l.lastLine(host, "agent"))
}

// startHost starts a host's first process unless it runs, and wires it to its LAN.
func (l *Lab) startHost(ctx context.Context, host Host) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	pid := l.hostProcess(host.Name)
	ran := pid != 0
	if !ran {
		var err error
		if pid, err = l.spawnHost(host); err != nil {
			return fmt.Errorf("start host %s: %w", host.Name, err)
		}
		l.say("host %s at %s", host.Name, host.Address)
	}
	if err := l.wireHost(host, pid); err != nil {
		if !alive(pid) { // that is why
			return l.ended(host.Name)
		}
		return fmt.Errorf("wire host %s to its LAN: %w", host.Name, err)
	}
	if !ran {
		return nil
	}
	// It reads again what it is to run, for an agent may have been added; its status shows that it listens.
	status := filepath.Join(fmt.Sprintf("/proc/%d/root", pid), statusFile)
	err := waitFor(ctx, 10*time.Second, "first process of host "+host.Name+" to report", func() bool {
		_, err := os.Stat(status)
		return err == nil || !alive(pid)
	})
	if err != nil {
		return err
	}
	_ = syscall.Kill(pid, syscall.SIGHUP) // if it has ended, waitForHosts says so
	return nil
}

func (l *Lab) spawnHost(host Host) (pid int, err error) {
	log, err := os.OpenFile(filepath.Join(l.hostDir(host.Name), "log", "host.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.Command(l.executable, helperArgs(verbHostInit, l.Name(), host.Name)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP,
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }() // reaped while this process lives, by the machine's first process after that
	return cmd.Process.Pid, nil
}

func (l *Lab) wireHost(host Host, pid int) error {
	p := l.state.plan()
	router := l.namespacePath(routerNamespace(host.site))
	inside := fmt.Sprintf("/proc/%d/ns/net", pid)
	err := ensureLink(
		end{namespace: router, name: host.Name},
		end{inside, linkHost, p.hardwareAddress(macHost, host.site, host.number), netip.PrefixFrom(host.Address, 24)},
	)
	if err != nil {
		return err
	}
	h, err := handle(router)
	if err != nil {
		return err
	}
	defer h.Close()
	port, err := h.LinkByName(host.Name)
	if err != nil {
		return err
	}
	bridge, err := h.LinkByName(linkLAN)
	if err != nil {
		return err
	}
	if err := h.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("join the LAN: %w", err)
	}
	return ensureRoute(inside, netip.PrefixFrom(netip.IPv4Unspecified(), 0), p.router(host.site))
}

// waitForHosts returns when the libvirt daemon of each listens.
func (l *Lab) waitForHosts(ctx context.Context, hosts []Host) error {
	for _, host := range hosts {
		var ended error
		pid := l.hostProcess(host.Name)
		err := waitFor(ctx, 2*time.Minute, "libvirt daemon of host "+host.Name+" to answer", func() bool {
			if pid == 0 || !alive(pid) {
				ended = l.ended(host.Name)
				return true
			}
			c, err := net.Dial("unix", fmt.Sprintf("/proc/%d/root/run/libvirt/libvirt-sock", pid))
			if err != nil {
				return false
			}
			c.Close()
			return true
		})
		if err = errors.Join(ended, err); err != nil {
			return err
		}
		l.say("host %s ready", host.Name)
	}
	return nil
}

// ended is the error of a host whose first process has ended when it should not have.
func (l *Lab) ended(host string) error {
	return fmt.Errorf("host %s ended; its log %s says: %s", host, filepath.Join(l.hostDir(host), "log", "host.log"), l.lastLine(host, "host"))
}

// lastLine is the last line of one of a host's logs.
func (l *Lab) lastLine(host, log string) string {
	data, _ := os.ReadFile(filepath.Join(l.hostDir(host), "log", log+".log"))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}

// HostCrash ends a host and all that runs on it at once, as a power failure would. What it had on disk stays.
func (l *Lab) HostCrash(ctx context.Context, name string) error {
	unlock, host, err := l.lockHost(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	pid := l.hostProcess(name)
	if pid == 0 {
		return l.down(name)
	}
	if err := kill(ctx, pid); err != nil {
		return fmt.Errorf("crash host %s: %w", name, err)
	}
	return l.unwireHost(host)
}

// down is the error of a host that ought to run.
func (l *Lab) down(host string) error {
	return fmt.Errorf("host %s of lab %s does not run; start it with `watari lab host start --name %[2]s %[1]s`", host, l.Name())
}

// unwireHost removes the LAN's end of a dead host's link; the kernel does so too, but some time later.
func (l *Lab) unwireHost(host Host) error {
	h, err := handle(l.namespacePath(routerNamespace(host.site)))
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(host.Name)
	if err != nil {
		return nil
	}
	err = h.LinkDel(link)
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("unwire host %s: %w", host.Name, err)
	}
	return nil
}

// HostStart starts a host that crashed, with the disk it had and a new boot id, and waits for its libvirt daemon.
func (l *Lab) HostStart(ctx context.Context, name string) error {
	unlock, host, err := l.lockHost(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.startHost(ctx, host); err != nil {
		return err
	}
	return l.waitForHosts(ctx, []Host{host})
}

// lockHost locks the lab and reads it again.
func (l *Lab) lockHost(ctx context.Context, name string) (unlock func(), host Host, err error) {
	unlock, err = l.lock(ctx)
	if err != nil {
		return nil, Host{}, err
	}
	if host, err = l.Host(name); err != nil {
		unlock()
		return nil, Host{}, err
	}
	return unlock, host, nil
}

// Command is a command to be run inside a host, in all its namespaces. Killing it kills the command. It runs in the
// host's root directory unless argv changes that.
func (l *Lab) Command(host string, argv ...string) *exec.Cmd {
	pid := l.hostProcess(host)
	if pid == 0 {
		cmd := exec.Command("nsenter")
		cmd.Err = l.down(host)
		return cmd
	}
	args := []string{"-t", strconv.Itoa(pid), "-m", "-n", "-u", "-i", "-p", "-C", "--", "setpriv", "--pdeathsig", "KILL", "--"}
	return exec.Command("nsenter", append(args, argv...)...)
}
