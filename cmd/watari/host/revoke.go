package host

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newRevoke(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke HOST",
		Short: "Void the certificates of a host, because somebody else may have its key",
		Long: "Void a host's certificates, because somebody else may have its key, and print a token for a new one. The manager ends the host's session and " +
			"refuses the certificates from now on. Its guests stay and continue. Until it has a new certificate, the host counts as " +
			"out of reach: leases of its guests are not renewed.\n\n" +
			"On the host, `sudo watari down` and `sudo watari up --manager URL --token TOKEN` make new keys; on the manager's machine, `sudo watari up` needs no token. " +
			"If somebody else may be root on the host, quarantine it instead.",
		Example: "  watari host revoke b2\n" +
			"  sudo watari down && sudo watari up --manager https://192.0.2.1:7070 --token TOKEN    # on the host",
		Args:              cli.Args("HOST"),
		ValidArgsFunction: env.Complete(cli.Hosts),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("host", args[0]); err != nil {
				return err
			}
			response, err := c.RevokeHost(ctx, connect.NewRequest(&v1.RevokeHostRequest{Name: args[0]}))
			if err != nil {
				return fmt.Errorf("revoke the certificates of host %s: %w", args[0], err)
			}
			return env.Show(response.Msg, func(w io.Writer) {
				env.Notef("the certificates of host %s are void; the token is valid once, for %s; on the host: sudo watari down && sudo watari up --manager %s --token TOKEN",
					args[0], output.Short(response.Msg.Expires.AsTime().Sub(env.Now())), c.Advertised(ctx))
				fmt.Fprintln(w, response.Msg.Token)
			})
		}),
	}
}
