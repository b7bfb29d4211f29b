// Package host holds the commands about hosts.
package host

import (
	"context"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

// New returns `watari host`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "host",
		Aliases: []string{"hosts"},
		Short:   "Hosts, the machines that run guests: list, show, drain, quarantine, revoke, trust, remove",
		Long: "A host is a machine that runs guests. It joins with `watari up --manager URL --token TOKEN`, for which " +
			"`watari token create --host` makes a token. A host that a policy keeps guests from is withdrawn; `watari explain host` says why.",
		Example: "  watari host list\n  watari host drain a1 --wait",
	}, newList(env), newShow(env), newDrain(env), newQuarantine(env), newRevoke(env), newTrust(env), newSpare(env), newRemove(env))
}

// get fetches one host.
func get(ctx context.Context, c *client.Client, name string) (*v1.Host, error) {
	return cli.Find("host", name, func() ([]*v1.Host, error) {
		return client.List(ctx, c.ListHosts, &v1.ListHostsRequest{Name: name}, (*v1.ListHostsResponse).GetHosts)
	})
}
