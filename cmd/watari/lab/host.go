package lab

// host.go - watari lab exec and watari lab host: commands in hosts, and crashes of hosts.

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"watari/cmd/internal/cli"
	"watari/lab"
)

func (v *verbs) exec() *cobra.Command {
	return &cobra.Command{
		Use:               "exec HOST -- COMMAND [ARG...]",
		Short:             "Run a command inside a host and exit with its status",
		Example:           "  watari lab exec a1 -- virsh -c qemu:///system list",
		ValidArgsFunction: v.completeHosts,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return cli.Usagef("watari lab exec needs HOST -- COMMAND; see `watari lab exec --help`")
			}
			return nil
		},
		RunE: v.RunWithSignals(func(_ context.Context, args []string) error {
			l, err := v.open()
			if err != nil {
				return err
			}
			if _, err := l.Host(args[0]); err != nil {
				return err
			}
			run := l.Command
			if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
				run = l.TerminalCommand
			}
			inside := run(args[0], args[1:]...)
			if inside.Err != nil {
				return inside.Err
			}
			// Replace this process by the command, so that the command gets the signals and the terminal, and sets the
			// exit status.
			if err := syscall.Exec(inside.Path, inside.Args, os.Environ()); err != nil {
				return fmt.Errorf("run %s: %w", inside.Path, err)
			}
			return nil
		}),
	}
}

func (v *verbs) host() *cobra.Command {
	return cli.Noun(&cobra.Command{Use: "host", Short: "A lab's hosts: crash, start",
		Example: "  watari lab host crash a1\n  watari lab host start a1"},
		v.actOnHost("crash", "End a host and all that runs on it at once, as a power failure would", "crashed", (*lab.Lab).HostCrash),
		v.actOnHost("start", "Start a host that crashed, with the disk it had", "started", (*lab.Lab).HostStart),
	)
}

func (v *verbs) actOnHost(use, short, done string, act func(*lab.Lab, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:               use + " HOST",
		Short:             short,
		Example:           "  watari lab host " + use + " a1",
		Args:              cli.Args("HOST"),
		ValidArgsFunction: v.completeHosts,
		RunE: v.Run(func(ctx context.Context, args []string) error {
			l, err := v.open()
			if err != nil {
				return err
			}
			if err := act(l, ctx, args[0]); err != nil {
				return err
			}
			v.Notef("host %s %s", args[0], done)
			return nil
		}),
	}
}
