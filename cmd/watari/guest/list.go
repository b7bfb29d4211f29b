package guest

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newList(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "list [CLUSTER]",
		Aliases:           []string{"ls"},
		Short:             "List the guests, of one cluster or of all",
		Example:           "  watari guest list\n  watari guest list md -o json",
		Args:              cli.ArgsBetween(0, "CLUSTER"),
		ValidArgsFunction: env.Complete(cli.Clusters),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			request := &v1.ListGuestsRequest{}
			if len(args) > 0 {
				if err := cli.CheckName("cluster", args[0]); err != nil {
					return err
				}
				request.Cluster = args[0]
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			guests, err := client.List(ctx, c.ListGuests, request, (*v1.ListGuestsResponse).GetGuests)
			if err != nil {
				return fmt.Errorf("list guests: %w", err)
			}
			return cli.ShowList(env, guests, func(w io.Writer) { Table(w, env, guests) })
		}),
	}
}

// Table writes guests in a table for people.
func Table(w io.Writer, env *cli.Env, guests []*v1.Guest) {
	if len(guests) == 0 {
		env.Notef("there are no guests; `watari cluster create` makes a cluster")
		return
	}
	t := output.NewTable("NAME", "STATE", "HOST", "ADDRESS", "VCPUS", "MEMORY", "READY", "AGE", "MESSAGE")
	for _, g := range guests {
		t.Row(g.GetMeta().GetName(), output.State(g.GetState()), g.GetHost(), g.GetAddress(),
			fmt.Sprint(g.GetShape().GetVcpus()), output.Size(g.GetShape().GetMemoryBytes()), yes(g.GetReady()),
			output.Age(env.Now(), g.GetMeta().GetCreated()), stateReason(g))
	}
	t.Write(w)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// stateReason returns the explanation of a guest's state.
func stateReason(g *v1.Guest) string {
	if g.GetFailure() != "" {
		return g.GetFailure()
	}
	return g.GetMessage()
}
