package run

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newProcesses(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "processes RUN",
		Short: "Show what the processes of a run use now",
		Long: "Show the processes of a running run: rank, guest, host, process id in the guest, command, state, use of processors over the last\n" +
			"second (100 % is one core), processor time since the process began, and resident memory. The guests are asked for that, which takes\n" +
			"a second. A guest that does not answer within some seconds is listed with the reason. The launcher and its helpers are listed,\n" +
			"too; they have no rank. Of each guest, at most 1000 processes are listed: those that have used most processor time.\n\n" +
			"`watari top` shows the same continuously.",
		Example:           "  watari run processes md-run-1\n  watari run processes md-run-1 -o json | jq '.guests[].processes[] | select(.rank != null) | .cpu'",
		Args:              cli.Args("RUN"),
		ValidArgsFunction: env.Complete(cli.ActiveRuns),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("run", args[0]); err != nil {
				return err
			}
			response, err := c.RunProcesses(ctx, connect.NewRequest(&v1.RunProcessesRequest{Name: args[0]}))
			if err != nil {
				return fmt.Errorf("show the processes of run %s: %w", args[0], err)
			}
			return env.Show(response.Msg, func(w io.Writer) { output.Processes(w, response.Msg.Guests) })
		}),
	}
}
