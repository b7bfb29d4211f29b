// Package host holds the commands about hosts.
package host

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

// New makes `watari host`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "host",
		Aliases: []string{"hosts"},
		Short:   "Hosts, the machines that run guests: list, show, drain, remove",
		Long: "A host is a machine that runs guests. It joins with `watari up --manager URL --token TOKEN`, for which " +
			"`watari token create --host` makes a token.",
		Example: "  watari host list\n  watari host drain a1 --wait",
	}, newList(env), newShow(env), newDrain(env), newRemove(env))
}

// get fetches one host.
func get(ctx context.Context, c *client.Client, name string) (*v1.Host, error) {
	if err := cli.CheckName("host", name); err != nil {
		return nil, err
	}
	response, err := c.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{Name: name}))
	if err != nil {
		return nil, fmt.Errorf("show host %s: %w", name, err)
	}
	if len(response.Msg.Hosts) == 0 {
		return nil, fmt.Errorf("there is no host %s; `watari host list` shows those there are", name)
	}
	return response.Msg.Hosts[0], nil
}
