package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/watari/guest"
	"watari/internal/mounts"
)

func newShow(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "show CLUSTER",
		Short:             "Show a cluster and its guests",
		Example:           "  watari cluster show md",
		Args:              cli.Args("CLUSTER"),
		ValidArgsFunction: env.Complete(cli.Clusters),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			found, err := get(ctx, c, args[0])
			if err != nil {
				return err
			}
			guests, err := c.ListGuests(ctx, connect.NewRequest(&v1.ListGuestsRequest{Cluster: args[0]}))
			if err != nil {
				return fmt.Errorf("list the guests of cluster %s: %w", args[0], err)
			}
			return env.Show(found, func(w io.Writer) {
				describe(w, env, found)
				fmt.Fprintln(w)
				guest.Table(w, env, guests.Msg.Guests)
			})
		}),
	}
}

// get fetches one cluster.
func get(ctx context.Context, c *client.Client, name string) (*v1.Cluster, error) {
	return cli.Find("cluster", name, func() ([]*v1.Cluster, error) {
		return client.List(ctx, c.ListClusters, &v1.ListClustersRequest{Name: name}, (*v1.ListClustersResponse).GetClusters)
	})
}

// cpu returns the requested CPU and the platform of guests on each kind of host.
func cpu(c *v1.Cluster) string {
	lines := []string{cmp.Or(c.GetSpec().GetCpu(), "baseline")}
	for _, p := range c.GetPlatforms() {
		lines = append(lines, output.Platform(p))
	}
	return strings.Join(lines, "\n")
}

// placement describes how hosts are chosen; empty: by default.
func placement(spec *v1.ClusterSpec) string {
	if spec.GetAbstract() {
		return "abstract processors: each host has guests in proportion to its speed"
	}
	return ""
}

func describe(w io.Writer, env *cli.Env, c *v1.Cluster) {
	spec := c.GetSpec()
	start := "forked from a booted template"
	if spec.GetNoFork() {
		start = "booted"
	}
	output.Fields(w,
		[2]string{"name", c.GetMeta().GetName()},
		[2]string{"state", output.State(c.GetState())},
		[2]string{"why", c.GetMessage()},
		[2]string{"guests", fmt.Sprintf("%d, of which %d ready; each %s", spec.GetGuests(), c.GetReadyGuests(), shape(spec.GetShape()))},
		[2]string{"image", spec.GetImage() + " (" + output.Digest(c.GetImageDigest()) + ")"},
		[2]string{"sites", strings.Join(spec.GetSites(), ", ")},
		[2]string{"spread", output.State(spec.GetSpread())},
		[2]string{"placement", placement(spec)},
		[2]string{"start", start},
		[2]string{"CPU", cpu(c)},
		[2]string{"network", fmt.Sprintf("%s, MTU %d", c.GetPrefix(), c.GetMtu())},
		[2]string{"lease", lease(spec)},
		[2]string{"on host loss", onHostLoss(spec)},
		[2]string{"home", home(spec)},
		[2]string{"mounts", mounted(spec)},
		[2]string{"checkpoints", plan(c.GetCheckpoints())},
		[2]string{"restored", restored(env, c.GetRestore())},
		[2]string{"owner", c.GetMeta().GetOwner()},
		[2]string{"age", output.Age(env.Now(), c.GetMeta().GetCreated())},
	)
}

// mounted lists the folders of file servers that guests mount; empty: none.
func mounted(spec *v1.ClusterSpec) string {
	var lines []string
	for _, m := range spec.GetMounts() {
		lines = append(lines, mounts.Text(m))
	}
	return strings.Join(lines, "\n")
}

// home describes where the home is; empty: in the first guest's memory.
func home(spec *v1.ClusterSpec) string {
	if spec.GetVolume() == "" {
		return ""
	}
	return "on volume " + spec.GetVolume()
}

// lease returns how long guests run without the manager; empty: without limit.
func lease(spec *v1.ClusterSpec) string {
	if spec.GetLeaseMs() == 0 {
		return ""
	}
	return output.Short(time.Duration(spec.GetLeaseMs())*time.Millisecond) + ": guests end when their hosts do not hear from the manager for so long"
}

// onHostLoss describes what happens to the cluster when a guest is lost; empty: the default.
func onHostLoss(spec *v1.ClusterSpec) string {
	switch spec.GetOnHostLoss() {
	case v1.OnHostLoss_ON_HOST_LOSS_RESTORE:
		return "all guests go back to the latest checkpoint"
	case v1.OnHostLoss_ON_HOST_LOSS_STOP:
		return "all guests are stopped"
	}
	return ""
}

// plan returns when checkpoints are made automatically; empty: never.
func plan(p *v1.CheckpointPlan) string {
	if p.GetEverySeconds() == 0 {
		return ""
	}
	return "every " + output.Short(time.Duration(p.GetEverySeconds())*time.Second)
}

// restored names the checkpoint from which a cluster was last restored, or is about to be; empty: never.
func restored(env *cli.Env, r *v1.Restore) string {
	switch r.GetState() {
	case v1.RestoreState_RESTORE_STATE_ENDING, v1.RestoreState_RESTORE_STATE_RESTORING:
		if r.GetPolicy() != "" {
			return fmt.Sprintf("suspended by policy %s: %s; goes on from %s when hosts have room for all guests", r.GetPolicy(), r.GetReason(), r.GetCheckpoint())
		}
		return "is being restored from " + r.GetCheckpoint()
	case v1.RestoreState_RESTORE_STATE_DONE:
		return fmt.Sprintf("from %s, %s", r.GetCheckpoint(), output.Time(env.Now(), r.GetEnded()))
	case v1.RestoreState_RESTORE_STATE_FAILED:
		return fmt.Sprintf("could not be restored from %s: %s", r.GetCheckpoint(), r.GetMessage())
	}
	return ""
}
