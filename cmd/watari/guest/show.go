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

func newShow(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "show GUEST",
		Short:             "Show a guest",
		Example:           "  watari guest show md-2",
		Args:              cli.Args("GUEST"),
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			guest, err := get(ctx, c, args[0])
			if err != nil {
				return err
			}
			return env.Show(guest, func(w io.Writer) { describe(w, env, guest) })
		}),
	}
}

func describe(w io.Writer, env *cli.Env, g *v1.Guest) {
	restarts := ""
	if g.GetRestarts() > 0 {
		restarts = fmt.Sprint(g.GetRestarts())
	}
	output.Fields(w,
		[2]string{"name", g.GetMeta().GetName()},
		[2]string{"cluster", g.GetCluster()},
		[2]string{"state", output.State(g.GetState())},
		[2]string{"why", why(g)},
		[2]string{"ready", yes(g.GetReady())},
		[2]string{"host", g.GetHost()},
		[2]string{"address", g.GetAddress()},
		[2]string{"size", output.Count(int(g.GetShape().GetVcpus()), "vCPU") + ", " + output.Size(g.GetShape().GetMemoryBytes())},
		[2]string{"image", output.Digest(g.GetImageDigest())},
		[2]string{"epoch", fmt.Sprintf("%d (grows with each start and each move)", g.GetEpoch())},
		[2]string{"restarts", restarts},
		[2]string{"age", output.Age(env.Now(), g.GetMeta().GetCreated())},
		[2]string{"uid", g.GetMeta().GetUid()},
	)
}
