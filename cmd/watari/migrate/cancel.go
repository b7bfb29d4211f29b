package migrate

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

func newCancel(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel MIGRATION|GUEST",
		Short: "Cancel a migration; the guest continues on its source",
		Long: "Cancel a migration. The guest continues on its source. When the source has already handed over the guest, it is too late: " +
			"the migration is then completed.",
		Example:           "  watari migrate cancel md-2",
		Args:              cli.Args("MIGRATION|GUEST"),
		ValidArgsFunction: env.Complete(cli.Migrations),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("migration", args[0]); err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			response, err := c.CancelMigration(ctx, connect.NewRequest(&v1.CancelMigrationRequest{Name: args[0]}))
			if err != nil {
				return fmt.Errorf("cancel migration %s: %w", args[0], err)
			}
			m := response.Msg.Migration
			return env.Done(m, "migration %s of guest %s is being cancelled; see how it ends with `watari migrate show %s`",
				m.GetMeta().GetName(), m.GetGuest(), m.GetMeta().GetName())
		}),
	}
}
