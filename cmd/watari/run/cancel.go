package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newCancel(env *cli.Env) *cobra.Command {
	var signal string
	command := &cobra.Command{
		Use:   "cancel RUN...",
		Short: "End runs",
		Long: "End runs. The ranks of each get SIGINT, SIGTERM and SIGKILL, 5 s apart, until they end. With --signal, they get only that signal and " +
			"may continue.",
		Example:           "  watari run cancel md-run-1\n  watari run cancel md-run-1 md-run-2\n  watari run cancel md-run-1 --signal USR1",
		Args:              cli.ArgsAtLeast("RUN"),
		ValidArgsFunction: env.CompleteEach(cli.ActiveRuns),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			for _, name := range args {
				if err := cli.CheckName("run", name); err != nil {
					return err
				}
			}
			number := int32(0)
			if signal != "" {
				if number = int32(unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(signal), "SIG"))); number == 0 {
					return cli.Usagef("--signal %q: give a signal's name, as in TERM, INT, KILL, USR1", signal)
				}
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			return cancel(ctx, env, c, args, number)
		}),
	}
	command.Flags().StringVar(&signal, "signal", "", "signal to send instead of INT, TERM and KILL")
	env.CompleteFlag(command, "signal", cli.Words("TERM", "INT", "HUP", "QUIT", "KILL", "STOP", "CONT", "USR1", "USR2"))
	return command
}

// cancel ends runs, or sends them a signal that is not 0.
func cancel(ctx context.Context, env *cli.Env, c *client.Client, names []string, signal int32) error {
	var failed []error
	var runs []*v1.Run
	for _, name := range names {
		response, err := c.CancelRun(ctx, connect.NewRequest(&v1.CancelRunRequest{Name: name, Signal: signal}))
		if err != nil {
			failed = append(failed, fmt.Errorf("cancel run %s: %w", name, client.Explain(err)))
			continue
		}
		runs = append(runs, response.Msg.Run)
		switch {
		case env.Output != output.FormatTable:
		case signal != 0:
			env.Notef("run %s gets the signal", name)
		default:
			env.Notef("run %s is being ended; see how with `watari run show %[1]s`", name)
		}
	}
	var shown error
	if len(names) > 1 {
		shown = cli.ShowList(env, runs, func(io.Writer) {})
	} else if len(runs) > 0 {
		shown = env.Show(runs[0], func(io.Writer) {})
	}
	return errors.Join(append(failed, shown)...)
}
