package volume

// move.go - `watari volume move`.

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

func newMove(env *cli.Env) *cobra.Command {
	var host, site string
	var detach, cancel bool
	command := &cobra.Command{
		Use:   "move VOLUME (--host HOST | --site SITE | --cancel)",
		Short: "Move a volume to another host or site, while a cluster may use it",
		Long: "Move a volume to another host, or to the host of a site that has the most room. A cluster that uses it goes on: the volume's disk is copied meanwhile, and programs wait for its files only " +
			"for a few seconds, when the new host takes over. Then the old disk is deleted.\n\n" +
			"If a host or the network fails, the copy is made again, or the volume stays where it is; nothing that was written is lost. Ctrl-C ends only the waiting.",
		Example: "  watari volume move data --host rack-2\n  watari volume move data --site north\n  watari volume move data --cancel",
		Args:    cli.Args("VOLUME"), ValidArgsFunction: env.Complete(cli.Volumes),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			name := args[0]
			if err := cli.CheckName("volume", name); err != nil {
				return err
			}
			if host != "" && site != "" || cancel == (host != "" || site != "") {
				return cli.Usagef("say where the volume is to be with --host or --site, or cancel its move with --cancel")
			}
			response, err := c.MoveVolume(ctx, connect.NewRequest(&v1.MoveVolumeRequest{Name: name, Host: host, Site: site, Cancel: cancel}))
			switch {
			case err != nil && cancel:
				return fmt.Errorf("cancel the move of volume %s: %w", name, err)
			case err != nil:
				return fmt.Errorf("move volume %s: %w", name, err)
			}
			v := response.Msg.Volume
			if detach {
				return env.Done(v, "volume %s: %s; see `watari volume show %s`", name, moved(v.GetMove()), name)
			}
			if v, err = followMove(ctx, env, c, name, cancel); err != nil {
				return err
			}
			return env.Done(v, "volume %s is on host %s", name, v.GetHost())
		}),
	}
	command.Flags().StringVar(&host, "host", "", "host that is to have the volume")
	command.Flags().StringVar(&site, "site", "", "site that is to have the volume")
	command.Flags().BoolVar(&cancel, "cancel", false, "cancel the move that is under way")
	command.Flags().BoolVarP(&detach, "detach", "d", false, "return at once")
	env.CompleteFlag(command, "host", cli.Hosts)
	env.CompleteFlag(command, "site", cli.Sites)
	return command
}

// moved describes the latest move of a volume; empty: there was none.
func moved(m *v1.VolumeMove) string {
	if m == nil {
		return ""
	}
	text := fmt.Sprintf("to %s: %s", m.GetTarget(), output.State(m.GetState()))
	if m.GetTotalBytes() > 0 {
		text += fmt.Sprintf(", %s of %s", output.Size(m.GetCopiedBytes()), output.Size(m.GetTotalBytes()))
	}
	if m.GetMessage() != "" {
		text += ": " + m.GetMessage()
	}
	return text
}

// followMove shows the move of a volume until it has ended.
func followMove(ctx context.Context, env *cli.Env, c *client.Client, name string, cancel bool) (last *v1.Volume, err error) {
	err = progress.Follow(ctx, env, c, "volume", name, func(now *v1.WatchResponse, lines *progress.Lines) (bool, error) {
		if now.Gone {
			return false, errors.New("it was deleted")
		}
		last = now.Volume
		m := last.GetMove()
		lines.Set(progress.Line{Key: name, Text: fmt.Sprintf("volume %s: %s", name, moved(m))})
		switch m.GetState() {
		case v1.VolumeMoveState_VOLUME_MOVE_STATE_FAILED, v1.VolumeMoveState_VOLUME_MOVE_STATE_CANCELLED:
			if cancel {
				return true, nil
			}
			return false, errors.New(m.GetMessage())
		}
		return m.GetState() == v1.VolumeMoveState_VOLUME_MOVE_STATE_DONE, nil
	}, "move volume "+name, fmt.Sprintf("volume %s moves in the background; see `watari volume show %s`", name, name))
	return last, err
}
