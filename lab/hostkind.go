// The two kinds of hosts: namespaces of this machine, and whole machines, which are virtual.

package lab

import (
	"context"
	"os/exec"
	"time"
)

// hostKind is what differs between the kinds. The first process of a host of either kind is host-init: it is found by
// its command line, and ending it ends the host.
type hostKind interface {
	// prepare writes what the host's first process reads.
	prepare(ctx context.Context, o Options, agent agentSetup) error
	// start starts the first process of a host that does not run, connected to the host's LAN. For a host that runs, it
	// repairs the connection, and has the host take up what prepare has changed.
	start(ctx context.Context) error
	// ready says whether the libvirt daemon of the running host, whose first process is pid, answers. An error says that
	// it never will.
	ready(pid int) (bool, error)
	// readyLimit is how long that may take after the start.
	readyLimit() time.Duration
	// crashed removes what the end of the first process leaves on this machine.
	crashed(ctx context.Context) error
	// joined says whether the host's agent has joined a manager. It is known of a host that is down, too.
	joined() bool
	// command is a command to be run inside the running host, on a terminal or not. Killing it kills the command.
	command(pid int, terminal bool, argv []string) *exec.Cmd
	// daemons lists the daemons of the running host.
	daemons(ctx context.Context, pid int) []DaemonStatus
	// saysLast are the last words in the host's own log, for an error.
	saysLast() string
	// agentSaysLast is the same for its agent's.
	agentSaysLast() string
}

// agentSetup says how a host's agent is started.
type agentSetup struct {
	arguments []string // none: as before
	token     string   // to join with; empty: none is needed
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
