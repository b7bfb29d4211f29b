package host

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newQuarantine(env *cli.Env) *cobra.Command {
	var undo bool
	var grace time.Duration
	command := &cobra.Command{
		Use:   "quarantine HOST",
		Short: "Cut a host off that is not trusted any more",
		Long: "Cut a host off that is not trusted any more. First its guests are moved away, for at most --grace. Then the manager refuses its certificate and " +
			"believes none of its reports, and other hosts end their WireGuard sessions with it. Guests and volumes that are still there count as on a host " +
			"out of reach: a guest with a lease or a checkpoint starts elsewhere as its cluster says; otherwise say that the host is off with " +
			"`watari host remove HOST --lost`. With --grace 0 it is cut off at once.\n\n" +
			"With --undo the host is trusted again, and stays drained. Do that only if nobody else has its key: otherwise remove the host and join it anew.",
		Example:           "  watari host quarantine b2\n  watari host quarantine b2 --grace 0\n  watari host quarantine b2 --undo && watari host drain b2 --undo",
		Args:              cli.Args("HOST"),
		ValidArgsFunction: env.Complete(cli.Hosts),
	}
	command.RunE = env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
		if undo && command.Flags().Changed("grace") {
			return cli.Usagef("--undo and --grace exclude each other: undoing is immediate")
		}
		return quarantine(ctx, env, c, args[0], grace, undo)
	})
	command.Flags().BoolVar(&undo, "undo", false, "trust the host again")
	command.Flags().DurationVar(&grace, "grace", 5*time.Minute, "how long its guests may take to leave")
	return command
}

func quarantine(ctx context.Context, env *cli.Env, c *client.Client, name string, grace time.Duration, undo bool) error {
	if err := cli.CheckName("host", name); err != nil {
		return err
	}
	response, err := c.QuarantineHost(ctx, connect.NewRequest(&v1.QuarantineHostRequest{Name: name, Grace: durationpb.New(grace), Undo: undo}))
	if err != nil {
		return fmt.Errorf("quarantine host %s: %w", name, err)
	}
	host := response.Msg.Host
	switch {
	case undo:
		return env.Done(host, "host %s is trusted again, and stays drained; let it take guests with `watari host drain %s --undo`", name, name)
	case host.GetQuarantine().GetCutOff() != nil:
		return env.Done(host, "host %s is cut off", name)
	}
	return env.Done(host, "host %s is cut off when its guests have left, at %s at the latest; watch it with `watari host show %s`", name,
		host.GetQuarantine().GetUntil().AsTime().Local().Format(time.TimeOnly), name)
}
