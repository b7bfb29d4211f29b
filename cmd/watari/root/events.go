package root

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newEvents(env *cli.Env) *cobra.Command {
	var follow bool
	var last uint32
	command := &cobra.Command{
		Use:   "events",
		Short: "Show what has happened, and who requested it",
		Long: "Show the history: what has happened to hosts, guests, migrations and runs, and who requested it. With --follow, " +
			"continue with new events, even across a restart of the manager. With -o json, print one event per line.",
		Example:           "  watari events --last 20\n  watari events -f",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			return events(ctx, env, c, &v1.EventsRequest{Follow: follow, Last: last})
		}),
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events")
	command.Flags().Uint32VarP(&last, "last", "n", 0, "number of latest events to show (default: all that are kept)")
	return command
}

func events(ctx context.Context, env *cli.Env, c *client.Client, request *v1.EventsRequest) error {
	attempt := func(alive func()) error {
		stream, err := c.Events(ctx, connect.NewRequest(request))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			alive()
			event := stream.Msg().GetEvent()
			if err := writeEvent(env, event); err != nil {
				return err
			}
			request.After, request.Last = event.GetId(), 0
		}
		if err := stream.Err(); err != nil {
			return err
		}
		if request.Follow {
			return connect.NewError(connect.CodeUnavailable, errors.New("the manager ended the stream"))
		}
		return nil
	}
	var err error
	if request.Follow {
		err = env.Patiently(ctx, c, "\n", attempt)
	} else {
		err = attempt(func() {})
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("read the events: %w", err)
	}
	return err
}

// showNext writes one of several messages: for programs, on its own line or as its own document.
func showNext(env *cli.Env, message proto.Message, text func(w io.Writer)) error {
	switch env.Output {
	case output.FormatJSON:
		line, err := output.JSONLine(message)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(env.Out, "%s\n", line)
		return err
	case output.FormatYAML:
		fmt.Fprintln(env.Out, "---")
	}
	return env.Show(message, text)
}

func writeEvent(env *cli.Env, e *v1.Event) error {
	return showNext(env, e, func(w io.Writer) {
		mark := " "
		switch e.GetSeverity() {
		case v1.Severity_SEVERITY_WARNING:
			mark = "!"
		case v1.Severity_SEVERITY_ERROR:
			mark = "E"
		}
		fmt.Fprintf(w, "%s %s %-18s %-10s %s\n", e.GetAt().AsTime().In(env.Now().Location()).Format(time.DateTime), mark,
			e.GetKind()+" "+e.GetName(), e.GetActor(), strings.ReplaceAll(e.GetMessage(), "\n", "\n    | "))
	})
}
