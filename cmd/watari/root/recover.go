package root

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/internal/printable"
)

const recoverLong = `Make the manager's state agree with what hosts run, after an older copy of the state was put back.

A manager whose state is older than what hosts have seen holds: it starts, ends and moves nothing, and guests run on as they
are. This command says what would become of each guest; with --yes it is done, and the manager goes on.

  keep      the state agrees with the host, or the guest's host is not connected
  adopt     the guest goes on where it runs; a cluster that the state does not know is made again
  restart   no host runs the guest: it is started anew
  hold      no connected host runs the guest, another may: it waits for "watari guest start"
  conflict  several hosts run the guest: choose one with --keep GUEST=HOST, the other copies are ended
  wait      something that ends by itself is under way: try again
  leave     too little is known of the guest: it runs on, and the manager leaves it alone
  end       a copy that is not the guest's any more is ended

Guests of a host that is not connected are not started elsewhere. With --without HOST you vouch that they are gone. A host
that comes back later, and shows that it has seen more, has the manager hold again.`

// recoverExamples show the usual sequence of commands.
const recoverExamples = `  watari recover
  watari recover --yes
  watari recover --keep md-0=a1 --without b2 --yes
  watari recover -o json | jq '.guests[] | select(.act == "RECOVERY_ACT_CONFLICT")'`

func newRecover(env *cli.Env) *cobra.Command {
	var yes bool
	var without []string
	var keep map[string]string
	command := &cobra.Command{
		Use:               "recover",
		Short:             "Take up what hosts run after an older copy of the manager's state was put back",
		Long:              recoverLong,
		Example:           recoverExamples,
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			response, err := c.Recover(ctx, connect.NewRequest(&v1.RecoverRequest{Apply: yes, Keep: keep, Without: without}))
			if err != nil {
				return fmt.Errorf("recover: %w", err)
			}
			return env.Show(response.Msg, func(w io.Writer) { describeRecovery(w, response.Msg) })
		}),
	}
	flags := command.Flags()
	flags.BoolVar(&yes, "yes", false, "do it, instead of saying what would be done")
	flags.StringToStringVar(&keep, "keep", nil, "of several copies of a guest, the one on this host goes on (GUEST=HOST)")
	flags.StringSliceVar(&without, "without", nil, "a host that is not connected, and whose guests are gone: you vouch for it")
	env.CompleteFlag(command, "without", cli.Hosts)
	_ = command.RegisterFlagCompletionFunc("keep", func(command *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		guests, _ := env.Complete(cli.Guests)(command, nil, begun)
		for i := range guests {
			guests[i] += "="
		}
		return guests, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	})
	return command
}

// quotedReason bounds a quoted text of a host.
const quotedReason = 400

func describeRecovery(w io.Writer, r *v1.RecoverResponse) {
	if !r.GetHeld() {
		fmt.Fprintln(w, "The manager does not hold; there is nothing to recover.")
		return
	}
	for _, evidence := range r.GetEvidence() {
		fmt.Fprintln(w, printable.Line(evidence, quotedReason))
	}
	fmt.Fprintln(w)
	t := output.NewTable("GUEST", "ACT", "HOST", "EPOCH", "REASON")
	for _, g := range r.GetGuests() {
		epoch := ""
		if g.GetEpoch() > 0 {
			epoch = fmt.Sprint(g.GetEpoch())
		}
		t.Row(printable.Line(cmp.Or(g.GetGuest(), g.GetUid()), quotedReason), output.State(g.GetAct()), g.GetHost(), epoch, printable.Line(g.GetReason(), quotedReason))
	}
	t.Write(w)
	section(w, "Clusters that are made again", r.GetClusters(), func(c *v1.ClusterRecovery) string {
		return strings.Join(append([]string{fmt.Sprintf("%s, %s, of user %s", c.GetCluster(), output.Count(int(c.GetGuests()), "guest"), c.GetOwner())}, c.GetNotes()...), "; ")
	})
	section(w, "Hosts whose guests are not known", r.GetHosts(), func(h *v1.HostRecovery) string { return h.GetHost() + ": " + h.GetReason() })
	section(w, "To be settled first", r.GetObstacles(), func(text string) string { return text })
	switch {
	case r.GetDone():
		fmt.Fprintln(w, "\nThis was done. The manager goes on.")
	case len(r.GetObstacles()) == 0:
		fmt.Fprintln(w, "\nNothing was done yet; `watari recover --yes` does it.")
	}
}

func section[T any](w io.Writer, title string, list []T, text func(T) string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for _, one := range list {
		fmt.Fprintf(w, "  %s\n", printable.Line(text(one), 2*quotedReason))
	}
}
