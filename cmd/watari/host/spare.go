package host

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

func newSpare(env *cli.Env) *cobra.Command {
	var undo bool
	command := &cobra.Command{
		Use:   "spare HOST",
		Short: "Keep a host free for guests that are lost elsewhere",
		Long: "Keep a host free: it takes only guests that are lost elsewhere, because their host died or their copy ended. So there is room for them, as " +
			"`watari cluster create --on-host-loss restore` needs it. Guests that it has already stay; `watari host drain` moves them away.",
		Example:           "  watari host spare b2\n  watari host spare b2 --undo",
		Args:              cli.Args("HOST"),
		ValidArgsFunction: env.Complete(cli.Hosts),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("host", args[0]); err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			response, err := c.SpareHost(ctx, connect.NewRequest(&v1.SpareHostRequest{Name: args[0], Undo: undo}))
			if err != nil {
				return fmt.Errorf("keep host %s free: %w", args[0], err)
			}
			if undo {
				return env.Done(response.Msg.Host, "host %s takes guests again", args[0])
			}
			return env.Done(response.Msg.Host, "host %s is kept free for guests that are lost elsewhere", args[0])
		}),
	}
	command.Flags().BoolVar(&undo, "undo", false, "let it take any guests again")
	return command
}
