// Package site holds `watari site`: places whose hosts share a LAN.
package site

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

// New returns `watari site`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "site",
		Aliases: []string{"sites"},
		Short:   "Sites, places whose hosts share a LAN: list, set",
		Long: "A site is a place whose hosts share a LAN; a host says at which site it is, unless its token does. Traffic between sites is encrypted by WireGuard. " +
			"So is that within a site, unless an administrator trusts its LAN.",
		Example: "  watari site list\n  watari site set cellar --trusted-lan",
	}, newList(env), newSet(env))
}

func newList(env *cli.Env) *cobra.Command {
	return cli.List[*v1.Site]{Things: "sites", Short: "List the sites and whether their LANs are trusted", Example: "  watari site list",
		Get: func(ctx context.Context, c *client.Client) ([]*v1.Site, error) {
			return client.List(ctx, c.ListSites, &v1.ListSitesRequest{}, (*v1.ListSitesResponse).GetSites)
		},
		Table: func(w io.Writer, _ *cli.Env, sites []*v1.Site) {
			t := output.NewTable("NAME", "LAN", "HOSTS")
			for _, s := range sites {
				t.Row(s.GetMeta().GetName(), lan(s), strings.Join(s.GetHosts(), ", "))
			}
			t.Write(w)
		}}.Command(env)
}

func lan(s *v1.Site) string {
	if s.GetTrustedLan() {
		return "trusted"
	}
	return "encrypted"
}

func newSet(env *cli.Env) *cobra.Command {
	var trusted bool
	command := &cobra.Command{
		Use:   "set SITE",
		Short: "Say whether the LAN of a site is trusted",
		Long: "Say whether the LAN of a site is trusted. On a trusted LAN, hosts exchange their guests' messages without encryption, which is fastest. But whoever can send and " +
			"receive there can read these messages, and send others as any guest. The change takes effect at once; connections between guests survive it. " +
			"A site that has no hosts yet can be set, too.",
		Example:           "  watari site set cellar --trusted-lan\n  watari site set cellar --trusted-lan=false",
		Args:              cli.Args("SITE"),
		ValidArgsFunction: env.Complete(cli.Sites),
	}
	command.RunE = env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
		if err := cli.CheckName("site", args[0]); err != nil {
			return err
		}
		if !command.Flags().Changed("trusted-lan") {
			return cli.Usagef("say what to set: --trusted-lan or --trusted-lan=false")
		}
		response, err := c.SetSite(ctx, connect.NewRequest(&v1.SetSiteRequest{Name: args[0], TrustedLan: trusted}))
		if err != nil {
			return fmt.Errorf("set site %s: %w", args[0], err)
		}
		what := "trusted: traffic between its hosts is not encrypted"
		if !trusted {
			what = "not trusted: traffic between its hosts goes through WireGuard"
		}
		return env.Done(response.Msg.Site, "the LAN of site %s is %s", args[0], what)
	})
	command.Flags().BoolVar(&trusted, "trusted-lan", false, "hosts of the site talk to each other without encryption")
	return command
}
