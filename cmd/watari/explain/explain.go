// Package explain implements `watari explain`: why a guest is where it is, and how policies see a host.
package explain

import (
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
	"watari/internal/printable"
)

// lineLimit is the longest line and the longest error that is shown, in characters.
const lineLimit = 500

const long = `Say why a guest is where it is, or what policies make of a host.

A policy is a set of rules by which guests move without anybody asking: when a host's owner is back, in maintenance windows,
and when they gain elsewhere. Of a guest that gains, "explain guest" lists what other hosts would gain for it, and why it does not
move there. Administrators see the conditions of the policy, too, as they are for the host now. A condition that
"withdraws" makes guests leave the host, one that "gives back" lets the host take guests again. A condition counts once it
has held for long enough without a break: "for 12s of 1m0s" has to hold for 48 seconds more.`

// New returns `watari explain`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "explain",
		Short:   "Say why a guest is where it is, or what policies make of a host: guest, host",
		Long:    long,
		Example: "  watari explain guest md-2\n  watari explain host a1",
	},
		verb(env, &cobra.Command{
			Use:   "guest GUEST",
			Short: "Say why a guest is where it is",
			Long: "Say why a guest is where it is, and what would make it move. Administrators see the conditions of the policy for " +
				"the guest's host, too.",
			Example: "  watari explain guest md-2\n  watari explain guest md-2 -o json | jq -r '.lines[]'",
		}, cli.Guests),
		verb(env, &cobra.Command{
			Use:   "host HOST",
			Short: "Say what policies make of a host",
			Long: "Say whether a host takes guests, which policy keeps them from it, and what has to happen until it takes guests again. " +
				"Administrators see the conditions of the policy for the host, too.",
			Example: "  watari explain host a1\n  watari explain host a1 -o json | jq '.conditions[] | select(.holds)'",
		}, cli.Hosts))
}

// verb completes a command that explains one kind of object. The command is named after the kind.
func verb(env *cli.Env, command *cobra.Command, names cli.Names) *cobra.Command {
	kind := command.Name()
	word := command.Use[len(kind)+1:]
	command.Args = cli.Args(word)
	command.ValidArgsFunction = env.Complete(names)
	command.RunE = env.Run(func(ctx context.Context, args []string) error {
		if err := cli.CheckName(kind, args[0]); err != nil {
			return err
		}
		c, err := env.Client()
		if err != nil {
			return err
		}
		return explain(ctx, env, c, kind, args[0])
	})
	return command
}

func explain(ctx context.Context, env *cli.Env, c *client.Client, kind, name string) error {
	response, err := c.Explain(ctx, connect.NewRequest(&v1.ExplainRequest{Kind: kind, Name: name}))
	if err != nil {
		return fmt.Errorf("explain %s %s: %w", kind, name, err)
	}
	return env.Show(response.Msg, func(w io.Writer) { describe(w, env.Now(), response.Msg) })
}

func describe(w io.Writer, now time.Time, r *v1.ExplainResponse) {
	for _, line := range r.GetLines() {
		fmt.Fprintln(w, printable.Line(line, lineLimit))
	}
	if len(r.GetConditions()) == 0 {
		return
	}
	if len(r.GetLines()) > 0 {
		fmt.Fprintln(w)
	}
	t := output.NewTable("EXPRESSION", "MEANS", "HOLDS")
	for _, c := range r.GetConditions() {
		means := "gives back"
		if c.GetBusy() {
			means = "withdraws"
		}
		t.Row(oneLine(c.GetExpression()), means, holds(now, c))
	}
	t.Write(w)
}

// holds describes whether and how long a condition has held: "no", "for 12s of 1m0s", "for 2m5s".
func holds(now time.Time, c *v1.PolicyCondition) string {
	switch {
	case c.GetError() != "":
		return "cannot be evaluated: " + oneLine(c.GetError())
	case !c.GetHolds():
		return "no"
	case c.GetSince() == nil:
		return "yes"
	}
	text := "for " + output.Age(now, c.GetSince())
	if wait := c.GetWait().AsDuration(); now.Sub(c.GetSince().AsTime()) < wait {
		text += " of " + output.Short(wait)
	}
	return text
}

// oneLine joins the lines of a text into one line that fits a table.
func oneLine(text string) string {
	return printable.Line(strings.Join(strings.Fields(text), " "), lineLimit)
}
