// Package checkpoint holds `watari checkpoint`.
package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
)

// New returns `watari checkpoint`.
func New(env *cli.Env) *cobra.Command {
	command := cli.Noun(&cobra.Command{
		Use:     "checkpoint",
		Aliases: []string{"checkpoints"},
		Short:   "Checkpoints, from which clusters can go on: create, list, show, verify, restore, pin, delete",
		Long: "A checkpoint is the state of all guests of a cluster at one moment: memory, programs, files. The guests are paused for less than a second, " +
			"and run on while their memory is written. MPI programs need not be changed, and go on from a checkpoint where they were, on the same " +
			"hosts or on others.",
	})
	command.AddCommand(newCreate(env), newList(env), newShow(env), newVerify(env), newRestore(env), newPin(env), newDelete(env))
	return command
}

type createFlags struct {
	pin, detach  bool
	every        time.Duration
	keep, copies uint32
}

// target is the cluster or the volume whose checkpoints are meant. The other field is empty.
type target struct{ cluster, volume string }

func (t target) String() string {
	if t.volume != "" {
		return "volume " + t.volume
	}
	return "cluster " + t.cluster
}

// word returns the name for a checkpoint of the target.
func (t target) word() string {
	if t.volume != "" {
		return "snapshot"
	}
	return "checkpoint"
}

func newCreate(env *cli.Env) *cobra.Command {
	var flags createFlags
	var command *cobra.Command
	command = &cobra.Command{
		Use:   "create CLUSTER",
		Short: "Make a checkpoint of a cluster, now or regularly",
		Long: "Make a checkpoint of a cluster. The command shows how far it is, and ends when all files are written. Ctrl-C ends only the waiting.\n\n" +
			"With --every, checkpoints are made regularly from now on, and the command returns at once; --every 0 ends that. The newest --keep " +
			"checkpoints are kept, and those that are pinned. --keep alone changes how many are kept, and makes no checkpoint.\n\n" +
			"Files are compressed and encrypted. Each is kept on two hosts, on different sites if there are several. A guest that moves " +
			"is waited for; a host that is drained, or whose owner comes back, cancels the checkpoint.",
		Example: "  watari checkpoint create md\n  watari checkpoint create md --every 10m --keep 6\n  watari checkpoint create md --every 0",
		Args:    cli.Args("CLUSTER"), ValidArgsFunction: env.Complete(cli.Clusters),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("cluster", args[0]); err != nil {
				return err
			}
			regular, err := flags.regular("checkpoint", command.Flags().Changed)
			if err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			if regular {
				return plan(ctx, env, c, target{cluster: args[0]}, flags, command.Flags().Changed("every"))
			}
			return create(ctx, env, c, target{cluster: args[0]}, flags)
		}),
	}
	f := command.Flags()
	f.BoolVar(&flags.pin, "pin", false, "keep it until it is deleted")
	f.DurationVar(&flags.every, "every", 0, "make checkpoints regularly, such as every 10m; 0: no more")
	f.Uint32Var(&flags.keep, "keep", 0, "how many checkpoints are kept beside the pinned ones (default 3)")
	f.BoolVarP(&flags.detach, "detach", "d", false, "print the checkpoint's name and return")
	return command
}

// regular reports whether the flags are about checkpoints that are made regularly, and not about one that is made now. It refuses flags
// that would be without effect.
func (f createFlags) regular(word string, given func(flag string) bool) (regular bool, err error) {
	for _, flag := range []string{"every", "keep", "replicas"} {
		if !given(flag) {
			continue
		}
		regular = true
		for _, other := range []string{"pin", "detach"} {
			if given(other) {
				return false, cli.Usagef("--%s is for a %s that is made now, and with --%s none is made now: omit one of them", other, word, flag)
			}
		}
	}
	switch {
	case given("keep") && f.keep == 0:
		return false, cli.Usagef("--keep 0: at least one %s is kept; --every 0 makes no more of them", word)
	case given("replicas") && f.copies == 0:
		return false, cli.Usagef("--replicas 0: each %s is kept on at least one host", word)
	}
	return regular, nil
}

// Seconds returns the seconds of a plan's --every.
func Seconds(every time.Duration) (uint32, error) {
	if every < 0 || every.Seconds() > math.MaxUint32 || every%time.Second != 0 {
		return 0, cli.Usagef("--every %s: give whole seconds, such as 10m", every)
	}
	return uint32(every.Seconds()), nil
}

