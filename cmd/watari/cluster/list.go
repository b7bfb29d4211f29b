package cluster

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
)

func newList(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "list",
		Aliases:           []string{"ls"},
		Short:             "List the clusters",
		Example:           "  watari cluster list\n  watari cluster list -o json | jq -r '.[].meta.name'",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Run(func(ctx context.Context, _ []string) error {
			c, err := env.Client()
			if err != nil {
				return err
			}
			response, err := c.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{}))
			if err != nil {
				return fmt.Errorf("list clusters: %w", err)
			}
			return cli.ShowList(env, response.Msg.Clusters, func(w io.Writer) { table(w, env, response.Msg.Clusters) })
		}),
	}
}

func table(w io.Writer, env *cli.Env, clusters []*v1.Cluster) {
	if len(clusters) == 0 {
		env.Notef("there are no clusters; make one with `watari cluster create`")
		return
	}
	t := output.NewTable("NAME", "STATE", "READY", "SHAPE", "IMAGE", "NETWORK", "OWNER", "AGE", "MESSAGE")
	for _, c := range clusters {
		t.Row(c.GetMeta().GetName(), output.State(c.GetState()),
			fmt.Sprintf("%d/%d", c.GetReadyGuests(), c.GetSpec().GetGuests()), shape(c.GetSpec().GetShape()),
			c.GetSpec().GetImage(), c.GetPrefix(), c.GetMeta().GetOwner(), output.Age(env.Now(), c.GetMeta().GetCreated()), c.GetMessage())
	}
	t.Write(w)
}

// shape tells a guest's size: "1 vCPU, 512 MiB".
func shape(s *v1.GuestShape) string {
	return output.Count(int(s.GetVcpus()), "vCPU") + ", " + output.Size(s.GetMemoryBytes())
}
