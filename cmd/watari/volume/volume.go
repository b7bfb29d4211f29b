// Package volume holds `watari volume`.
package volume

import (
	"cmp"
	"context"
	"errors"
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
	"watari/cmd/internal/progress"
	"watari/cmd/watari/checkpoint"
	"watari/cmd/watari/guest"
)

// New returns `watari volume`.
func New(env *cli.Env) *cobra.Command {
	command := cli.Noun(&cobra.Command{
		Use:     "volume",
		Aliases: []string{"volumes"},
		Short:   "Volumes, on which files outlive clusters: create, list, show, snapshot, restore, cp, move, delete",
		Long: "A volume keeps a cluster's home on a host's disk. Without one, the home is in the memory of the cluster's first guest, and ends with it. " +
			"All guests of the cluster see the same files, wherever they run. One cluster at a time uses a volume (`watari cluster create --volume`); " +
			"the next one finds the files again.",
	})
	command.AddCommand(newCreate(env), newList(env), newShow(env), checkpoint.NewSnapshot(env), checkpoint.NewRestoreVolume(env), guest.NewVolumeCopy(env), newMove(env), newDelete(env))
	return command
}

func newCreate(env *cli.Env) *cobra.Command {
	var size, host string
	var detach bool
	var every time.Duration
	var replicas uint32
	var command *cobra.Command
	command = &cobra.Command{
		Use:   "create VOLUME",
		Short: "Make an empty volume",
		Long: "Make an empty volume. A host makes its disk, which takes up room as files are written to it, --size at most. Without --host, it is one with " +
			"much room that nobody has lent out. Ctrl-C ends only the waiting.\n\n" +
			"With --replicas, snapshots are made regularly (--every), and each is on so many hosts. If the volume's host is lost, `watari volume restore` " +
			"gives the latest one to another host.",
		Example: "  watari volume create data --size 50G\n  watari volume create data --size 50G --replicas 2 --every 1h\n  watari cluster create md --guests 4 --image mpi --volume data",
		Args:    cli.Args("VOLUME"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("volume", args[0]); err != nil {
				return err
			}
			if size == "" {
				return cli.Usagef("--size is missing: say how much the volume may hold, such as --size 50G")
			}
			bytes, err := output.ParseSize(size)
			if err != nil {
				return cli.Usagef("--size: %v", err)
			}
			given := command.Flags().Changed
			switch {
			case given("replicas") && replicas == 0:
				return cli.Usagef("--replicas 0: each snapshot is kept on at least one host; without --replicas and --every none is made")
			case given("replicas") && given("every") && every == 0:
				return cli.Usagef("--replicas %d and --every 0 exclude each other: without snapshots there is nothing to keep on other hosts", replicas)
			}
			request := &v1.CreateVolumeRequest{Name: args[0], SizeBytes: bytes, Host: host}
			if replicas > 0 || every != 0 {
				seconds, err := checkpoint.Seconds(cmp.Or(every, usualEvery))
				if err != nil {
					return err
				}
				request.Snapshots = &v1.CheckpointPlan{EverySeconds: seconds, Copies: replicas}
			}
			response, err := c.CreateVolume(ctx, connect.NewRequest(request))
			if err != nil {
				return fmt.Errorf("create volume %s: %w", args[0], err)
			}
			made := response.Msg.Volume
			if !detach {
				if made, err = follow(ctx, env, c, args[0]); err != nil {
					return err
				}
			}
			return env.Done(made, "volume %s of %s is %s", args[0], output.Size(made.GetSizeBytes()), strings.TrimSpace(output.State(made.GetState())+" "+on(made)))
		}),
	}
	f := command.Flags()
	f.StringVar(&size, "size", "", "how much it may hold, such as 50G")
	f.StringVar(&host, "host", "", "host that is to have the disk (default: chosen)")
	f.Uint32Var(&replicas, "replicas", 0, "make snapshots regularly, and keep each on so many hosts")
	f.DurationVar(&every, "every", 0, "how often snapshots are made (default 15m with --replicas, else never)")
	f.BoolVarP(&detach, "detach", "d", false, "return at once")
	env.CompleteFlag(command, "host", cli.Hosts)
	return command
}

// usualEvery is the default interval of snapshots of a volume that has replicas.
const usualEvery = 15 * time.Minute

// on names the host of a volume; empty: none.
func on(v *v1.Volume) string {
	if v.GetHost() == "" {
		return ""
	}
	return "on host " + v.GetHost()
}