// plan changes when checkpoints are made.
func plan(ctx context.Context, env *cli.Env, c *client.Client, of target, flags createFlags, every bool) error {
	seconds, err := Seconds(flags.every)
	if err != nil {
		return err
	}
	now, err := planOf(ctx, c, of)
	if err != nil {
		return fmt.Errorf("plan %ss of %s: %w", of.word(), of, err)
	}
	wanted := &v1.CheckpointPlan{EverySeconds: now.GetEverySeconds(), Keep: cmp.Or(flags.keep, now.GetKeep()), Copies: cmp.Or(flags.copies, now.GetCopies())}
	if every {
		wanted.EverySeconds = seconds
	}
	response, err := c.PlanCheckpoints(ctx, connect.NewRequest(&v1.PlanCheckpointsRequest{Cluster: of.cluster, Volume: of.volume, Plan: wanted}))
	if err != nil {
		return fmt.Errorf("plan %ss of %s: %w", of.word(), of, err)
	}
	when := "made only when you ask for them"
	if wanted.EverySeconds > 0 {
		when = "made every " + (time.Duration(wanted.EverySeconds) * time.Second).String()
	}
	if !every { // who gives only --keep may expect one
		when += ", and none was made now"
	}
	if of.volume != "" {
		return env.Done(response.Msg.Volume, "snapshots of volume %s are %s; `watari checkpoint list --volume %s` shows them", of.volume, when, of.volume)
	}
	return env.Done(response.Msg.Cluster, "checkpoints of cluster %s are %s; `watari checkpoint list %s` shows them", of.cluster, when, of.cluster)
}

// planOf fetches the plan of a cluster or a volume.
func planOf(ctx context.Context, c *client.Client, of target) (*v1.CheckpointPlan, error) {
	if of.volume != "" {
		list, err := client.List(ctx, c.ListVolumes, &v1.ListVolumesRequest{Name: of.volume}, (*v1.ListVolumesResponse).GetVolumes)
		if err != nil {
			return nil, err
		}
		return list[0].GetCheckpoints(), nil
	}
	list, err := client.List(ctx, c.ListClusters, &v1.ListClustersRequest{Name: of.cluster}, (*v1.ListClustersResponse).GetClusters)
	if err != nil {
		return nil, err
	}
	return list[0].GetCheckpoints(), nil
}

func create(ctx context.Context, env *cli.Env, c *client.Client, of target, flags createFlags) error {
	response, err := c.CreateCheckpoint(ctx, connect.NewRequest(&v1.CreateCheckpointRequest{Cluster: of.cluster, Volume: of.volume, Pinned: flags.pin}))
	if err != nil {
		return fmt.Errorf("make a %s of %s: %w", of.word(), of, err)
	}
	made := response.Msg.Checkpoint
	if response.Msg.Existed {
		env.Notef("%s %s of %s is already being made", of.word(), made.GetMeta().GetName(), of)
	}
	if flags.detach {
		return env.Show(made, func(w io.Writer) { fmt.Fprintln(w, made.GetMeta().GetName()) })
	}
	if made, err = follow(ctx, env, c, made.GetMeta().GetName()); err != nil {
		return err
	}
	if state := made.GetState(); state != v1.CheckpointState_CHECKPOINT_STATE_DONE {
		if env.Output != output.FormatTable {
			_ = output.Write(env.Out, env.Output, made, nil)
		}
		runOn := "; the guests run on"
		if of.volume != "" {
			runOn = ""
		}
		return fmt.Errorf("%s %s is %s: %s%s", of.word(), made.GetMeta().GetName(), output.State(state), made.GetMessage(), runOn)
	}
	return env.Show(made, func(w io.Writer) {
		if of.volume != "" {
			fmt.Fprintf(w, "%s: %s of volume %s, %s in all\n", made.GetMeta().GetName(), output.Size(checkpoint.Bytes(made)), of.volume,
				output.Short(made.GetEnded().AsTime().Sub(made.GetStarted().AsTime())))
			return
		}
		fmt.Fprintf(w, "%s: %s of %s, guests were paused for %s, %s in all\n", made.GetMeta().GetName(), output.Size(checkpoint.Bytes(made)),
			output.Count(len(made.GetMembers()), "guest"), output.Milliseconds(made.GetStoodMs()), output.Short(made.GetEnded().AsTime().Sub(made.GetStarted().AsTime())))
	})
}

