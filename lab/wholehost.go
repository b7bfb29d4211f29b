// Whole hosts, seen from outside. Each has a directory with its disk and its identity disk. A tap connects it to its
// LAN. It is reached by SSH from its site's router, so a cut of the WAN does not matter.

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"watari/internal/durable"
	"watari/lab/machine"
)

// wholeHost is a host that is a virtual machine.
type wholeHost struct {
	lab *Lab
	Host
	spec machine.Spec
}

func (h wholeHost) dir() string    { return h.lab.hostDir(h.Name) }
func (h wholeHost) router() string { return h.lab.namespacePath(routerNamespace(h.site)) }

// takenFile is the path of a file with the hash of the identity that the machine has taken.
func (h wholeHost) takenFile() string { return filepath.Join(h.dir(), "identity-taken") }

func (h wholeHost) prepare(_ context.Context, o Options, agent agentSetup) error {
	var config hostConfig
	_ = readJSON(h.lab.hostFile(h.Name), &config)
	config.Name = h.Name
	if config.Machine == nil {
		p := h.lab.state.plan()
		config.Machine = &machine.Start{
			Template: h.lab.templates[h.spec], Tap: h.Name, MAC: p.hardwareAddress(macHost, h.site, h.number),
			UUID: h.lab.state.UUIDs[h.Name], MachineID: uuid.New(),
		}
	}
	if len(agent.arguments) > 0 {
		config.Agent = append([]string{machine.AgentBinary}, agent.arguments...)
	}
	if err := h.setUpLogin(); err != nil {
		return err
	}
	identity, err := h.identity(config, o.AgentBinary, agent.token)
	if err != nil {
		return err
	}
	config.Identity, err = machine.WriteIdentity(h.dir(), identity)
	if err != nil {
		return err
	}
	return writeJSON(h.lab.hostFile(h.Name), config)
}

func (h wholeHost) identity(config hostConfig, agentBinary, token string) (machine.Identity, error) {
	loginKey, err := os.ReadFile(h.lab.loginKey() + ".pub")
	if err != nil {
		return machine.Identity{}, err
	}
	hostKey, err := os.ReadFile(h.hostKey())
	if err != nil {
		return machine.Identity{}, err
	}
	i := machine.Identity{
		Name: h.Name, UUID: config.Machine.UUID, MachineID: config.Machine.MachineID, MAC: config.Machine.MAC,
		Address: netip.PrefixFrom(h.Address, 24), Gateway: h.lab.state.plan().router(h.site),
		Hosts: h.lab.hostsFile(), HostKey: hostKey, LoginKey: string(loginKey),
	}
	if len(config.Agent) > 0 {
		i.Files = append(i.Files,
			machine.File{Path: machine.AgentBinary, Mode: 0o755, Source: agentBinary},
			machine.File{Path: machine.AgentUnit, Mode: 0o644, Data: []byte(fmt.Sprintf(agentUnit, strings.Join(config.Agent, " ")))})
	}
	if token != "" {
		i.Files = append(i.Files, machine.File{Path: "/var/lib/watari/agent/token", Mode: 0o600, Data: []byte(token + "\n")})
	}
	return i, nil
}

// agentUnit keeps the agent running, as host-init does on hosts made of namespaces. WireGuard's process, which the
// agent starts, outlives the agent.
const agentUnit = `[Unit]
Description=Watari agent
After=libvirtd.service network.target
StartLimitIntervalSec=0

[Service]
ExecStart=%s
Restart=always
RestartSec=250ms
KillMode=process
StateDirectory=watari/agent
`

func (h wholeHost) start(ctx context.Context) error {
	if pid := h.lab.hostProcess(h.Name); pid != 0 {
		if err := h.plugIn(); err != nil {
			return err
		}
		return h.update(ctx, pid)
	}
	if err := h.plugIn(); err != nil {
		return err
	}
	// Report the start here, not in the host's first process: until then, a waiting caller would read the "ready" of
	// the last boot.
	if err := machine.ReportStart(h.dir()); err != nil {
		return err
	}
	return inNamespace(h.router(), func() error {
		_, err := h.lab.spawnHost(ctx, h.Host, syscall.CLONE_NEWPID)
		return err
	})
}

// plugIn makes the machine's tap a port of its LAN.
func (h wholeHost) plugIn() error {
	if err := ensureTap(h.router(), h.Name); err != nil {
		return err
	}
	return ensurePort(h.router(), h.Name, linkLAN)
}

