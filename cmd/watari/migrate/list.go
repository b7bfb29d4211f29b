package migrate

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/migration"
)

func newList(env *cli.Env) *cobra.Command {
	var all bool
	command := &cobra.Command{
		Use:               "list [GUEST]",
		Aliases:           []string{"ls"},
		Short:             "List the migrations in progress, or all migrations with --all",
		Example:           "  watari migrate list\n  watari migrate list md-2 --all",
		Args:              cli.ArgsBetween(0, "GUEST"),
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			request := &v1.ListMigrationsRequest{Active: !all}
			if len(args) > 0 {
				if err := cli.CheckName("guest", args[0]); err != nil {
					return err
				}
				request.Guest = args[0]
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			migrations, err := client.List(ctx, c.ListMigrations, request, (*v1.ListMigrationsResponse).GetMigrations)
			if err != nil {
				return fmt.Errorf("list migrations: %w", err)
			}
			return cli.ShowList(env, migrations, func(w io.Writer) { table(w, env, migrations, all) })
		}),
	}
	command.Flags().BoolVarP(&all, "all", "a", false, "include migrations that have ended")
	return command
}

func table(w io.Writer, env *cli.Env, migrations []*v1.Migration, all bool) {
	if len(migrations) == 0 {
		if all {
			env.Notef("there were no migrations")
		} else {
			env.Notef("no migration is in progress; --all shows those that have ended")
		}
		return
	}
	t := output.NewTable("NAME", "GUEST", "FROM", "TO", "STATE", "DONE", "TOTAL", "DOWNTIME", "SENT", "AGE", "MESSAGE")
	for _, m := range migrations {
		done, total, downtime := "", "", ""
		if p := m.GetProgress(); p.GetTotalBytes() > 0 && !migration.Ended(m.GetState()) {
			done = fmt.Sprintf("%d %%", (p.GetTotalBytes()-min(p.GetRemainingBytes(), p.GetTotalBytes()))*100/p.GetTotalBytes())
		}
		if m.GetState() == v1.MigrationState_MIGRATION_STATE_DONE {
			total, downtime = output.Milliseconds(m.GetTotalMs()), output.Milliseconds(m.GetDowntimeMs())
		}
		t.Row(m.GetMeta().GetName(), m.GetGuest(), m.GetSource(), m.GetTarget(), output.State(m.GetState()), done, total, downtime,
			output.Size(sent(m)), output.Age(env.Now(), m.GetMeta().GetCreated()), m.GetMessage())
	}
	t.Write(w)
}
