// Package migrate holds `watari migrate` and the commands about migrations.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

type flags struct {
	host, site, bandwidth string
	detach                bool
}

// New returns `watari migrate`.
func New(env *cli.Env) *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:     "migrate GUEST [--to HOST | --to-site SITE]",
		Aliases: []string{"migration", "migrations"},
		Short:   "Move a guest to another host while it runs",
		Long: "Move a guest to another host while it runs. Its programs continue, and it keeps its address. Without --to and " +
			"--to-site, the manager chooses the best other host.\n\n" +
			"The command shows the transfer and ends with a report: total time, downtime (from the stop at the source to " +
			"the resume at the target; its parts are the sending of the last memory and the hand-over to the target) and bytes " +
			"sent. Ctrl-C cancels the migration and waits until the manager knows that the guest continues at its source. A second Ctrl-C ends the command without waiting.",
		Example: "  watari migrate md-2 --to b1\n  watari migrate md-2 --to-site kyoto --bandwidth 200mbit\n" +
			"  watari migrate list\n  watari migrate cancel md-2",
		Args:              cli.Args("GUEST"),
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: env.RunWithSignals(func(ctx context.Context, args []string) error {
			return migrate(ctx, env, args[0], f)
		}),
	}
	command.Flags().StringVar(&f.host, "to", "", "target host")
	command.Flags().StringVar(&f.site, "to-site", "", "target site; the manager chooses the best host there")
	command.Flags().StringVar(&f.bandwidth, "bandwidth", "", "limit of the bandwidth, as in 200mbit or 25M (bytes per second; default: no limit)")
	command.Flags().BoolVarP(&f.detach, "detach", "d", false, "print the migration's name and return")
	env.CompleteFlag(command, "to", cli.Hosts)
	env.CompleteFlag(command, "to-site", cli.Sites)
	command.AddCommand(newList(env), newShow(env), newCancel(env))
	return command
}

// request checks the flags and returns the request for the manager.
func (f flags) request(guest string) (*v1.MigrateRequest, error) {
	if err := cli.CheckName("guest", guest); err != nil {
		return nil, err
	}
	request := &v1.MigrateRequest{Guest: guest, ToHost: f.host, ToSite: f.site}
	if f.host != "" && f.site != "" {
		return nil, cli.Usagef("--to and --to-site exclude each other: a host belongs to one site")
	}
	if f.host != "" {
		if err := cli.CheckName("host", f.host); err != nil {
			return nil, err
		}
	}
	if f.bandwidth != "" {
		rate, err := output.ParseRate(f.bandwidth)
		if err != nil {
			return nil, cli.Usagef("--bandwidth: %v", err)
		}
		request.BandwidthBytes = rate
	}
	return request, nil
}

func migrate(ctx context.Context, env *cli.Env, guest string, f flags) error {
	request, err := f.request(guest)
	if err != nil {
		return err
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	asking, stop := env.Interruptible(ctx)
	response, err := c.Migrate(asking, connect.NewRequest(request))
	stop()
	if err != nil && errors.Is(context.Cause(asking), cli.ErrInterrupted) {
		return cli.Interruptedf("stopped asking: `watari migrate list` shows whether guest %s is moving", guest)
	}
	if err != nil {
		return fmt.Errorf("migrate guest %s: %w", guest, err)
	}
	begun := response.Msg.Migration
	for _, line := range response.Msg.Explanation {
		env.Notef("  %s", line)
	}
	if f.detach {
		return env.Show(begun, func(w io.Writer) {
			fmt.Fprintln(w, begun.GetMeta().GetName())
			env.Notef("guest %s is moving from %s to %s; see `watari migrate list`, cancel with `watari migrate cancel %s`",
				guest, begun.GetSource(), begun.GetTarget(), guest)
		})
	}
	ended, interrupted, err := follow(ctx, env, c, begun)
	if err != nil {
		return err
	}
	return report(env, ended, interrupted)
}

// get fetches one migration by its name or by its guest's name.
func get(ctx context.Context, c *client.Client, name string) (*v1.Migration, error) {
	if err := cli.CheckName("migration", name); err != nil {
		return nil, err
	}
	for _, request := range []*v1.ListMigrationsRequest{{Name: name}, {Guest: name}} {
		response, err := c.ListMigrations(ctx, connect.NewRequest(request))
		if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			return nil, fmt.Errorf("show migration %s: %w", name, err)
		}
		if err == nil && len(response.Msg.Migrations) > 0 {
			return response.Msg.Migrations[len(response.Msg.Migrations)-1], nil
		}
	}
	return nil, fmt.Errorf("there is no migration %s, nor one of a guest of that name; `watari migrate list --all` shows all migrations", name)
}
