package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
		Short:   "Delete clusters with their guests and files",
		Long: "Delete clusters. Their guests end. Runs on them and the files in their shared homes are lost. A cluster " +
			"can be deleted while it starts and while its guests migrate.",
		Example: "  watari cluster delete md --wait",
		Args:    cli.ArgsAtLeast("CLUSTER"), ValidArgsFunction: env.CompleteEach(cli.Clusters),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			for _, name := range args {
				if err := cli.CheckName("cluster", name); err != nil {
					return err
				}
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			return remove(ctx, env, c, args, wait)
		}),
	}
	command.Flags().BoolVarP(&wait, "wait", "w", false, "wait until they are deleted")
	return command
}

// remove requests the deletion of all clusters before it waits for any.
func remove(ctx context.Context, env *cli.Env, c *client.Client, names []string, wait bool) error {
	var failed []error
	var asked []string
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		if _, err := c.DeleteCluster(ctx, connect.NewRequest(&v1.DeleteClusterRequest{Name: name})); err != nil {
			failed = append(failed, fmt.Errorf("delete cluster %s: %w", name, client.Explain(err)))
			continue
		}
		asked = append(asked, name)
		if !wait {
			env.Notef("cluster %s is being deleted", name)
		}
	}
	for i, name := range asked {
		if !wait {
			break
		}
		err := waitDeleted(ctx, env, c, name)
		if ctx.Err() != nil {
			return cli.Interruptedf("stopped waiting: cluster %s is still being deleted; see `watari cluster list`", strings.Join(asked[i:], ", "))
		}
		failed = append(failed, client.Explain(err))
	}
	return errors.Join(failed...)
}

func waitDeleted(ctx context.Context, env *cli.Env, c *client.Client, name string) error {
	lines := progress.New(env.Err)
	err := c.Watch(ctx, "cluster", name, lines.Trouble, func(now *v1.WatchResponse) (bool, error) {
		if !now.Gone {
			lines.Set(progress.Line{Key: name, Text: fmt.Sprintf("cluster %s: %s left", name, output.Count(len(now.GetGuests()), "guest"))})
		}
		return now.Gone, nil
	})
	if ctx.Err() != nil {
		lines.Keep()
		return ctx.Err()
	}
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return fmt.Errorf("wait for the end of cluster %s: %w", name, err)
	}
	lines.Clear()
	env.Notef("cluster %s is deleted", name)
	return nil
}
