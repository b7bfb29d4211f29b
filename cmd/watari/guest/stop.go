package guest

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newStop(env *cli.Env) *cobra.Command {
	var wait bool
	command := &cobra.Command{
		Use:               "stop GUEST",
		Short:             "Stop a guest until it is started again",
		Long:              "Stop a guest until it is started again. Its memory is lost, and runs with ranks on it fail.",
		Example:           "  watari guest stop md-2 --wait",
		Args:              cli.Args("GUEST"),
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			return change(ctx, env, args[0], wait, "stop", "stopped",
				func(ctx context.Context, c *client.Client) (*v1.Guest, error) {
					response, err := c.StopGuest(ctx, connect.NewRequest(&v1.StopGuestRequest{Name: args[0]}))
					if err != nil {
						return nil, err
					}
					return response.Msg.Guest, nil
				}, func(g *v1.Guest) bool { return g.GetState() == v1.GuestState_GUEST_STATE_STOPPED })
		}),
	}
	command.Flags().BoolVarP(&wait, "wait", "w", false, "wait until the guest has ended")
	return command
}
