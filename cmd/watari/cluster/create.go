package cluster

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
	"watari/internal/mounts"
)

type createFlags struct {
	guests, vcpus         uint32
	abstract              uint32
	memory, image, spread string
	cpu                   string
	sites                 []string
	lease                 time.Duration
	volume                string
	mounts                []string
	onHostLoss            string
	noFork, wait          bool
}

func newCreate(env *cli.Env) *cobra.Command {
	var flags createFlags
	command := &cobra.Command{
		Use:   "create CLUSTER --image IMAGE",
		Short: "Create a cluster and start its guests",
		Long: "Create a cluster of equal guests, named CLUSTER-0, CLUSTER-1 and so on. The manager chooses hosts for them.\n\n" +
			"Creating the same cluster again does nothing. Creating a different cluster with an existing name fails. " +
			"Without --wait the command returns at once, and the guests start in the background. Ctrl-C ends only the " +
			"waiting.\n\n" +
			"With --abstract, the guests are abstract processors: each has one virtual CPU, and each host gets a number of them in " +
			"proportion to its speed, as measured, so that equal parts of a program end at the same time. Guests move when the hosts, or " +
			"what is free of them, have changed for a while.\n\n" +
			"With --lease, a guest runs only while its host hears from the manager: when the manager has not renewed the lease for that long, the " +
			"host ends the guest, even if the host's agent is dead. So the manager knows when a host is lost that its guests there no longer " +
			"run, and does what --on-host-loss says without waiting for a person. Without a lease, guests on a host that is out of reach run on, " +
			"and nothing is started in their place. The manager must not be away for longer than the lease, either.\n\n" +
			"--on-host-loss says what becomes of the cluster when a guest ends that should run. restart: that guest is started again, and the " +
			"programs that ran in it have failed. restore: all guests go back to the latest checkpoint (`watari checkpoint create --every`), " +
			"and runs go on from there. stop: all guests are stopped.\n\n" +
			"--mount mounts a folder of a file server outside in all guests, if an administrator has allowed it (`watari storage list`): " +
			"SERVER:/PATH:/AT, and :ro for reading only. Programs start when it is mounted. Checkpoints do not hold its files.\n\n" +
			"A guest keeps the CPU that it was started with, and moves only to hosts that provide all features of it. With " +
			"--cpu baseline, the CPU has the features that all hosts with CPUs of the same vendor have in common when the cluster is " +
			"created (of the hosts at the given sites), so a guest can move to each of them. With --cpu host, it has all " +
			"features of the host on which the guest starts, and the guest moves only to hosts that have them, too. With --cpu MODEL, guests start on " +
			"hosts that support this model. `watari cluster show` shows what was chosen and what was left out.",
		Example: "  watari cluster create md --guests 4 --memory 512M --image mpi --wait\n" +
			"  watari cluster create md --guests 8 --image mpi --site berlin --site kyoto --spread site\n" +
			"  watari cluster create md --abstract 16 --memory 512M --image mpi\n" +
			"  watari cluster create md --guests 4 --image mpi --mount nfs.lab:/data:/data:ro\n" +
			"  watari cluster create md --guests 4 --image mpi --lease 60s --on-host-loss restore",
		Args: cli.Args("CLUSTER"),
	}
	f := command.Flags()
	command.RunE = env.Run(func(ctx context.Context, args []string) error {
		if flags.abstract > 0 {
			for _, other := range []string{"guests", "vcpus", "spread"} {
				if f.Changed(other) {
					return cli.Usagef("--abstract %d and --%s exclude each other: an abstract processor has one virtual CPU, and the hosts' speeds place it", flags.abstract, other)
				}
			}
		} else if f.Changed("abstract") {
			return cli.Usagef("--abstract 0: a cluster needs at least one guest")
		}
		return create(ctx, env, args[0], flags)
	})
	f.Uint32VarP(&flags.guests, "guests", "g", 1, "number of guests")
	f.Uint32Var(&flags.abstract, "abstract", 0, "number of abstract processors: guests of one virtual CPU, placed by the hosts' speeds")
	f.Uint32Var(&flags.vcpus, "vcpus", 1, "virtual CPUs of each guest")
	f.StringVarP(&flags.memory, "memory", "m", "512M", "memory of each guest")
	f.StringVarP(&flags.image, "image", "i", "", "image that the guests boot, NAME, or NAME@DIGEST for exactly that content")
	f.StringSliceVar(&flags.sites, "site", nil, "site to use, may be repeated (default: any)")
	f.StringVar(&flags.spread, "spread", "", "spread the guests evenly over: site, host")
	f.StringVar(&flags.cpu, "cpu", "baseline", "the guests' CPU: baseline, host, or a named libvirt model such as EPYC-Rome")
	f.StringVar(&flags.volume, "volume", "", "keep the home on this volume, so that its files outlive the cluster (see: watari volume)")
	f.StringArrayVar(&flags.mounts, "mount", nil, "mount a folder of a file server in all guests: SERVER:/PATH:/AT[:ro], may be repeated (see: watari storage)")
	f.DurationVar(&flags.lease, "lease", 0, "end guests whose host does not hear from the manager for this long, such as 60s; 0: they run on")
	f.StringVar(&flags.onHostLoss, "on-host-loss", "restart", "what to do when a guest is lost: restart, restore, stop")
	f.BoolVar(&flags.noFork, "no-fork", false, "boot each guest instead of forking it from a booted template")
	f.BoolVarP(&flags.wait, "wait", "w", false, "wait until every guest is ready")
	command.ValidArgsFunction = cobra.NoFileCompletions
	env.CompleteFlag(command, "image", cli.Images)
	env.CompleteFlag(command, "volume", cli.Volumes)
	env.CompleteFlag(command, "site", cli.Sites)
	env.CompleteFlag(command, "spread", cli.Words("site", "host"))
	env.CompleteFlag(command, "on-host-loss", cli.Words("restart", "restore", "stop"))
	env.CompleteFlag(command, "cpu", cli.Words("baseline", "host"))
	return command
}

