// The two kinds of hosts: namespaces of this machine, and whole hosts, which are virtual machines.

package lab

import (
	"context"
	"os/exec"
	"time"
)

// hostKind is the part of a host that differs between the two kinds. The first process of either kind is host-init: it
// is found by its command line, and ending it ends the host.
type hostKind interface {
	// prepare writes the files that the host's first process reads.
	prepare(ctx context.Context, o Options, agent agentSetup) error
	// start starts the first process of a host that is not running, and connects the host to its LAN. For a running
	// host, it repairs the connection and makes the host apply the changes that prepare has written.
	start(ctx context.Context) error
	// ready reports whether the libvirt daemon of the running host answers; pid is the host's first process. An error
	// means that it never will.
	ready(pid int) (bool, error)
	// readyLimit is the longest time from the start until the host is ready.
	readyLimit() time.Duration
	// crashed removes what remains on this machine after the first process has ended.
	crashed(ctx context.Context) error
	// joined reports whether the host's agent has joined a manager. It also works for a host that is down.
	joined() bool
	// command returns a command to be run inside the running host, with or without a terminal. Killing it kills the
	// command inside.
	command(pid int, terminal bool, argv []string) *exec.Cmd
	// daemons lists the daemons of the running host.
	daemons(ctx context.Context, pid int) []DaemonStatus
	// lastLogLine describes the last line of the host's own log, for an error message.
	lastLogLine() string
	// lastAgentLogLine does the same for the agent's log.
	lastAgentLogLine() string
}

// agentSetup says how a host's agent is started.
type agentSetup struct {
	arguments []string // empty: unchanged
	token     string   // join token; empty: none is needed
}

func (l *Lab) kind(host Host) hostKind {
	if spec, whole := l.state.Whole[host.Name]; whole {
		return wholeHost{l, host, spec}
	}
	return namespaceHost{l, host}
}

// namespaceHost is a host made of namespaces.
type namespaceHost struct {
	lab *Lab
	Host
}