// follow shows a checkpoint until it has ended.
func follow(ctx context.Context, env *cli.Env, c *client.Client, name string) (last *v1.Checkpoint, err error) {
	err = progress.Follow(ctx, env, c, "checkpoint", name, func(now *v1.WatchResponse, lines *progress.Lines) (bool, error) {
		if now.Gone {
			return false, errors.New("it was deleted")
		}
		last = now.Checkpoint
		lines.Set(progress.Line{Key: name, Text: strings.TrimSuffix(fmt.Sprintf("checkpoint %s: %s: %s", name, doing(last), last.GetMessage()), ": ")})
		return checkpoint.Ended(last.GetState()), nil
	}, "wait for checkpoint "+name, fmt.Sprintf("checkpoint %s goes on; see `watari checkpoint show %s`, cancel it with `watari checkpoint delete %s`", name, name, name))
	return last, err
}

// doing describes what happens in a checkpoint's state.
func doing(c *v1.Checkpoint) string {
	state := c.GetState()
	if c.GetCluster() == "" && state > v1.CheckpointState_CHECKPOINT_STATE_PENDING && !checkpoint.Ended(state) {
		return "its disk is copied"
	}
	switch state {
	case v1.CheckpointState_CHECKPOINT_STATE_PENDING:
		return "waiting"
	case v1.CheckpointState_CHECKPOINT_STATE_PREPARING:
		return "hosts make ready"
	case v1.CheckpointState_CHECKPOINT_STATE_STOPPING, v1.CheckpointState_CHECKPOINT_STATE_FREEZING, v1.CheckpointState_CHECKPOINT_STATE_TAKING:
		return "guests are paused"
	case v1.CheckpointState_CHECKPOINT_STATE_WRITING:
		return "guests run; their memory is written"
	}
	return output.State(state)
}

func newList(env *cli.Env) *cobra.Command {
	var volume string
	command := &cobra.Command{
		Use:     "list [CLUSTER]",
		Aliases: []string{"ls"},
		Short:   "List checkpoints, and snapshots of volumes",
		Example: "  watari checkpoint list md\n  watari checkpoint list --volume data",
		Args:    cli.ArgsBetween(0, "CLUSTER"), ValidArgsFunction: env.Complete(cli.Clusters),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			request := &v1.ListCheckpointsRequest{Volume: volume}
			if len(args) > 0 {
				if err := cli.CheckName("cluster", args[0]); err != nil {
					return err
				}
				request.Cluster = args[0]
			}
			list, err := client.List(ctx, c.ListCheckpoints, request, (*v1.ListCheckpointsResponse).GetCheckpoints)
			if err != nil {
				return fmt.Errorf("list checkpoints: %w", err)
			}
			return cli.ShowList(env, list, func(w io.Writer) { table(w, env, list) })
		}),
	}
	command.Flags().StringVar(&volume, "volume", "", "only snapshots of this volume")
	env.CompleteFlag(command, "volume", cli.Volumes)
	return command
}

func table(w io.Writer, env *cli.Env, list []*v1.Checkpoint) {
	if len(list) == 0 {
		env.Notef("there is no checkpoint; `watari checkpoint create CLUSTER` makes one")
		return
	}
	t := output.NewTable("NAME", "OF", "STATE", "TAKEN", "GUESTS", "SIZE", "STOOD", "PINNED", "MESSAGE")
	for _, c := range list {
		stood, pinned, of, guests := "", "", c.GetCluster(), fmt.Sprint(len(c.GetMembers()))
		if of == "" {
			of, guests = "volume "+c.GetVolume().GetGuest(), ""
		} else if c.GetTaken() != nil {
			stood = output.Milliseconds(c.GetStoodMs())
		}
		if c.GetPinned() {
			pinned = "yes"
		}
		t.Row(c.GetMeta().GetName(), of, state(c), output.Time(env.Now(), c.GetTaken()), guests,
			output.Size(checkpoint.Bytes(c)), stood, pinned, message(c))
	}
	t.Write(w)
}

// message returns what there is to say about a checkpoint.
func message(c *v1.Checkpoint) string {
	if c.GetMessage() == "" && c.GetLeft() {
		return "left behind: an earlier one was restored since; `watari checkpoint restore` with its name returns to it"
	}
	return c.GetMessage()
}

func newShow(env *cli.Env) *cobra.Command {
	return cli.Show[*v1.Checkpoint]{Word: "CHECKPOINT", Short: "Show a checkpoint: its guests, and where their files are",
		Example: "  watari checkpoint show md-c3", Names: cli.Checkpoints, Get: get, Describe: describe}.Command(env)
}

// get fetches one checkpoint.
func get(ctx context.Context, c *client.Client, name string) (*v1.Checkpoint, error) {
	return cli.Find("checkpoint", name, func() ([]*v1.Checkpoint, error) {
		return client.List(ctx, c.ListCheckpoints, &v1.ListCheckpointsRequest{Name: name}, (*v1.ListCheckpointsResponse).GetCheckpoints)
	})
}

