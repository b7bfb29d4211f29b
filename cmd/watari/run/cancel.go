package run

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

func newCancel(env *cli.Env) *cobra.Command {
	var signal string
	command := &cobra.Command{
		Use:   "cancel RUN",
		Short: "End a run",
		Long: "End a run. Its ranks get SIGINT, SIGTERM and SIGKILL, 5 s apart, until they end. With --signal, they get only that signal and " +
			"may continue.",
		Example:           "  watari run cancel md-run-1\n  watari run cancel md-run-1 --signal USR1",
		Args:              cli.Args("RUN"),
		ValidArgsFunction: env.Complete(cli.ActiveRuns),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("run", args[0]); err != nil {
				return err
			}
			request := &v1.CancelRunRequest{Name: args[0]}
			if signal != "" {
				if request.Signal = int32(unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(signal), "SIG"))); request.Signal == 0 {
					return cli.Usagef("--signal %q: give a signal's name, as in TERM, INT, KILL, USR1", signal)
				}
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			response, err := c.CancelRun(ctx, connect.NewRequest(request))
			if err != nil {
				return fmt.Errorf("cancel run %s: %w", args[0], err)
			}
			if request.Signal != 0 {
				return env.Done(response.Msg.Run, "run %s gets the signal", args[0])
			}
			return env.Done(response.Msg.Run, "run %s is being ended; see how with `watari run show %s`", args[0], args[0])
		}),
	}
	command.Flags().StringVar(&signal, "signal", "", "signal to send instead of INT, TERM and KILL")
	env.CompleteFlag(command, "signal", cli.Words("TERM", "INT", "HUP", "QUIT", "KILL", "STOP", "CONT", "USR1", "USR2"))
	return command
}
