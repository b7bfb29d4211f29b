package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"watari/lab"
)

func status(name *string) *cobra.Command {
	asJSON := false
	command := &cobra.Command{
		Use:   "status",
		Short: "Show a lab's sites, hosts, daemons and WAN",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			l, err := open(*name)
			if err != nil {
				return err
			}
			s, err := l.Status()
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(command.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(s)
			}
			return printStatus(command.OutOrStdout(), s)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return command
}

func printStatus(w io.Writer, s lab.Status) error {
	fmt.Fprintf(w, "Lab %s, %s, files in %s\n", s.Name, s.Prefix, s.Dir)
	fmt.Fprintf(w, "This machine in the lab: %s\nWAN: %s, shaped by: %s\n\n", s.RootEnd, s.WAN, s.Shaper)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SITE\tHOST\tADDRESS\tSTATE\tDAEMONS")
	for _, site := range s.Sites {
		label := site.Name
		if site.Cut {
			label += " (cut)"
		}
		for _, h := range site.Hosts {
			state := "down"
			if h.Running {
				state = fmt.Sprintf("up, pid %d", h.PID)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", label, h.Name, h.Address, state, describeDaemons(h.Daemons))
		}
	}
	return table.Flush()
}

func describeDaemons(daemons []lab.DaemonStatus) string {
	var words []string
	for _, d := range daemons {
		word := d.Name
		switch {
		case d.PID == 0:
			word += " down: " + d.Error
		case d.Starts > 1:
			word += fmt.Sprintf(" (start %d, %s ago)", d.Starts, time.Since(d.Since).Round(time.Second))
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func list() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the labs on this machine",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			names, err := lab.List()
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "NAME\tSITES\tHOSTS UP\tWAN\tPREFIX")
			for _, name := range names {
				l, err := lab.Open(name)
				if err != nil {
					fmt.Fprintf(table, "%s\t\t\t\t%v\n", name, err)
					continue
				}
				s, err := l.Status()
				if err != nil {
					return err
				}
				hosts, running := 0, 0
				for _, site := range s.Sites {
					for _, h := range site.Hosts {
						hosts++
						if h.Running {
							running++
						}
					}
				}
				fmt.Fprintf(table, "%s\t%d\t%d of %d\t%s\t%s\n", name, len(s.Sites), running, hosts, s.WAN, s.Prefix)
			}
			return table.Flush()
		},
	}
}
