package checkpoint

// snapshot.go - `watari volume snapshot` and `watari volume restore`: checkpoints of a volume alone.

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/progress"
)

// NewSnapshot returns `watari volume snapshot`.
func NewSnapshot(env *cli.Env) *cobra.Command {
	var flags createFlags
	var command *cobra.Command
	command = &cobra.Command{
		Use:   "snapshot VOLUME",
		Short: "Keep what is on a volume now, once or regularly, also on other hosts",
		Long: "Keep what is on a volume now. Programs that use the volume run on. What they have not synced may be missing from the snapshot, as after a " +
			"power failure. Ctrl-C ends only the waiting.\n\n" +
			"With --every, snapshots are made regularly from now on, and the command returns at once; --every 0 ends that. The newest --keep " +
			"are kept, and those that are pinned. --keep and --replicas without --every change only that, and make no snapshot. Most snapshots have only what has changed since the one before.\n\n" +
			"Files are compressed and encrypted, and each is kept on --replicas hosts, on different sites if there are several. `watari checkpoint` " +
			"lists, shows, pins and deletes snapshots.",
		Example: "  watari volume snapshot data\n  watari volume snapshot data --every 1h --keep 24 --replicas 3\n  watari volume snapshot data --every 0",
		Args:    cli.Args("VOLUME"), ValidArgsFunction: env.Complete(cli.Volumes),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("volume", args[0]); err != nil {
				return err
			}
			regular, err := flags.regular("snapshot", command.Flags().Changed)
			if err != nil {
				return err
			}
			if regular {
				return plan(ctx, env, c, target{volume: args[0]}, flags, command.Flags().Changed("every"))
			}
			return create(ctx, env, c, target{volume: args[0]}, flags)
		}),
	}
	f := command.Flags()
	f.BoolVar(&flags.pin, "pin", false, "keep it until it is deleted")
	f.DurationVar(&flags.every, "every", 0, "make snapshots regularly, such as every 1h; 0: no more")
	f.Uint32Var(&flags.keep, "keep", 0, "how many snapshots are kept beside the pinned ones (default 3)")
	f.Uint32Var(&flags.copies, "replicas", 0, "on how many hosts each later snapshot is kept (default 2)")
	f.BoolVarP(&flags.detach, "detach", "d", false, "print the snapshot's name and return")
	return command
}

// NewRestoreVolume returns `watari volume restore`.
func NewRestoreVolume(env *cli.Env) *cobra.Command {
	var host string
	var detach bool
	command := &cobra.Command{
		Use:   "restore SNAPSHOT|VOLUME",
		Short: "Put a volume that no cluster uses back to a snapshot",
		Long: "Put a volume that no cluster uses back to a snapshot, or to the latest one that can be read: if a later one is only on hosts that were removed, " +
			"or have been out of reach for a minute, the command names it and them. What was written since the snapshot is lost.\n\n" +
			"With --host, another host gets the volume. If the volume's host was removed, or has been out of reach for a minute, another one gets it " +
			"in any case. The old host's disk is deleted when the new one is there. Ctrl-C ends only the waiting.",
		Example: "  watari volume restore data\n  watari volume restore data-s3\n  watari volume restore data --host rack-2",
		Args:    cli.Args("SNAPSHOT|VOLUME"), ValidArgsFunction: env.Complete(cli.Volumes, cli.Checkpoints),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("snapshot", args[0]); err != nil {
				return err
			}
			response, err := c.RestoreCheckpoint(ctx, connect.NewRequest(&v1.RestoreCheckpointRequest{Name: args[0], Volume: true, Host: host}))
			if err != nil {
				return fmt.Errorf("restore %s: %w", args[0], err)
			}
			if response.Msg.Note != "" {
				env.Notef("%s", response.Msg.Note)
			}
			v := response.Msg.Volume
			name, snapshot := v.GetMeta().GetName(), v.GetRestore().GetCheckpoint()
			if detach {
				return env.Done(v, "volume %s goes back to snapshot %s; see `watari volume show %s`", name, snapshot, name)
			}
			if v, err = followVolume(ctx, env, c, name); err != nil {
				return err
			}
			return env.Done(v, "volume %s is back at snapshot %s, on host %s", name, snapshot, v.GetHost())
		}),
	}
	command.Flags().StringVar(&host, "host", "", "host that is to have the volume (default: the one that has it)")
	command.Flags().BoolVarP(&detach, "detach", "d", false, "return at once")
	env.CompleteFlag(command, "host", cli.Hosts)
	return command
}

// followVolume shows a volume until it is restored.
func followVolume(ctx context.Context, env *cli.Env, c *client.Client, name string) (last *v1.Volume, err error) {
	err = progress.Follow(ctx, env, c, "volume", name, func(now *v1.WatchResponse, lines *progress.Lines) (bool, error) {
		last = now.Volume
		restore := last.GetRestore()
		lines.Set(progress.Line{Key: name, Text: fmt.Sprintf("volume %s: goes back to %s on host %s %s", name, restore.GetCheckpoint(), last.GetHost(), last.GetMessage())})
		switch {
		case now.Gone:
			return false, fmt.Errorf("volume %s was deleted", name)
		case restore.GetState() == v1.RestoreState_RESTORE_STATE_FAILED:
			return false, fmt.Errorf("snapshot %s: %s; `watari checkpoint list --volume %s` shows what else there is", restore.GetCheckpoint(), restore.GetMessage(), name)
		}
		return restore.GetState() == v1.RestoreState_RESTORE_STATE_DONE, nil
	}, "restore volume "+name, fmt.Sprintf("volume %s is being restored; see `watari volume show %s`", name, name))
	return last, err
}
