package cluster

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
	return cli.List[*v1.Cluster]{Things: "clusters", Short: "List the clusters", Example: "  watari cluster list\n  watari cluster list -o json | jq -r '.[].meta.name'",
		Get: func(ctx context.Context, c *client.Client) ([]*v1.Cluster, error) {
			return client.List(ctx, c.ListClusters, &v1.ListClustersRequest{}, (*v1.ListClustersResponse).GetClusters)
		},
		Table: table}.Command(env)
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

// shape returns a guest's size: "1 vCPU, 512 MiB".
func shape(s *v1.GuestShape) string {
	return output.Count(int(s.GetVcpus()), "vCPU") + ", " + output.Size(s.GetMemoryBytes())
}
