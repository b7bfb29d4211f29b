package guest

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newConsole(env *cli.Env) *cobra.Command {
	var follow bool
	command := &cobra.Command{
		Use:   "console GUEST",
		Short: "Write what a guest has written to its console",
		Long: "Write what a guest has written to its console since it was started: kernel and guest agent. To type commands " +
			"into a guest use `watari guest exec -it`.",
		Example:           "  watari guest console md-2\n  watari guest console -f md-2",
		Args:              cli.Args("GUEST"),
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("guest", args[0]); err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			err = console(ctx, env, c, args[0], follow)
			if ctx.Err() != nil {
				return &cli.Exit{Code: cli.StatusInterrupted}
			}
			if err != nil {
				return fmt.Errorf("read the console of guest %s: %w", args[0], err)
			}
			return nil
		}),
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on as it writes, until Ctrl-C")
	return command
}

// console copies a guest's console, over broken connections and moves.
func console(ctx context.Context, env *cli.Env, c *client.Client, name string, follow bool) error {
	var offset uint64
	return env.Patiently(ctx, c, "\n", func(alive func()) error {
		stream, err := c.GuestConsole(ctx, connect.NewRequest(&v1.GuestConsoleRequest{Name: name, Offset: offset, Follow: follow}))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			alive()
			part := stream.Msg()
			if _, err := env.Out.Write(part.Data); err != nil {
				return err
			}
			offset = part.Offset + uint64(len(part.Data))
		}
		if err := stream.Err(); err != nil {
			return err
		}
		if follow {
			return connect.NewError(connect.CodeUnavailable, errors.New("the stream ended"))
		}
		return nil
	})
}
