package cluster

import (
	"cmp"
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

func newTraffic(env *cli.Env) *cobra.Command {
	pairs := 20
	command := &cobra.Command{
		Use:   "traffic CLUSTER",
		Short: "Show which guests of a cluster talk to each other",
		Long: "Show which guests of a cluster send bytes to each other, averaged over about a minute, and how far they are from " +
			"each other: 0 on one host, and the distances of the policy `locality` within a site and between sites. Pairs that cost " +
			"most (bytes times distance) come first.",
		Example: "  watari cluster traffic md\n" +
			"  watari cluster traffic md --pairs 0                   # all pairs\n" +
			"  watari cluster traffic md -o json | jq .cost",
		Args:              cli.Args("CLUSTER"),
		ValidArgsFunction: env.Complete(cli.Clusters),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			answer, err := c.ClusterTraffic(ctx, connect.NewRequest(&v1.ClusterTrafficRequest{Name: args[0]}))
			if err != nil {
				return fmt.Errorf("ask for the traffic of cluster %s: %w", args[0], err)
			}
			return env.Show(answer.Msg, func(w io.Writer) { traffic(w, env, args[0], answer.Msg, pairs) })
		}),
	}
	command.Flags().IntVar(&pairs, "pairs", pairs, "so many pairs at most; 0: all")
	return command
}

// traffic writes the pairs as a table.
func traffic(w io.Writer, env *cli.Env, name string, answer *v1.ClusterTrafficResponse, most int) {
	if len(answer.GetPairs()) == 0 {
		env.Notef("the guests of cluster %s do not talk to each other now; hosts measure that every few seconds", name)
		return
	}
	shown := answer.GetPairs()
	if most > 0 {
		shown = shown[:min(len(shown), most)]
	}
	t := output.NewTable("GUEST", "OTHER", "SENT/S", "RECEIVED/S", "HOST", "OTHER HOST", "DISTANCE", "COST")
	for _, p := range shown {
		part := 0.0
		if cost := (p.GetSent() + p.GetReceived()) * p.GetDistance(); cost > 0 {
			part = cost / answer.GetCost()
		}
		t.Row(p.GetGuest(), p.GetOther(), output.Size(uint64(p.GetSent())), output.Size(uint64(p.GetReceived())),
			place(p.GetHost(), p.GetSite()), place(p.GetOtherHost(), p.GetOtherSite()), fmt.Sprintf("%g", p.GetDistance()), fmt.Sprintf("%.0f%%", 100*part))
	}
	t.Write(w)
	if left := len(answer.GetPairs()) - len(shown); left > 0 {
		env.Notef("%s more; --pairs 0 shows all", output.Count(left, "pair"))
	}
}

// place names a host with its site.
func place(host, site string) string {
	if site == "" {
		return cmp.Or(host, "-")
	}
	return host + " (" + site + ")"
}
