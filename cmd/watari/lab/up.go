package lab

// up.go - watari lab up and watari lab down.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
	"watari/lab"
)

func (v *verbs) up() *cobra.Command {
	o := lab.Options{}
	wan, cpus := "", ""
	command := &cobra.Command{
		Use:   "up",
		Short: "Make a lab, or complete one that was left half made",
		Long: `Make a lab, or complete one that was left half made. Each host's agent joins this machine's manager, which the client
config names, unless --manager and --token name another. --agent=false makes hosts without agents.

With --whole, hosts are whole hosts: virtual machines with their own Debian, systemd, kernel and disk, in which KVM works.
QEMU emulates them. The first such lab installs Debian and saves a booted machine, which takes minutes; after that, hosts
start from the saved state within seconds. --whole=b makes whole hosts only on site b, --whole=a2,b1 makes these two
hosts whole hosts. --suite=trixie gives all of them Debian 13, --suite=b=trixie only those of site b.`,
		Example: "  watari lab up --sites 2 --hosts 2 --wan 20ms,200mbit\n  watari lab up --cpus a1=0.7,b1=1.5\n  watari lab up --whole\n" +
			"  watari lab up --whole=b --suite=trixie --memory 4G",
		Args:              wholeArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := command.Flags()
	flags.IntVar(&o.Sites, "sites", 2, "number of sites")
	flags.IntVar(&o.Hosts, "hosts", 2, "number of hosts on each site")
	flags.StringVar(&wan, "wan", "", "round trip, bandwidth and loss between sites, as in 20ms,200mbit,1% (each is optional); none: unshaped")
	flags.StringVar(&cpus, "cpus", "", "limits of hosts' CPU time in CPUs, as in a1=0.7,b1=1.5; none: no limits")
	flags.BoolVar(&o.Lent, "lent", false, "hosts that join are lent out: guests leave when the owner comes back (watari lab owner)")
	flags.BoolVar(&o.Agent, "agent", true, "start an agent on each host")
	flags.StringVar(&o.Manager, "manager", "", "URL at which the hosts reach the manager (default: the client config's manager, on this machine)")
	flags.StringSliceVar(&o.Tokens, "token", nil, "join tokens, one for each host")
	whole := addWholeFlags(flags)
	command.RunE = v.Run(func(ctx context.Context, _ []string) error {
		if err := lab.CheckShape(v.name, o.Sites, o.Hosts); err != nil {
			return cli.Usagef("%v", err)
		}
		var err error
		if o.Whole, err = whole.read(flags); err == nil {
			err = o.Whole.Check(o.Sites, o.Hosts)
		}
		if err != nil {
			return cli.Usagef("%v", err)
		}
		if flags.Changed("wan") {
			shape, err := lab.ParseWAN(wan)
			if err != nil {
				return cli.Usagef("%v", err)
			}
			o.WAN = &shape
		}
		if flags.Changed("cpus") {
			var err error
			if o.CPUs, err = lab.ParseCPUs(cpus); err != nil {
				return cli.Usagef("%v", err)
			}
		}
		if (o.Manager == "") != (len(o.Tokens) == 0) {
			return cli.Usagef("--manager and --token go together: a host that joins needs both")
		}
		if o.Manager == "" {
			o.TokenFunc, o.Admit = v.token, v.admit
		}
		o.Name, o.Progress = v.name, v.say
		l, err := lab.Up(ctx, o)
		if err == nil && o.Agent && o.Manager == "" {
			err = v.hostsReady(ctx, l)
		}
		if err != nil && errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
			return cli.Interruptedf("interrupted; `watari lab up` continues, `watari lab down` removes what was made")
		}
		if err != nil {
			return err
		}
		s, err := l.Status()
		if err != nil {
			return err
		}
		return v.show(s, func(w io.Writer) {
			fmt.Fprintf(w, "lab %s is up: %s of %s; its hosts reach this machine at %s\n", l.Name(), output.Count(o.Sites, "site"),
				output.Count(o.Hosts, "host"), l.RootEnd())
		})
	})
	return command
}

// readyWait is how long hosts may take to be ready. The first start of a libvirt daemon probes each QEMU, and the agent
// of an emulated whole host runs a trial guest under KVM.
const readyWait = 5 * time.Minute

// hostsReady returns when the manager knows all hosts as ready, and knows what their libvirt supports.
func (v *verbs) hostsReady(ctx context.Context, l *lab.Lab) error {
	c, err := v.Client()
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	lines := progress.New(v.Err)
	defer lines.Clear()
	for _, host := range l.Hosts() {
		lines.Set(progress.Line{Key: host.Name, Text: "waiting for host " + host.Name + " to be ready"})
		err := c.Watch(waiting, "host", host.Name, lines.Trouble, func(seen *v1.WatchResponse) (bool, error) {
			state := seen.GetHost().GetState()
			connected := state != v1.HostState_HOST_STATE_UNSPECIFIED && state != v1.HostState_HOST_STATE_UNREACHABLE && state != v1.HostState_HOST_STATE_QUARANTINED
			return connected && seen.GetHost().GetInfo().GetLibvirtVersion() != "", nil
		})
		if err != nil && waiting.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("host %s is not ready after %v; %s", host.Name, readyWait, l.LastAgentLogLine(host.Name))
		}
		if err != nil {
			return fmt.Errorf("wait for host %s to be ready: %w", host.Name, err)
		}
		lines.Notef("host %s is ready for guests", host.Name)
	}
	return nil
}

// say shows a step.
func (v *verbs) say(line string) { v.Notef("%s", line) }

func (v *verbs) down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove everything of a lab, even after a crash",
		Long: "Remove everything of a lab, even after a crash. Its hosts are then gone for good. The manager, if it answers, " +
			"removes them and starts their guests on other hosts if it can.",
		Example:           "  watari lab down",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: v.Run(func(ctx context.Context, _ []string) error {
			var joined []lab.Host
			if l, err := lab.Open(v.name); err == nil {
				joined = l.Joined()
			}
			removed := false
			err := lab.Down(ctx, v.name, func(line string) {
				removed = true
				v.say(line)
			})
			if err != nil && errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
				return cli.Interruptedf("interrupted; `watari lab down` continues")
			}
			if err == nil && !removed {
				v.Notef("there is nothing of lab %s", v.name)
			}
			if err == nil {
				v.forget(ctx, joined)
			}
			return err
		}),
	}
}
