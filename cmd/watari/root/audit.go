package root

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
	"watari/internal/printable"
)

func newAudit(env *cli.Env) *cobra.Command {
	var last uint32
	command := &cobra.Command{
		Use:   "audit",
		Short: "Show who called the manager, from where, and what was refused",
		Long: "Show the audit log of the manager that leads: each call that changes something, reads a console, a run's output, a " +
			"file or a part of an image, logs in to the web console, joins or renews a certificate; and each call that was refused. It is a file in the " +
			"manager's state folder, audit/audit.log, to which lines are only ever appended. With -o json, print one entry per line.",
		Example:           "  watari audit --last 50\n  watari audit -o json",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			stream, err := c.Audit(ctx, connect.NewRequest(&v1.AuditRequest{Last: last}))
			if err != nil {
				return fmt.Errorf("read the audit log: %w", err)
			}
			defer stream.Close()
			for stream.Receive() {
				if err := writeEntry(env, stream.Msg().GetEntry()); err != nil {
					return err
				}
			}
			if err := stream.Err(); err != nil {
				return fmt.Errorf("read the audit log: %w", err)
			}
			return nil
		}),
	}
	command.Flags().Uint32VarP(&last, "last", "n", 0, "number of latest entries to show (default: all that are kept)")
	return command
}

func writeEntry(env *cli.Env, e *v1.AuditEntry) error {
	return showNext(env, e, func(w io.Writer) {
		mark, text := " ", ""
		if e.GetError() != "" {
			mark, text = "!", ": "+e.GetError()
		}
		if n := e.GetLeftOut(); n > 0 {
			fmt.Fprintf(w, "%21s %d more calls of this caller were not recorded\n", "", n)
		}
		fmt.Fprintf(w, "%s %s %-16s %-21s %s\n", e.GetAt().AsTime().In(env.Now().Location()).Format(time.DateTime), mark,
			cmp.Or(e.GetCaller(), "nobody known"), e.GetAddress(), printable.Line(strings.TrimSpace(e.GetCall()+" "+e.GetObject())+text, 400))
	})
}
