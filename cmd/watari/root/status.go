package root

import (
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
)

func newStatus(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "status",
		Short:             "Show the state of the manager, hosts and guests, and problems",
		Long:              "Show the state of the manager, the hosts, guests, migrations and runs, which version of the policy is in force, as which user the manager knows you, and problems.",
		Example:           "  watari status\n  watari status -o json | jq .problems",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			response, err := c.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
			if err != nil {
				return err
			}
			who, err := c.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{}))
			if err != nil {
				return err
			}
			return env.Show(response.Msg, func(w io.Writer) { describe(w, response.Msg, who.Msg.User) })
		}),
	}
}

// byPolicy describes which version of the policy is in force.
func byPolicy(version uint64) string {
	if version == 0 {
		return "none; guests move only if somebody asks"
	}
	return fmt.Sprintf("version %d", version)
}

func describe(w io.Writer, s *v1.GetStatusResponse, who *v1.User) {
	output.Fields(w,
		[2]string{"manager", fmt.Sprintf("%s leads, version %s", s.GetLeader(), s.GetVersion())},
		[2]string{"you", fmt.Sprintf("%s, %s", who.GetMeta().GetName(), output.State(who.GetRole()))},
		[2]string{"hosts", fmt.Sprintf("%d of %d ready", s.GetHostsReady(), s.GetHosts())},
		[2]string{"clusters", fmt.Sprint(s.GetClusters())},
		[2]string{"guests", fmt.Sprintf("%d of %d running", s.GetGuestsRunning(), s.GetGuests())},
		[2]string{"migrations", fmt.Sprintf("%d under way", s.GetMigrationsActive())},
		[2]string{"runs", fmt.Sprintf("%d under way", s.GetRunsActive())},
		[2]string{"policy", byPolicy(s.GetPolicyVersion())},
		[2]string{"trusted LANs", trusted(s.GetTrustedLans())},
	)
	if len(s.GetProblems()) == 0 {
		fmt.Fprintln(w, "\nAll is well.")
		return
	}
	fmt.Fprintf(w, "\n%s:\n", output.Count(len(s.GetProblems()), "problem"))
	for _, problem := range s.GetProblems() {
		fmt.Fprintf(w, "  %s\n", problem)
	}
}

// trusted names the sites whose LANs are trusted; empty: none is.
func trusted(sites []string) string {
	if len(sites) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: traffic between hosts there is not encrypted (watari site list)", strings.Join(sites, ", "))
}
