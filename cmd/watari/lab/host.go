package lab

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"watari/lab"
)

func exec(name *string) *cobra.Command {
	return &cobra.Command{
		Use:                   "exec HOST -- COMMAND [ARG...]",
		Short:                 "Run a command inside a host; the exit status is the command's",
		Example:               "  watari lab exec a1 -- virsh -c qemu:///system list",
		DisableFlagsInUseLine: true,
		Args:                  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := open(*name)
			if err != nil {
				return err
			}
			if _, err := l.Host(args[0]); err != nil {
				return err
			}
			inside := l.Command(args[0], args[1:]...)
			if inside.Err != nil {
				return inside.Err
			}
			// This process becomes the command, so that signals, terminal and exit status are its own.
			if err := syscall.Exec(inside.Path, inside.Args, os.Environ()); err != nil {
				return fmt.Errorf("run %s: %w", inside.Path, err)
			}
			return nil
		},
	}
}

func host(name *string) *cobra.Command {
	noun := &cobra.Command{Use: "host", Short: "Crash and start a lab's hosts"}
	act := func(use, short, done string, f func(*lab.Lab, context.Context, string) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " HOST", Short: short, Args: cobra.ExactArgs(1),
			RunE: func(command *cobra.Command, args []string) error {
				ctx, stop := interruptible(command)
				defer stop()
				l, err := open(*name)
				if err != nil {
					return err
				}
				if err := f(l, ctx, args[0]); err != nil {
					return err
				}
				fmt.Fprintf(command.OutOrStdout(), "host %s %s\n", args[0], done)
				return nil
			},
		}
	}
	noun.AddCommand(
		act("crash", "End a host and all that runs on it at once, as a power failure would", "crashed", (*lab.Lab).HostCrash),
		act("start", "Start a host that crashed, with the disk it had", "started", (*lab.Lab).HostStart),
	)
	return noun
}
