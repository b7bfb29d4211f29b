package cluster

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
)

func newDelete(env *cli.Env) *cobra.Command {
	var wait bool
	command := &cobra.Command{
		Use:     "delete CLUSTER...",
		Aliases: []string{"rm", "remove"},
		Short:   "Delete clusters, with their guests and all that is in them",
		Long: "Delete clusters. Their guests end, runs on them are lost, and so are the files in their shared home. A cluster " +
			"that is still starting, or of which a guest is being migrated, can be deleted too.",
		Example: "  watari cluster delete md --wait",
		Args:    cobra.MinimumNArgs(0),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("watari cluster delete wants CLUSTER")
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			var failed []error
			for _, name := range args {
				if err := remove(ctx, env, c, name, wait); err != nil {
					failed = append(failed, err)
				}
			}
			return errors.Join(failed...)
		}),
	}
	command.Flags().BoolVarP(&wait, "wait", "w", false, "wait until nothing of them is left")
	command.ValidArgsFunction = func(command *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return env.Complete(cli.Clusters)(command, nil, begun)
	}
	return command
}

func remove(ctx context.Context, env *cli.Env, c *client.Client, name string, wait bool) error {
	if err := cli.CheckName("cluster", name); err != nil {
		return err
	}
	if _, err := c.DeleteCluster(ctx, connect.NewRequest(&v1.DeleteClusterRequest{Name: name})); err != nil {
		return fmt.Errorf("delete cluster %s: %w", name, err)
	}
	if !wait {
		env.Notef("cluster %s is being deleted", name)
		return nil
	}
	lines := progress.New(env.Err)
	err := c.Watch(ctx, "cluster", name, lines.Trouble, func(now *v1.WatchResponse) (bool, error) {
		if !now.Gone {
			lines.Set(progress.Line{Key: name, Text: fmt.Sprintf("cluster %s: %s left", name, output.Count(len(now.GetGuests()), "guest"))})
		}
		return now.Gone, nil
	})
	if ctx.Err() != nil {
		lines.Keep()
		return cli.Interruptedf("stopped waiting: cluster %s goes on being deleted; look with `watari cluster list`", name)
	}
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return fmt.Errorf("wait for the end of cluster %s: %w", name, err)
	}
	lines.Clear()
	env.Notef("cluster %s is deleted", name)
	return nil
}
