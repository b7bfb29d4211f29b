package guest

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
)

func newShow(env *cli.Env) *cobra.Command {
	return cli.Show[*v1.Guest]{Word: "GUEST", Short: "Show a guest",
		Example: "  watari guest show md-2", Names: cli.Guests, Get: get, Describe: describe}.Command(env)
}

// platform returns the guest's platform, which decides where it can move.
func platform(g *v1.Guest) string {
	if g.GetPlatform() == nil {
		return ""
	}
	return output.Platform(g.Platform)
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
		[2]string{"why", stateReason(g)},
		[2]string{"ready", yes(g.GetReady())},
		[2]string{"host", g.GetHost()},
		[2]string{"address", g.GetAddress()},
		[2]string{"size", output.Count(int(g.GetShape().GetVcpus()), "vCPU") + ", " + output.Size(g.GetShape().GetMemoryBytes())},
		[2]string{"started as", platform(g)},
		[2]string{"image", output.Digest(g.GetImageDigest())},
		[2]string{"epoch", fmt.Sprintf("%d (grows with each start and each move)", g.GetEpoch())},
		[2]string{"restarts", restarts},
		[2]string{"age", output.Age(env.Now(), g.GetMeta().GetCreated())},
		[2]string{"uid", g.GetMeta().GetUid()},
	)
}
