package host

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

func newRemove(env *cli.Env) *cobra.Command {
	var lost bool
	command := &cobra.Command{
		Use:     "remove HOST",
		Aliases: []string{"rm", "delete"},
		Short:   "Forget a host; its certificate is worth nothing from then on",
		Long: "Forget a host. It must have no guests; drain it first.\n\n" +
			"A host that is broken or unreachable for good is removed with --lost. You vouch by that that it is switched " +
			"off: its guests are then started afresh elsewhere, and if it did run on there would be two of each.",
		Example:           "  watari host remove a1\n  watari host remove a1 --lost",
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
			if _, err := c.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: args[0], Lost: lost})); err != nil {
				return fmt.Errorf("remove host %s: %w", args[0], err)
			}
			env.Notef("host %s is removed", args[0])
			return nil
		}),
	}
	command.Flags().BoolVar(&lost, "lost", false, "the host is off for good: start its guests elsewhere")
	return command
}
