package user

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newRevoke(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke USER",
		Short: "Void the certificates of a user, because somebody else may have the key",
		Long: "Void a user's certificates: the manager refuses them from now on, ends the calls that follow something and the sessions of the web console, and " +
			"voids tokens for logging in. The user logs in anew with a token that `watari user add` makes. The user's clusters stay, and their runs continue.",
		Example:           "  watari user revoke aiko && watari user add aiko",
		Args:              cli.Args("USER"),
		ValidArgsFunction: env.Complete(cli.Users),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("user", args[0]); err != nil {
				return err
			}
			response, err := c.RevokeUser(ctx, connect.NewRequest(&v1.RevokeUserRequest{Name: args[0]}))
			if err != nil {
				return fmt.Errorf("revoke the certificates of user %s: %w", args[0], err)
			}
			admin := ""
			if response.Msg.User.GetRole() == v1.Role_ROLE_ADMIN {
				admin = " --admin"
			}
			return env.Done(response.Msg.User, "the certificates of user %[1]s are void; make a token for a new certificate with `watari user add %[1]s%[2]s`", args[0], admin)
		}),
	}
}
