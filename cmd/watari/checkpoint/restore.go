package checkpoint

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
)

func newRestore(env *cli.Env) *cobra.Command {
	var detach bool
	command := &cobra.Command{
		Use:   "restore CHECKPOINT|CLUSTER",
		Short: "Let a cluster go on from a checkpoint",
		Long: "Let a cluster go on from a checkpoint, or from its latest one. Guests that run are ended first, and what they have done since is lost. Then all " +
			"guests go on from the moment of the checkpoint, on the same hosts or on others. Programs that ran then run again; runs that " +
			"were begun since have failed.\n\n" +
			"If the checkpoint turns out to be damaged, the one before is taken. The command waits until all guests run. Ctrl-C ends only the waiting.",
		Example: "  watari checkpoint restore md\n  watari checkpoint restore md-c3",
		Args:    cli.Args("CHECKPOINT|CLUSTER"), ValidArgsFunction: env.Complete(cli.Checkpoints, cli.Clusters),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("checkpoint", args[0]); err != nil {
				return err
			}
			response, err := c.RestoreCheckpoint(ctx, connect.NewRequest(&v1.RestoreCheckpointRequest{Name: args[0]}))
			if err != nil {
				return fmt.Errorf("restore %s: %w", args[0], err)
			}
			cluster := response.Msg.Cluster
			if !detach {
				if cluster, err = followRestore(ctx, env, c, cluster); err != nil {
					return err
				}
			}
			if env.Output != output.FormatTable {
				return output.Write(env.Out, env.Output, cluster, nil)
			}
			name := cluster.GetMeta().GetName()
			if detach {
				env.Notef("cluster %s goes back to checkpoint %s; see `watari cluster show %s`", name, cluster.GetRestore().GetCheckpoint(), name)
				return nil
			}
			env.Notef("cluster %s goes on from checkpoint %s", name, cluster.GetRestore().GetCheckpoint())
			return nil
		}),
	}
	command.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait until the guests run")
	return command
}

// followRestore shows a cluster's guests until all of them run again.
func followRestore(ctx context.Context, env *cli.Env, c *client.Client, cluster *v1.Cluster) (last *v1.Cluster, err error) {
	name := cluster.GetMeta().GetName()
	err = progress.Follow(ctx, env, c, "cluster", name, func(now *v1.WatchResponse, lines *progress.Lines) (bool, error) {
		if now.Gone {
			return false, fmt.Errorf("cluster %s was deleted", name)
		}
		last = now.Cluster
		restore := last.GetRestore()
		var guests []progress.Line
		for _, g := range now.Guests {
			guests = append(guests, progress.Line{Key: g.GetMeta().GetName(), Text: fmt.Sprintf("%s: %s %s %s", g.GetMeta().GetName(), output.State(g.GetState()), g.GetHost(), g.GetMessage())})
		}
		lines.Set(guests...)
		switch restore.GetState() {
		case v1.RestoreState_RESTORE_STATE_FAILED:
			return false, fmt.Errorf("checkpoint %s: %s; the guests are stopped, and `watari checkpoint list %s` shows what else there is", restore.GetCheckpoint(), restore.GetMessage(), name)
		case v1.RestoreState_RESTORE_STATE_DONE:
			return last.GetReadyGuests() == last.GetSpec().GetGuests(), progress.FailedForGood(now)
		}
		return false, nil
	}, "restore cluster "+name, fmt.Sprintf("cluster %s is being restored; see `watari cluster show %s`", name, name))
	return last, err
}
