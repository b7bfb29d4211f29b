package guest

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

func newStart(env *cli.Env) *cobra.Command {
	var wait bool
	command := &cobra.Command{
		Use:   "start GUEST",
		Short: "Start a guest that was stopped or has failed",
		Long: "Start a guest that was stopped or has failed. It boots anew: the contents of its memory and of its " +
			"files outside the shared home are lost.",
		Example:           "  watari guest start md-2 --wait",
		Args:              cli.Args("GUEST"),
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			return change(ctx, env, args[0], wait, "start", "ready",
				func(ctx context.Context, c *client.Client) (*v1.Guest, error) {
					response, err := c.StartGuest(ctx, connect.NewRequest(&v1.StartGuestRequest{Name: args[0]}))
					if err != nil {
						return nil, err
					}
					return response.Msg.Guest, nil
				}, (*v1.Guest).GetReady)
		}),
	}
	command.Flags().BoolVarP(&wait, "wait", "w", false, "wait until the guest is ready")
	return command
}

// change requests a change of a guest and, with wait, waits until it is done.
func change(ctx context.Context, env *cli.Env, name string, wait bool, verb, goal string,
	ask func(context.Context, *client.Client) (*v1.Guest, error), there func(*v1.Guest) bool) error {
	if err := cli.CheckName("guest", name); err != nil {
		return err
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	guest, err := ask(ctx, c)
	if err != nil {
		return fmt.Errorf("%s guest %s: %w", verb, name, err)
	}
	if !wait {
		return env.Done(guest, "guest %s: %s asked for; look with `watari guest show %s`", name, verb, name)
	}
	lines := progress.New(env.Err)
	err = c.Watch(ctx, "guest", name, lines.Trouble, func(now *v1.WatchResponse) (bool, error) {
		guest = now.GetGuest()
		switch {
		case now.Gone:
			return false, fmt.Errorf("guest %s was deleted meanwhile", name)
		case there(guest):
			return true, nil
		case guest.GetFailure() != "":
			return false, fmt.Errorf("%s; its console: `watari guest console %s`", guest.GetFailure(), name)
		}
		text := fmt.Sprintf("guest %s: %s", name, output.State(guest.GetState()))
		if guest.GetMessage() != "" {
			text += ": " + guest.GetMessage()
		}
		lines.Set(progress.Line{Key: name, Text: text})
		return false, nil
	})
	if ctx.Err() != nil {
		lines.Keep()
		return cli.Interruptedf("stopped waiting: guest %s: the %s continues; see `watari guest show %s`", name, verb, name)
	}
	if err != nil {
		return fmt.Errorf("%s guest %s: %w", verb, name, err)
	}
	lines.Clear()
	return env.Done(guest, "guest %s is %s", name, goal)
}
