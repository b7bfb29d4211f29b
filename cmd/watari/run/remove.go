package run

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

func newRemove(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "remove RUN",
		Aliases:           []string{"rm", "delete"},
		Short:             "Remove a run that has ended, with its output",
		Long:              "Remove a run that has ended, with the output that the manager keeps. Files in the cluster's shared home stay.",
		Example:           "  watari run remove md-run-1",
		Args:              cli.Args("RUN"),
		ValidArgsFunction: env.Complete(cli.EndedRuns),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("run", args[0]); err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			if _, err := c.RemoveRun(ctx, connect.NewRequest(&v1.RemoveRunRequest{Name: args[0]})); err != nil {
				return fmt.Errorf("remove run %s: %w", args[0], err)
			}
			env.Notef("run %s is removed", args[0])
			return nil
		}),
	}
}
