package host

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newRemove(env *cli.Env) *cobra.Command {
	var lost bool
	command := &cobra.Command{
		Use:     "remove HOST",
		Aliases: []string{"rm", "delete"},
		Short:   "Remove a host and revoke its certificate",
		Long: "Remove a host. It must have no guests; drain it first.\n\n" +
			"Use --lost for a host that is permanently broken or unreachable. It is your confirmation that the host is switched " +
			"off. Its guests are then started again on other hosts. If the host were still running, there would be two of each.",
		Example:           "  watari host remove a1\n  watari host remove a1 --lost",
		Args:              cli.Args("HOST"),
		ValidArgsFunction: env.Complete(cli.Hosts),
		RunE: env.Removal("host", func(ctx context.Context, c *client.Client, name string) error {
			_, err := c.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: name, Lost: lost}))
			return err
		}),
	}
	command.Flags().BoolVar(&lost, "lost", false, "the host is permanently off: start its guests on other hosts")
	return command
}
