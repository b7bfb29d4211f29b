// Package guest holds the commands about guests.
package guest

import (
	"context"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

// New returns `watari guest`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "guest",
		Aliases: []string{"guests"},
		Short:   "Guests, the virtual machines of clusters: list, inspect, start, stop",
		Long:    "A guest is one virtual machine of a cluster. Guest 0 of cluster md is named md-0.",
		Example: "  watari guest list md\n  watari guest exec -it md-0 -- bash\n  watari guest console -f md-0",
	}, newList(env), newShow(env), newStart(env), newStop(env), newConsole(env), newExec(env), newCopy(env), newForward(env))
}

// get fetches one guest.
func get(ctx context.Context, c *client.Client, name string) (*v1.Guest, error) {
	return cli.Find("guest", name, func() ([]*v1.Guest, error) {
		return client.List(ctx, c.ListGuests, &v1.ListGuestsRequest{Name: name}, (*v1.ListGuestsResponse).GetGuests)
	})
}
