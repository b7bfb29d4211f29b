package run

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

// commandWidth is how many characters of a command line a table shows.
const commandWidth = 40

func newList(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "list [CLUSTER]",
		Aliases:           []string{"ls"},
		Short:             "List the runs, on one cluster or on all",
		Example:           "  watari run list\n  watari run list md",
		Args:              cli.ArgsBetween(0, "CLUSTER"),
		ValidArgsFunction: env.Complete(cli.Clusters),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			request := &v1.ListRunsRequest{}
			if len(args) > 0 {
				if err := cli.CheckName("cluster", args[0]); err != nil {
					return err
				}
				request.Cluster = args[0]
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			runs, err := client.List(ctx, c.ListRuns, request, (*v1.ListRunsResponse).GetRuns)
			if err != nil {
				return fmt.Errorf("list runs: %w", err)
			}
			return cli.ShowList(env, runs, func(w io.Writer) { table(w, env, runs) })
		}),
	}
}

func table(w io.Writer, env *cli.Env, runs []*v1.Run) {
	if len(runs) == 0 {
		env.Notef("there are no runs; start one with `watari run CLUSTER -- PROGRAM`")
		return
	}
	t := output.NewTable("NAME", "CLUSTER", "STATE", "EXIT", "RANKS", "AGE", "TOOK", "COMMAND", "MESSAGE")
	for _, r := range runs {
		ranks := "all"
		if r.GetSpec().GetRanks() > 0 {
			ranks = fmt.Sprint(r.GetSpec().GetRanks())
		}
		t.Row(r.GetMeta().GetName(), r.GetSpec().GetCluster(), output.State(r.GetState()), exit(r), ranks,
			output.Age(env.Now(), r.GetMeta().GetCreated()), took(env, r), shorten(strings.Join(r.GetSpec().GetCommand(), " ")), r.GetMessage())
	}
	t.Write(w)
}

func exit(r *v1.Run) string {
	if r.GetState() != v1.RunState_RUN_STATE_EXITED {
		return ""
	}
	return fmt.Sprint(r.GetExitCode())
}

// took returns how long a run has run.
func took(env *cli.Env, r *v1.Run) string {
	switch {
	case r.GetStarted() == nil:
		return ""
	case r.GetEnded() == nil:
		return output.Short(env.Now().Sub(r.GetStarted().AsTime()))
	}
	return output.Milliseconds(uint32(r.GetEnded().AsTime().Sub(r.GetStarted().AsTime()).Milliseconds()))
}

func shorten(text string) string {
	if letters := []rune(text); len(letters) > commandWidth {
		return string(letters[:commandWidth-1]) + "…"
	}
	return text
}
