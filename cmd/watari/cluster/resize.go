package cluster

import (
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
)

// resizeAgain is how long --when-idle waits before it asks again.
const resizeAgain = 2 * time.Second

type resizeFlags struct {
	guests         uint32
	wait, whenIdle bool
}

func newResize(env *cli.Env) *cobra.Command {
	var flags resizeFlags
	command := &cobra.Command{
		Use:   "resize CLUSTER --guests N",
		Short: "Add guests to a cluster, or remove guests",
		Long: "Change the number of a cluster's guests. Guests of the highest indices are added or removed. The first guest, " +
			"which has the shared home, stays. Runs under way are not disturbed; runs that begin later use the new guests. Resizing to the present size " +
			"does nothing.\n\n" +
			"Removing a guest is refused while a run uses it. With --when-idle the command waits until no run does. Ctrl-C ends only the waiting. " +
			"A removed guest ends, and the files outside the shared home are lost. An added guest of its name is a new one.\n\n" +
			"Without --wait the command returns at once, and guests start or end in the background.",
		Example: "  watari cluster resize md --guests 8 --wait\n" +
			"  watari cluster resize md --guests 2 --when-idle",
		Args:              cli.Args("CLUSTER"),
		ValidArgsFunction: env.Complete(cli.Clusters),
		RunE:              env.Run(func(ctx context.Context, args []string) error { return resize(ctx, env, args[0], flags) }),
	}
	f := command.Flags()
	f.Uint32VarP(&flags.guests, "guests", "g", 0, "the wanted number of guests")
	f.BoolVar(&flags.whenIdle, "when-idle", false, "wait until no run uses a guest that is to be removed")
	f.BoolVarP(&flags.wait, "wait", "w", false, "wait until every guest is ready and the removed ones are gone")
	return command
}

func resize(ctx context.Context, env *cli.Env, name string, flags resizeFlags) error {
	if err := cli.CheckName("cluster", name); err != nil {
		return err
	}
	if flags.guests == 0 {
		return cli.Usagef("--guests is missing: give the wanted number of guests, at least 1")
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	resized, err := askResize(ctx, env, c, name, flags)
	if err != nil {
		return err
	}
	if resized.Unchanged {
		env.Notef("cluster %s already has, or is getting, %s", name, output.Count(int(flags.guests), "guest"))
	}
	made := resized.Cluster
	if flags.wait {
		if made, err = waitResized(ctx, env, c, name); err != nil {
			return err
		}
	}
	if env.Output != output.FormatTable {
		return output.Write(env.Out, env.Output, made, nil)
	}
	if !flags.wait && !resized.Unchanged {
		env.Notef("cluster %s is being resized to %s; see `watari cluster show %s`", name, output.Count(int(flags.guests), "guest"), name)
	}
	return nil
}

// askResize asks for the size, with --when-idle until no run prevents it.
func askResize(ctx context.Context, env *cli.Env, c *client.Client, name string, flags resizeFlags) (*v1.ResizeClusterResponse, error) {
	lines := progress.New(env.Err)
	var answer *v1.ResizeClusterResponse
	ask := func(alive func()) error {
		for {
			response, err := c.ResizeCluster(ctx, connect.NewRequest(&v1.ResizeClusterRequest{Name: name, Guests: flags.guests}))
			if err != nil {
				return err
			}
			alive()
			if answer = response.Msg; len(answer.Runs) == 0 || !flags.whenIdle {
				return nil
			}
			lines.Set(progress.Line{Key: name, Text: fmt.Sprintf("cluster %s: waits for %s", name, strings.Join(answer.Runs, ", "))})
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(resizeAgain):
			}
		}
	}
	var err error
	if flags.whenIdle {
		err = c.Patiently(ctx, lines.Trouble, ask)
	} else {
		err = ask(func() {})
	}
	if err != nil {
		lines.Keep()
		if ctx.Err() != nil {
			return nil, cli.Interruptedf("stopped waiting: cluster %s was not resized", name)
		}
		return nil, fmt.Errorf("resize cluster %s: %w", name, err)
	}
	lines.Clear()
	if runs := answer.Runs; len(runs) > 0 {
		return nil, fmt.Errorf("cluster %s is not resized: guests that would be removed are used by %s; cancel with `watari run cancel %s`, or wait with --when-idle",
			name, strings.Join(runs, ", "), strings.Join(runs, " "))
	}
	return answer, nil
}

// waitResized shows the guests of a cluster until all are ready and the removed ones are gone.
func waitResized(ctx context.Context, env *cli.Env, c *client.Client, name string) (*v1.Cluster, error) {
	return waitGuests(ctx, env, c, name, waiting{meanwhile: "it was resized", still: "being resized",
		done: func(now *v1.WatchResponse) bool {
			wanted := now.Cluster.GetSpec().GetGuests()
			return len(now.Guests) == int(wanted) && now.Cluster.GetReadyGuests() == wanted
		}})
}