// spec checks the flags and returns the spec for the manager.
func (f createFlags) spec() (*v1.ClusterSpec, error) {
	memory, err := output.ParseSize(f.memory)
	if err != nil {
		return nil, cli.Usagef("--memory: %v", err)
	}
	spread, ok := map[string]v1.Spread{"": v1.Spread_SPREAD_UNSPECIFIED, "site": v1.Spread_SPREAD_SITE, "host": v1.Spread_SPREAD_HOST}[f.spread]
	loss, known := map[string]v1.OnHostLoss{"restart": v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED, "restore": v1.OnHostLoss_ON_HOST_LOSS_RESTORE,
		"stop": v1.OnHostLoss_ON_HOST_LOSS_STOP}[f.onHostLoss]
	switch {
	case !known:
		return nil, cli.Usagef("--on-host-loss %q: use restart, restore or stop", f.onHostLoss)
	case f.lease < 0 || f.lease%time.Millisecond != 0:
		return nil, cli.Usagef("--lease %s: give a time such as 60s", f.lease)
	case !ok:
		return nil, cli.Usagef("--spread %q: use site or host", f.spread)
	case f.image == "":
		return nil, cli.Usagef("--image is missing: name the image that the guests boot (`watari image list` shows the images)")
	case f.guests == 0:
		return nil, cli.Usagef("--guests 0: a cluster needs at least one guest")
	case f.vcpus == 0:
		return nil, cli.Usagef("--vcpus 0: a guest needs at least one")
	}
	name, _, _ := strings.Cut(f.image, "@")
	if err := cli.CheckName("image", name); err != nil {
		return nil, err
	}
	var folders []*v1.Mount
	for _, text := range f.mounts {
		m, err := mounts.Parse(text)
		if err != nil {
			return nil, cli.Usagef("--mount %v", err)
		}
		folders = append(folders, m)
	}
	cpu := f.cpu
	if cpu == "baseline" {
		cpu = "" // the manager's default; left empty for managers that do not know the field
	}
	return &v1.ClusterSpec{
		Guests: cmp.Or(f.abstract, f.guests), Abstract: f.abstract > 0, Shape: &v1.GuestShape{Vcpus: f.vcpus, MemoryBytes: memory},
		Image: f.image, Sites: f.sites, Spread: spread, NoFork: f.noFork, Cpu: cpu, LeaseMs: uint64(f.lease.Milliseconds()), OnHostLoss: loss, Volume: f.volume, Mounts: folders,
	}, nil
}

func create(ctx context.Context, env *cli.Env, name string, flags createFlags) error {
	if err := cli.CheckName("cluster", name); err != nil {
		return err
	}
	spec, err := flags.spec()
	if err != nil {
		return err
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	response, err := c.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: name, Spec: spec}))
	if err != nil {
		return fmt.Errorf("create cluster %s: %w", name, err)
	}
	made := response.Msg.Cluster
	if response.Msg.Existed {
		env.Notef("cluster %s already exists, with the same settings", name)
	}
	if flags.wait {
		if made, err = waitReady(ctx, env, c, name); err != nil {
			return err
		}
	}
	return showCreated(env, made, flags.wait || response.Msg.Existed)
}

func showCreated(env *cli.Env, made *v1.Cluster, said bool) error {
	if env.Output != output.FormatTable {
		return output.Write(env.Out, env.Output, made, nil)
	}
	name := made.GetMeta().GetName()
	if said {
		return nil
	}
	env.Notef("cluster %s is starting: %s on %s; see `watari cluster show %s`", name,
		output.Count(int(made.GetSpec().GetGuests()), "guest"), made.GetPrefix(), name)
	return nil
}

// waitReady shows the guests of a cluster while they start, until all are ready.
func waitReady(ctx context.Context, env *cli.Env, c *client.Client, name string) (*v1.Cluster, error) {
	return waitGuests(ctx, env, c, name, waiting{meanwhile: "it started", still: "starting", undo: fmt.Sprintf(", undo with `watari cluster delete %s`", name),
		done: func(now *v1.WatchResponse) bool { return now.Cluster.GetState() == v1.ClusterState_CLUSTER_STATE_READY }})
}

// waiting is a condition to wait for, and its description.
type waiting struct {
	meanwhile, still, undo string
	done                   func(*v1.WatchResponse) bool
}

// waitGuests shows the guests of a cluster until the condition holds.
func waitGuests(ctx context.Context, env *cli.Env, c *client.Client, name string, w waiting) (*v1.Cluster, error) {
	view := newStartView(env)
	var last *v1.Cluster
	err := c.Watch(ctx, "cluster", name, view.lines.Trouble, func(now *v1.WatchResponse) (bool, error) {
		if now.Gone || now.GetCluster().GetState() == v1.ClusterState_CLUSTER_STATE_DELETING {
			return false, fmt.Errorf("cluster %s was deleted while %s", name, w.meanwhile)
		}
		last = now.Cluster
		view.show(now)
		return w.done(now), progress.FailedForGood(now)
	})
	if err != nil {
		view.lines.Keep()
		if ctx.Err() != nil {
			return nil, cli.Interruptedf("stopped waiting: cluster %s is still %s; see `watari cluster show %s`%s", name, w.still, name, w.undo)
		}
		return nil, fmt.Errorf("wait for cluster %s: %w", name, err)
	}
	view.done(last)
	return last, nil
}