func describe(w io.Writer, env *cli.Env, c *v1.Checkpoint) {
	stood, pinned := "", "no"
	if c.GetTaken() != nil && c.GetCluster() != "" {
		stood = output.Milliseconds(c.GetStoodMs())
	}
	if c.GetPinned() {
		pinned = "yes, kept until it is deleted"
	}
	var runs []string
	for _, r := range c.GetRuns() {
		runs = append(runs, r.GetRun())
	}
	output.Fields(w,
		[2]string{"name", c.GetMeta().GetName()},
		[2]string{"cluster", c.GetCluster()},
		[2]string{"state", state(c)},
		[2]string{"message", message(c)},
		[2]string{"reason", c.GetReason()},
		[2]string{"taken", output.Time(env.Now(), c.GetTaken())},
		[2]string{"ended", output.Time(env.Now(), c.GetEnded())},
		[2]string{"guests stood", stood},
		[2]string{"size", output.Size(checkpoint.Bytes(c))},
		[2]string{"pinned", pinned},
		[2]string{"verified", verifiedText(env, c.GetVerification())},
		[2]string{"runs", strings.Join(runs, ", ")},
	)
	file := func(m *v1.CheckpointMember) (size, state, hosts string) {
		return output.Size(m.GetFile().GetBlob().GetSize()), output.Size(m.GetFile().GetStateBytes()), strings.Join(m.GetFile().GetHosts(), ", ")
	}
	if v := c.GetVolume(); v != nil {
		size, state, hosts := file(v)
		fmt.Fprintln(w)
		t := output.NewTable("VOLUME", "WAS ON", "SIZE", "DISK", "FILE ON", "HAS")
		t.Row(v.GetGuest(), v.GetHost(), size, state, hosts, memberContent(v))
		t.Write(w)
	}
	if len(c.GetMembers()) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := output.NewTable("GUEST", "RAN ON", "EPOCH", "SIZE", "MEMORY", "FILE ON", "HAS")
	for _, m := range c.GetMembers() {
		size, state, hosts := file(m)
		t.Row(m.GetGuest(), m.GetHost(), fmt.Sprint(m.GetEpoch()), size, state, hosts, memberContent(m))
	}
	t.Write(w)
}

// memberContent describes the content of a member's file.
func memberContent(m *v1.CheckpointMember) string {
	switch {
	case m.GetFile() == nil:
		return ""
	case m.GetFile().GetBase() != "":
		return "what differs"
	}
	return "all"
}

// state returns a checkpoint's state for people.
func state(c *v1.Checkpoint) string {
	if c.GetMeta().GetDeleting() != nil {
		return "deleting"
	}
	return output.State(c.GetState())
}

func newPin(env *cli.Env) *cobra.Command {
	var release bool
	command := &cobra.Command{
		Use:     "pin CHECKPOINT",
		Short:   "Keep a checkpoint until it is deleted",
		Example: "  watari checkpoint pin md-c3\n  watari checkpoint pin md-c3 --release",
		Args:    cli.Args("CHECKPOINT"), ValidArgsFunction: env.Complete(cli.Checkpoints),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("checkpoint", args[0]); err != nil {
				return err
			}
			response, err := c.ChangeCheckpoint(ctx, connect.NewRequest(&v1.ChangeCheckpointRequest{Name: args[0], Pinned: !release}))
			if err != nil {
				return fmt.Errorf("pin checkpoint %s: %w", args[0], err)
			}
			if release {
				return env.Done(response.Msg.Checkpoint, "checkpoint %s is deleted when there are enough newer ones", args[0])
			}
			return env.Done(response.Msg.Checkpoint, "checkpoint %s is kept until it is deleted", args[0])
		}),
	}
	command.Flags().BoolVar(&release, "release", false, "let it be deleted when there are enough newer ones")
	return command
}

func newDelete(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "delete CHECKPOINT",
		Aliases: []string{"rm"},
		Short:   "Delete a checkpoint and its files, or cancel one that is being made",
		Example: "  watari checkpoint delete md-c3",
		Args:    cli.Args("CHECKPOINT"), ValidArgsFunction: env.Complete(cli.Checkpoints),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("checkpoint", args[0]); err != nil {
				return err
			}
			if _, err := c.DeleteCheckpoint(ctx, connect.NewRequest(&v1.DeleteCheckpointRequest{Name: args[0]})); err != nil {
				return fmt.Errorf("delete checkpoint %s: %w", args[0], err)
			}
			env.Notef("checkpoint %s is deleted", args[0])
			return nil
		}),
	}
}