// follow shows a volume until it is ready.
func follow(ctx context.Context, env *cli.Env, c *client.Client, name string) (last *v1.Volume, err error) {
	err = progress.Follow(ctx, env, c, "volume", name, func(now *v1.WatchResponse, lines *progress.Lines) (bool, error) {
		if now.Gone {
			return false, errors.New("it was deleted")
		}
		last = now.Volume
		lines.Set(progress.Line{Key: name, Text: strings.TrimSuffix(fmt.Sprintf("volume %s: %s %s: %s", name, output.State(last.GetState()), on(last), last.GetMessage()), ": ")})
		return last.GetState() != v1.VolumeState_VOLUME_STATE_PENDING, nil
	}, "wait for volume "+name, fmt.Sprintf("volume %s is made in the background; see `watari volume show %s`", name, name))
	return last, err
}

func newList(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List volumes",
		Example: "  watari volume list",
		Args:    cli.Args(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := client.List(ctx, c.ListVolumes, &v1.ListVolumesRequest{}, (*v1.ListVolumesResponse).GetVolumes)
			if err != nil {
				return fmt.Errorf("list volumes: %w", err)
			}
			return cli.ShowList(env, list, func(w io.Writer) {
				if len(list) == 0 {
					env.Notef("there is no volume; `watari volume create VOLUME --size 50G` makes one")
					return
				}
				t := output.NewTable("NAME", "STATE", "SIZE", "ON DISK", "HOST", "CLUSTER", "OWNER", "MESSAGE")
				for _, v := range list {
					t.Row(v.GetMeta().GetName(), state(v), output.Size(v.GetSizeBytes()), onDisk(v), v.GetHost(), v.GetCluster(), v.GetMeta().GetOwner(), v.GetMessage())
				}
				t.Write(w)
			})
		}),
	}
}

func state(v *v1.Volume) string {
	if v.GetMeta().GetDeleting() != nil {
		return "deleting"
	}
	return output.State(v.GetState())
}

// onDisk returns how much of the host's disk a volume uses; empty: its host does not tell.
func onDisk(v *v1.Volume) string {
	if v.GetUsedBytes() == 0 {
		return ""
	}
	return output.Size(v.GetUsedBytes())
}

func newShow(env *cli.Env) *cobra.Command {
	return cli.Show[*v1.Volume]{Word: "VOLUME", Short: "Show a volume: where it is, and which cluster uses it",
		Example: "  watari volume show data", Names: cli.Volumes, Get: get, Describe: describe}.Command(env)
}

// get fetches one volume.
func get(ctx context.Context, c *client.Client, name string) (*v1.Volume, error) {
	return cli.Find("volume", name, func() ([]*v1.Volume, error) {
		return client.List(ctx, c.ListVolumes, &v1.ListVolumesRequest{Name: name}, (*v1.ListVolumesResponse).GetVolumes)
	})
}

func describe(w io.Writer, env *cli.Env, v *v1.Volume) {
	output.Fields(w,
		[2]string{"name", v.GetMeta().GetName()},
		[2]string{"state", state(v)},
		[2]string{"message", v.GetMessage()},
		[2]string{"size", output.Size(v.GetSizeBytes())},
		[2]string{"on disk", onDisk(v)},
		[2]string{"host", v.GetHost()},
		[2]string{"move", moved(v.GetMove())},
		[2]string{"cluster", v.GetCluster()},
		[2]string{"snapshots", snapshots(v.GetCheckpoints())},
		[2]string{"restored", restored(v.GetRestore())},
		[2]string{"owner", v.GetMeta().GetOwner()},
		[2]string{"age", output.Age(env.Now(), v.GetMeta().GetCreated())},
	)
}

// restored describes the snapshot to which a volume was restored, or is being restored; empty: none.
func restored(r *v1.Restore) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("%s: %s", r.GetCheckpoint(), output.State(r.GetState()))
	if r.GetMessage() != "" {
		text += ": " + r.GetMessage()
	}
	return text
}

// snapshots describes when snapshots are made.
func snapshots(plan *v1.CheckpointPlan) string {
	if plan.GetEverySeconds() == 0 {
		return "only when asked for"
	}
	return fmt.Sprintf("every %s, each on %s", time.Duration(plan.EverySeconds)*time.Second, output.Count(int(cmp.Or(plan.Copies, 2)), "host"))
}

func newDelete(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "delete VOLUME",
		Aliases: []string{"rm"},
		Short:   "Delete a volume that no cluster uses, with all its files and snapshots",
		Example: "  watari volume delete data",
		Args:    cli.Args("VOLUME"), ValidArgsFunction: env.Complete(cli.Volumes),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("volume", args[0]); err != nil {
				return err
			}
			if _, err := c.DeleteVolume(ctx, connect.NewRequest(&v1.DeleteVolumeRequest{Name: args[0]})); err != nil {
				return fmt.Errorf("delete volume %s: %w", args[0], err)
			}
			env.Notef("volume %s is deleted", args[0])
			return nil
		}),
	}
}
