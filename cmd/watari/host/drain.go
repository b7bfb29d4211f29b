package host

import (
	"context"
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

func newDrain(env *cli.Env) *cobra.Command {
	var undo, wait bool
	command := &cobra.Command{
		Use:   "drain HOST",
		Short: "Move all guests away from a host and place none there until --undo",
		Long: "Drain a host: its guests migrate live to other hosts, and no guest is placed there until --undo. Runs " +
			"continue. Guests for which no other host has room stay on the host and are listed. Volumes move to hosts with room, too.\n\n" +
			"With --wait, the command waits until the guests have left, and the files of volumes. It does not wait for a volume that " +
			"cannot move, but says why; the volume moves later if that becomes possible.",
		Example:           "  watari host drain a1 --wait\n  watari host drain a1 --undo",
		Args:              cli.Args("HOST"),
		ValidArgsFunction: env.Complete(cli.Hosts),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			return drain(ctx, env, args[0], undo, wait)
		}),
	}
	command.Flags().BoolVar(&undo, "undo", false, "let the host run guests again")
	command.Flags().BoolVarP(&wait, "wait", "w", false, "wait until the guests have left, and the volumes that can move")
	return command
}

func drain(ctx context.Context, env *cli.Env, name string, undo, wait bool) error {
	if err := cli.CheckName("host", name); err != nil {
		return err
	}
	if undo && wait {
		return cli.Usagef("--undo and --wait exclude each other: undoing is immediate")
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	response, err := c.DrainHost(ctx, connect.NewRequest(&v1.DrainHostRequest{Name: name, Undo: undo}))
	if err != nil {
		return fmt.Errorf("drain host %s: %w", name, err)
	}
	switch {
	case undo:
		return env.Done(response.Msg.Host, "host %s takes guests again", name)
	case !wait:
		return env.Done(response.Msg.Host, "host %s is being drained; watch it with `watari migrate list`, undo with `watari host drain %s --undo`", name, name)
	}
	return waitDrained(ctx, env, c, name)
}

func waitDrained(ctx context.Context, env *cli.Env, c *client.Client, name string) error {
	lines := progress.New(env.Err)
	var host *v1.Host
	err := c.Watch(ctx, "host", name, lines.Trouble, func(now *v1.WatchResponse) (bool, error) {
		host = now.GetHost()
		switch {
		case now.Gone:
			return false, fmt.Errorf("the host was removed meanwhile")
		case host.GetState() == v1.HostState_HOST_STATE_DRAINED:
			return true, nil
		case !host.GetDraining():
			return false, fmt.Errorf("draining was undone meanwhile")
		}
		lines.Set(left(host)...)
		return false, nil
	})
	if ctx.Err() != nil {
		lines.Keep()
		return cli.Interruptedf("stopped waiting: host %s is still being drained; `watari migrate GUEST` says why a guest cannot leave; undo with `watari host drain %s --undo`", name, name)
	}
	if err != nil {
		return fmt.Errorf("wait for host %s to be drained: %w", name, err)
	}
	lines.Clear()
	for _, v := range host.GetVolumes() {
		env.Notef("volume %s %s", v.GetName(), v.GetMessage())
	}
	return env.Done(host, "host %s is drained: no guest is on it", name)
}

// left describes what is still on a host that is drained.
func left(host *v1.Host) []progress.Line {
	name, guests := host.GetMeta().GetName(), host.GetGuests()
	text := fmt.Sprintf("host %s: ", name)
	if host.GetState() == v1.HostState_HOST_STATE_UNREACHABLE {
		text += "out of reach, "
	}
	text += output.Count(len(guests), "guest") + " left"
	if len(guests) > 0 {
		text += ": " + strings.Join(guests, ", ")
	}
	lines := []progress.Line{{Key: name, Text: text}}
	for _, v := range host.GetVolumes() {
		lines = append(lines, progress.Line{Key: "volume " + v.GetName(), Text: fmt.Sprintf("  volume %s %s", v.GetName(), v.GetMessage())})
	}
	return lines
}
