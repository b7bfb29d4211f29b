// The agents of hosts: how they are started, and whether they have joined a manager.

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// agentMetricsPort is where a host's agent serves metrics, at the host's address. No route leads there from outside this machine.
const agentMetricsPort = "7074"

// setUpAgent decides how a host's agent is started. It gets a join token for an agent that has not joined.
func (l *Lab) setUpAgent(ctx context.Context, o Options, host Host, token string, had bool) (agentSetup, error) {
	joined := l.kind(host).joined()
	if o.Admit != nil {
		if err := o.Admit(ctx, host, joined); err != nil {
			return agentSetup{}, err
		}
	}
	manager := o.Manager
	if !joined || (manager == "" && !had) {
		port := ":" + DefaultManagerPort
		if token == "" {
			if o.TokenFunc == nil {
				return agentSetup{}, errors.New("it needs a join token: give one for each host, or start the hosts without agents")
			}
			var err error
			token, port, err = o.TokenFunc(ctx, host.Site)
			if err != nil {
				return agentSetup{}, fmt.Errorf("get a join token: %w", err)
			}
		}
		if manager == "" {
			manager = "https://" + net.JoinHostPort(l.RootEnd().String(), strings.TrimPrefix(port, ":"))
		}
	} else {
		token = ""
	}
	if manager == "" { // the agent has joined before, and its arguments stay as they are
		return agentSetup{}, nil
	}
	arguments := []string{
		"--manager", manager, "--token-file", "/var/lib/watari/agent/token",
		"--state", "/var/lib/watari/agent", "--run", "/run/watari",
		"--name", host.Name, "--site", host.Site, "--lan-address", host.Address.String(),
		"--metrics", net.JoinHostPort(host.Address.String(), agentMetricsPort),
	}
	if o.Lent {
		arguments = append(arguments, "--lent")
	}
	return agentSetup{token: token, arguments: arguments}, nil
}

// memoryShare returns how much memory each host made of namespaces offers to guests, in MiB. These hosts share three
// quarters of the machine's memory, less the memory of the whole hosts.
func (l *Lab) memoryShare() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1024
	}
	rest := int64(uint64(info.Totalram) * uint64(info.Unit) / 4 * 3 >> 20)
	sharing := int64(len(l.Hosts()) - len(l.state.Whole))
	for _, spec := range l.state.Whole {
		rest -= int64(spec.Memory)
	}
	return uint64(max(rest/max(sharing, 1), 256))
}

// Joined lists the hosts whose agents have joined a manager.
func (l *Lab) Joined() []Host {
	return slices.DeleteFunc(l.Hosts(), func(h Host) bool { return !l.kind(h).joined() })
}

// waitForAgents returns when the agent of every host has joined the manager.
func (l *Lab) waitForAgents(ctx context.Context) error {
	for _, host := range l.Hosts() {
		err := waitFor(ctx, joinLimit, "agent of host "+host.Name+" to join the manager", l.kind(host).joined)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%w; %s", err, l.LastAgentLogLine(host.Name))
		}
		if err != nil {
			return err
		}
	}
	l.say("all agents have joined")
	return nil
}

// joinLimit is the longest time that an agent may take to join.
const joinLimit = 2 * time.Minute

// LastAgentLogLine returns the last line of the log of a host's agent, for an error message.
func (l *Lab) LastAgentLogLine(host string) string {
	h, err := l.Host(host)
	if err != nil {
		return err.Error()
	}
	return l.kind(h).lastAgentLogLine()
}
