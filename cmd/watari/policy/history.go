package policy

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newHistory(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "history",
		Aliases: []string{"list", "ls"},
		Short:   "List the versions of the policy, the one in force first",
		Long: "List the versions of the policy that are kept, the newest first. The first one is in force. Only administrators can " +
			"do this.",
		Example:           "  watari policy history\n  watari policy history -o json | jq -r '.[0].text'",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			policies, err := list(ctx, c, &v1.ListPoliciesRequest{})
			if err != nil {
				return err
			}
			return cli.ShowList(env, policies, func(w io.Writer) { table(w, env, policies) })
		}),
	}
}

func table(w io.Writer, env *cli.Env, policies []*v1.Policy) {
	if len(policies) == 0 {
		env.Notef(noneInForce)
		return
	}
	t := output.NewTable("VERSION", "WHEN", "BY", "NOTE")
	for _, p := range policies {
		t.Row(fmt.Sprint(p.GetVersion()), output.Time(env.Now(), p.GetMeta().GetCreated()), p.GetMeta().GetOwner(), p.GetNote())
	}
	t.Write(w)
}
