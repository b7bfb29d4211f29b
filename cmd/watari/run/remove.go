package run

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
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
		RunE: env.Removal("run", func(ctx context.Context, c *client.Client, name string) error {
			_, err := c.RemoveRun(ctx, connect.NewRequest(&v1.RemoveRunRequest{Name: name}))
			return err
		}),
	}
}
