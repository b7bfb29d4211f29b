package lab

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"watari/lab"
)

func wan(name *string) *cobra.Command {
	noun := &cobra.Command{Use: "wan", Short: "Shape, cut and heal the network between a lab's sites"}
	noun.AddCommand(wanShow(name), wanSet(name),
		wanConnect(name, "cut", "Cut sites off the WAN (all, if none is named): packets vanish silently", (*lab.Lab).WANCut),
		wanConnect(name, "heal", "End the cut of sites (of all, if none is named)", (*lab.Lab).WANHeal))
	return noun
}

func wanShow(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show how the WAN is shaped, and which sites are cut", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			l, err := open(*name)
			if err != nil {
				return err
			}
			return showWAN(command.OutOrStdout(), l)
		},
	}
}

func showWAN(w io.Writer, l *lab.Lab) error {
	s, err := l.Status()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "WAN: %s, shaped by: %s\n", s.WAN, s.Shaper)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SITE\tLAN\tWAN")
	for _, site := range s.Sites {
		state := "connected"
		if site.Cut {
			state = "cut"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", site.Name, site.LAN, state)
	}
	return table.Flush()
}

func wanSet(name *string) *cobra.Command {
	return &cobra.Command{
		Use:     "set ROUND-TRIP,RATE,LOSS",
		Short:   "Shape the WAN anew; what is left out is not limited; none: unshaped",
		Example: "  watari lab wan set 50ms,100mbit,0.5%\n  watari lab wan set none",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			ctx, stop := interruptible(command)
			defer stop()
			shape, err := lab.ParseWAN(args[0])
			if err != nil {
				return err
			}
			l, err := open(*name)
			if err != nil {
				return err
			}
			if err := l.WANSet(ctx, shape); err != nil {
				return err
			}
			return showWAN(command.OutOrStdout(), l)
		},
	}
}

func wanConnect(name *string, use, short string, act func(*lab.Lab, ...string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " [SITE...]", Short: short,
		RunE: func(command *cobra.Command, args []string) error {
			l, err := open(*name)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				args = l.Sites()
			}
			if err := act(l, args...); err != nil {
				return err
			}
			return showWAN(command.OutOrStdout(), l)
		},
	}
}
