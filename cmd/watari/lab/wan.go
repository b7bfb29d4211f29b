package lab

// wan.go - watari lab wan: shapes and cuts the WAN between sites.

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
	"watari/lab"
)

func (v *verbs) wan() *cobra.Command {
	return cli.Noun(&cobra.Command{Use: "wan", Short: "The network between a lab's sites: show, set, cut, heal, nat",
		Example: "  watari lab wan set 50ms,100mbit,0.5%\n  watari lab wan cut b\n  watari lab wan heal"},
		v.wanShow(), v.wanSet(), v.wanNAT(),
		v.wanConnect("cut", "Cut sites off the WAN (all, if none is named): packets vanish silently", (*lab.Lab).WANCut),
		v.wanConnect("heal", "End the cut of sites (of all, if none is named)", (*lab.Lab).WANHeal))
}

func (v *verbs) wanShow() *cobra.Command {
	return &cobra.Command{
		Use:               "show",
		Short:             "Show the shape of the WAN, and which sites are cut",
		Example:           "  watari lab wan show",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: v.Run(func(context.Context, []string) error {
			l, err := v.open()
			if err != nil {
				return err
			}
			return v.showWAN(l)
		}),
	}
}

func (v *verbs) showWAN(l *lab.Lab) error {
	s, err := l.Status()
	if err != nil {
		return err
	}
	return v.show(s, func(w io.Writer) {
		output.Fields(w, [2]string{"wan", s.WAN}, [2]string{"shaped by", s.Shaper}, [2]string{"behind NAT", strings.Join(s.NAT, ", ")})
		table := output.NewTable("SITE", "LAN", "WAN")
		for _, site := range s.Sites {
			state := "connected"
			if site.Cut {
				state = "cut"
			}
			table.Row(site.Name, site.LAN, state)
		}
		table.Write(w)
	})
}

func (v *verbs) wanSet() *cobra.Command {
	return &cobra.Command{
		Use:   "set ROUND-TRIP,RATE,LOSS",
		Short: "Shape the WAN",
		Long: `Set the shape of the WAN. The round trip (20ms) is added between two sites, half in each direction. The rate (200mbit)
is the bandwidth of each site in each direction. The loss (1%) is the probability that a packet between two sites is lost.
A part that is not given is not limited. "none" removes all limits, and the sites are joined at full speed.`,
		Example:           "  watari lab wan set 50ms,100mbit,0.5%\n  watari lab wan set none",
		Args:              cli.Args("WAN"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: v.Run(func(ctx context.Context, args []string) error {
			shape, err := lab.ParseWAN(args[0])
			if err != nil {
				return cli.Usagef("%v", err)
			}
			l, err := v.open()
			if err != nil {
				return err
			}
			if err := l.WANSet(ctx, shape); err != nil {
				return err
			}
			return v.showWAN(l)
		}),
	}
}

func (v *verbs) wanNAT() *cobra.Command {
	return &cobra.Command{
		Use:   "nat [SITE|HOST...]",
		Short: "Put sites and hosts behind NAT, and no others: they only dial out to other sites",
		Long: `Put sites and hosts behind NAT, and no others. Their site's router translates their addresses towards other sites, and
lets nothing in to them that they have not asked for. Without arguments, none is behind NAT.`,
		Example:           "  watari lab wan nat b\n  watari lab wan nat a1 b\n  watari lab wan nat",
		ValidArgsFunction: v.completeSitesAndHosts,
		RunE: v.Run(func(ctx context.Context, args []string) error {
			l, err := v.open()
			if err != nil {
				return err
			}
			if err := l.WANNAT(ctx, args...); err != nil {
				return err
			}
			return v.showWAN(l)
		}),
	}
}

func (v *verbs) wanConnect(use, short string, act func(*lab.Lab, context.Context, ...string) error) *cobra.Command {
	return &cobra.Command{
		Use:               use + " [SITE...]",
		Short:             short,
		Example:           "  watari lab wan " + use + " b",
		ValidArgsFunction: v.completeSites,
		RunE: v.Run(func(ctx context.Context, args []string) error {
			l, err := v.open()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				args = l.Sites()
			}
			if err := act(l, ctx, args...); err != nil {
				return err
			}
			return v.showWAN(l)
		}),
	}
}
