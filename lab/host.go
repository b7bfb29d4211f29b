// Hosts seen from outside: writing their configuration, starting and crashing them, and running commands inside.

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"watari/lab/machine"
)

// hostConfig is host.json, the configuration that a host's first process reads.
type hostConfig struct {
	Name  string   `json:"name"`
	Agent []string `json:"agent"` // command; empty: no agent

	// Of a host made of namespaces:
	Libvirtd []string `json:"libvirtd,omitempty"` // command
	Binaries string   `json:"binaries,omitempty"` // directory of the agent on this machine, seen as inHost+"/bin" in the host

	// Of a whole host:
	Machine  *machine.Start `json:"machine,omitempty"`
	Identity string         `json:"identity,omitempty"` // hash of the content of its identity disk
}

// inHost is the directory in which a host made of namespaces sees two directories of this machine: its own directory of
// the lab's state (host/) and the agent's directory (bin/).
const inHost = "/run/watari-lab"

func (l *Lab) hostDir(host string) string { return filepath.Join(l.dir, "hosts", host) }

func (l *Lab) hostFile(host string) string { return filepath.Join(l.hostDir(host), "host.json") }

// prepareHosts writes the files of every host, and gets a join token for each host whose agent has not joined.
func (l *Lab) prepareHosts(ctx context.Context, o Options) error {
	for i, host := range l.Hosts() {
		if err := os.MkdirAll(filepath.Join(l.hostDir(host.Name), "log"), 0o755); err != nil {
			return err
		}
		var agent agentSetup
		if o.Agent {
			token := ""
			if len(o.Tokens) > 0 {
				token = o.Tokens[i]
			}
			var old hostConfig
			_ = readJSON(l.hostFile(host.Name), &old)
			var err error
			if agent, err = l.setUpAgent(ctx, o, host, token, len(old.Agent) > 0); err != nil {
				return fmt.Errorf("prepare the agent of host %s: %w", host.Name, err)
			}
		}
		if err := l.kind(host).prepare(ctx, o, agent); err != nil {
			return fmt.Errorf("prepare host %s: %w", host.Name, err)
		}
	}
	return nil
}

// startHost starts a host if it is not running.
func (l *Lab) startHost(ctx context.Context, host Host) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ran := l.hostProcess(host.Name) != 0
	if err := l.kind(host).start(ctx); err != nil {
		return fmt.Errorf("start host %s: %w", host.Name, err)
	}
	if !ran {
		l.say("host %s at %s", host.Name, host.Address)
	}
	return nil
}

// spawnHost starts a host's first process in new namespaces.
func (l *Lab) spawnHost(ctx context.Context, host Host, namespaces uintptr) (pid int, err error) {
	log, err := os.OpenFile(filepath.Join(l.hostDir(host.Name), "log", "host.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.Command(l.executable, helperArgs(verbHostInit, l.Name(), host.Name)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: namespaces}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if err := l.enterShare(ctx, host.Name, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return 0, err
	}
	go func() { _ = cmd.Wait() }() // once this process has ended, the machine's first process reaps it
	return cmd.Process.Pid, nil
}

// waitForHosts returns when the libvirt daemon of every host answers.
func (l *Lab) waitForHosts(ctx context.Context, hosts []Host) error {
	for _, host := range hosts {
		if err := l.waitForHost(ctx, host); err != nil {
			return err
		}
		l.say("host %s ready", host.Name)
	}
	return nil
}

func (l *Lab) waitForHost(ctx context.Context, host Host) error {
	var ended error // why the host will never be ready
	pid, kind := l.hostProcess(host.Name), l.kind(host)
	err := waitFor(ctx, kind.readyLimit(), "libvirt daemon of host "+host.Name+" to answer", func() bool {
		if pid == 0 || !alive(pid) {
			ended = l.ended(host)
			return true
		}
		var isReady bool
		isReady, ended = kind.ready(pid)
		return isReady || ended != nil
	})
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w; %s", err, kind.lastLogLine())
	}
	return errors.Join(ended, err)
}

// ended returns the error for a host whose first process has ended unexpectedly.
func (l *Lab) ended(host Host) error {
	return fmt.Errorf("host %s ended; its log %s says: %s", host.Name,
		filepath.Join(l.hostDir(host.Name), "log", "host.log"), l.lastLine(host.Name, "host"))
}

// lastLine returns the last line of one of a host's logs.
func (l *Lab) lastLine(host, log string) string {
	data, _ := os.ReadFile(filepath.Join(l.hostDir(host), "log", log+".log"))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}

// HostCrash ends a host and all its processes at once, as a power failure would. The host's disk is kept.
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
	if err := l.kind(host).crashed(ctx); err != nil {
		return fmt.Errorf("crash host %s: %w", name, err)
	}
	// The kernel also removes the link when its namespace is gone, but only some time later.
	return removeLink(l.namespacePath(routerNamespace(host.site)), name)
}

// down returns the error for a host that is not running.
func (l *Lab) down(host string) error {
	return fmt.Errorf("host %s of lab %s does not run; start it with `watari lab host start --name %[2]s %[1]s`", host, l.Name())
}

// HostStart starts a crashed host with its old disk and a new boot id, and waits for its libvirt daemon.
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

// lockHost locks the lab, reloads its state and finds the host.
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

// Command returns a command that runs argv inside a host, as root, in the host's root directory. Killing the returned
// command kills argv, too.
func (l *Lab) Command(host string, argv ...string) *exec.Cmd { return l.commandOn(host, false, argv) }

// TerminalCommand is like Command, for a command that uses the terminal on its standard input.
func (l *Lab) TerminalCommand(host string, argv ...string) *exec.Cmd {
	return l.commandOn(host, true, argv)
}

func (l *Lab) commandOn(name string, terminal bool, argv []string) *exec.Cmd {
	host, err := l.Host(name)
	pid := l.hostProcess(name)
	if err == nil && pid == 0 {
		err = l.down(name)
	}
	if err != nil {
		cmd := exec.Command("nsenter")
		cmd.Err = err
		return cmd
	}
	return l.inShare(name, l.kind(host).command(pid, terminal, argv))
}
