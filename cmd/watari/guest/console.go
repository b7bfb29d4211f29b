package guest

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/internal/printable"
)

// consoleOptions are the flags of watari guest console.
type consoleOptions struct {
	follow   bool
	list     bool
	previous uint32
}

func newConsole(env *cli.Env) *cobra.Command {
	var o consoleOptions
	command := &cobra.Command{
		Use:   "console GUEST",
		Short: "Print a guest's console",
		Long: "Print what a guest has written to its console since it started or since it moved to its current host: " +
			"messages of the kernel and the guest agent. To type commands into a guest, use `watari guest exec -it`.\n\n" +
			"When a guest ends on a host or moves away, the host keeps its console for three days, but only the last few " +
			"consoles of each guest. --list lists them. --previous prints the console of the latest start that has " +
			"ended, --previous=2 that of the start before it. " +
			"The console of a forked guest begins at the point where its template was saved.\n\n" +
			"On a terminal, escape sequences and other control characters are shown as text.",
		Example: "  watari guest console md-2\n  watari guest console -f md-2\n  watari guest console --previous md-2\n" +
			"  watari guest console --list md-2",
		Args:              cli.Args("GUEST"),
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("guest", args[0]); err != nil {
				return err
			}
			if o.follow && (o.list || o.previous > 0) || o.list && o.previous > 0 {
				return cli.Usagef("use only one of --follow, --list and --previous")
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			return o.run(ctx, env, c, args[0])
		}),
	}
	flags := command.Flags()
	flags.BoolVarP(&o.follow, "follow", "f", false, "continue with new output until Ctrl-C")
	flags.BoolVarP(&o.list, "list", "l", false, "list the consoles that hosts keep")
	flags.Uint32VarP(&o.previous, "previous", "p", 0, "print the console of an earlier start: 1 is the latest that has ended")
	flags.Lookup("previous").NoOptDefVal = "1"
	return command
}

func (o *consoleOptions) run(ctx context.Context, env *cli.Env, c *client.Client, name string) error {
	if o.list {
		return listConsoles(ctx, env, c, name)
	}
	err := console(ctx, env, c, &v1.GuestConsoleRequest{Name: name, Follow: o.follow, Previous: o.previous})
	if ctx.Err() != nil {
		return &cli.Exit{Code: cli.StatusInterrupted}
	}
	if err != nil {
		return fmt.Errorf("read the console of guest %s: %w", name, err)
	}
	return nil
}

// console copies a guest's console. It continues after broken connections and moves.
func console(ctx context.Context, env *cli.Env, c *client.Client, request *v1.GuestConsoleRequest) error {
	out := env.Out
	if width, _ := cli.Terminal(out); width > 0 {
		out = printable.Writer(out)
	}
	return env.Patiently(ctx, c, "\n", func(alive func()) error {
		stream, err := c.GuestConsole(ctx, connect.NewRequest(request))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			alive()
			part := stream.Msg()
			if _, err := out.Write(part.Data); err != nil {
				return err
			}
			request.Offset = part.Offset + uint64(len(part.Data))
		}
		if err := stream.Err(); err != nil {
			return err
		}
		if request.Follow {
			return connect.NewError(connect.CodeUnavailable, errors.New("the stream ended"))
		}
		return nil
	})
}

func listConsoles(ctx context.Context, env *cli.Env, c *client.Client, name string) error {
	r, err := c.ListGuestConsoles(ctx, connect.NewRequest(&v1.ListGuestConsolesRequest{Name: name}))
	if err != nil {
		return fmt.Errorf("list the consoles of guest %s: %w", name, err)
	}
	for _, host := range r.Msg.UnreachableHosts {
		env.Notef("host %s did not answer; it may have more consoles", host)
	}
	return cli.ShowList(env, r.Msg.Consoles, func(w io.Writer) {
		if len(r.Msg.Consoles) == 0 {
			env.Notef("no host keeps an earlier console of guest %s", name)
			return
		}
		t := output.NewTable("PREVIOUS", "HOST", "EPOCH", "BEGAN", "ENDED", "SIZE", "END")
		for _, k := range r.Msg.Consoles {
			life := fmt.Sprint(k.Life)
			if k.Life == 0 {
				life = "present"
			}
			t.Row(life, k.Host, fmt.Sprint(k.Epoch), output.Age(env.Now(), k.Began), output.Age(env.Now(), k.Ended), output.Size(k.Bytes),
				printable.Line(k.End, 200))
		}
		t.Write(w)
	})
}
