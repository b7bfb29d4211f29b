package host

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newSpare(env *cli.Env) *cobra.Command {
	return cli.Switch[*v1.Host]{Verb: "spare", Kind: "host", Short: "Keep a host free for guests that are lost elsewhere",
		Long: "Keep a host free: it takes only guests that are lost elsewhere, because their host died or their copy ended. So there is room for them, as " +
			"`watari cluster create --on-host-loss restore` needs it. Guests that it has already stay; `watari host drain` moves them away.",
		Example: "  watari host spare b2\n  watari host spare b2 --undo",
		Undo:    "let it take any guests again", Names: cli.Hosts,
		Set: func(ctx context.Context, c *client.Client, name string, undo bool) (*v1.Host, error) {
			response, err := c.SpareHost(ctx, connect.NewRequest(&v1.SpareHostRequest{Name: name, Undo: undo}))
			if err != nil {
				return nil, err
			}
			return response.Msg.Host, nil
		},
		Doing: "keep host %[1]s free", Done: "host %[1]s is kept free for guests that are lost elsewhere",
		Undone: "host %[1]s takes guests again"}.Command(env)
}
