// Package guest holds the commands about guests.
package guest

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

// New makes `watari guest`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "guest",
		Aliases: []string{"guests"},
		Short:   "Guests, the virtual machines of clusters: list, look into, start, stop",
		Long:    "A guest is one virtual machine of a cluster. Guest 0 of cluster md is named md-0.",
		Example: "  watari guest list md\n  watari guest exec -it md-0 -- bash\n  watari guest console -f md-0",
	}, newList(env), newShow(env), newStart(env), newStop(env), newConsole(env), newExec(env), newCopy(env))
}

// get fetches one guest.
func get(ctx context.Context, c *client.Client, name string) (*v1.Guest, error) {
	if err := cli.CheckName("guest", name); err != nil {
		return nil, err
	}
	response, err := c.ListGuests(ctx, connect.NewRequest(&v1.ListGuestsRequest{Name: name}))
	if err != nil {
		return nil, fmt.Errorf("show guest %s: %w", name, err)
	}
	if len(response.Msg.Guests) == 0 {
		return nil, fmt.Errorf("there is no guest %s; `watari guest list` shows those there are", name)
	}
	return response.Msg.Guests[0], nil
}
