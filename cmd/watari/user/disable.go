package user

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newDisable(env *cli.Env) *cobra.Command {
	return cli.Switch[*v1.User]{Verb: "disable", Kind: "user", Short: "Refuse all calls of a user until --undo",
		Long: "Disable a user: the manager refuses all of the user's calls at once, ends those that follow something, and voids tokens " +
			"for logging in. The user's clusters stay, and their runs continue; an administrator can delete them.",
		Example: "  watari user disable aiko\n  watari user disable aiko --undo",
		Undo:    "honour the user's certificate again", Names: cli.Users,
		Set: func(ctx context.Context, c *client.Client, name string, undo bool) (*v1.User, error) {
			response, err := c.DisableUser(ctx, connect.NewRequest(&v1.DisableUserRequest{Name: name, Undo: undo}))
			if err != nil {
				return nil, err
			}
			return response.Msg.User, nil
		},
		Doing: "disable user %[1]s", Done: "user %[1]s is disabled; undo it with `watari user disable %[1]s --undo`",
		Undone: "user %[1]s may call again"}.Command(env)
}