// update makes the running machine take its identity again if the identity has changed: an agent may have been added.
func (h wholeHost) update(ctx context.Context, pid int) error {
	var config hostConfig
	if err := readJSON(h.lab.hostFile(h.Name), &config); err != nil {
		return err
	}
	if taken, _ := os.ReadFile(h.takenFile()); string(taken) == config.Identity {
		return nil
	}
	if err := h.lab.waitForHost(ctx, h.Host); err != nil {
		return err
	}
	files, err := machine.OpenIdentity(h.dir())
	if err != nil {
		return err
	}
	defer files.Close()
	cmd := h.command(pid, false, machine.RetakeIdentity)
	cmd.Stdin = files
	if out, err := runWithin(ctx, cmd); err != nil {
		return fmt.Errorf("change its identity: %w: %s", err, out)
	}
	return durable.WriteFile(h.takenFile(), []byte(config.Identity), 0o644)
}

// runMachine is host-init's work for a whole host. It returns when the machine has ended.
func runMachine(dir string, config hostConfig) error {
	if err := durable.WriteFile(filepath.Join(dir, "identity-taken"), []byte(config.Identity), 0o644); err != nil {
		return err
	}
	return machine.Run(context.Background(), dir, *config.Machine)
}

func (h wholeHost) ready(int) (bool, error) {
	r := machine.ReadReport(h.dir())
	if r.Failed != "" {
		return false, fmt.Errorf("host %s failed to take its identity (%s); %s", h.Name, r.Failed, h.lastLogLine())
	}
	return r.Ready, nil
}

// readyLimit is long: the host may boot together with others on busy cores.
func (h wholeHost) readyLimit() time.Duration { return 10 * time.Minute }

func (h wholeHost) joined() bool { return machine.ReadReport(h.dir()).Joined }

func (h wholeHost) lastLogLine() string { return machine.LastConsoleLine(h.dir()) }

func (h wholeHost) lastAgentLogLine() string {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	out, err := runWithin(ctx, h.lab.Command(h.Name, "journalctl", "-u", "watari-agent", "-n", "1", "-o", "cat"))
	if err != nil {
		return fmt.Sprintf("its agent's log cannot be read: %v; %s", err, h.lastLogLine())
	}
	return "its agent's log (journalctl -u watari-agent) says: " + strings.TrimSpace(out)
}

// daemons asks systemd.
func (h wholeHost) daemons(ctx context.Context, pid int) []DaemonStatus {
	out, err := runWithin(ctx, h.command(pid, false, []string{"systemctl", "show", "--timestamp=unix",
		"--property=Id,LoadState,MainPID,NRestarts,ExecMainStartTimestamp,ActiveState,Result", "libvirtd.service", "watari-agent.service"}))
	if err != nil {
		return nil
	}
	return parseUnits(out)
}

// parseUnits reads the output of systemctl show. It leaves out daemons that are not installed. libvirtd exits when it
// is idle, and its socket starts it again: that is not an error.
func parseUnits(text string) []DaemonStatus {
	var daemons []DaemonStatus
	for _, unit := range strings.Split(strings.TrimSpace(text), "\n\n") {
		properties := map[string]string{}
		for line := range strings.Lines(unit) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			properties[key] = value
		}
		if properties["LoadState"] != "loaded" {
			continue
		}
		name := strings.TrimPrefix(strings.TrimSuffix(properties["Id"], ".service"), "watari-")
		d := DaemonStatus{Name: name}
		d.PID, _ = strconv.Atoi(properties["MainPID"])
		d.Starts, _ = strconv.Atoi(properties["NRestarts"])
		d.Starts++
		if seconds, err := strconv.ParseInt(strings.TrimPrefix(properties["ExecMainStartTimestamp"], "@"), 10, 64); err == nil {
			d.Since = time.Unix(seconds, 0)
		}
		idle := name == "libvirtd" && properties["ActiveState"] == "inactive" && properties["Result"] == "success"
		if d.PID == 0 && !idle {
			d.Error = properties["ActiveState"] + ", " + properties["Result"]
		}
		daemons = append(daemons, d)
	}
	return daemons
}

// runWithin runs a command and kills it when ctx ends. It returns the command's output.
func runWithin(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	err := cmd.Wait()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.String(), err
}
