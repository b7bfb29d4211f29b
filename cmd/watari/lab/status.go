package lab

// status.go - watari lab status and watari lab list.

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
	"watari/lab"
)

func (v *verbs) status() *cobra.Command {
	return &cobra.Command{
		Use:               "status",
		Aliases:           []string{"show"},
		Short:             "Show a lab's sites, hosts, daemons and WAN",
		Example:           "  watari lab status",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: v.Run(func(ctx context.Context, _ []string) error {
			l, err := v.open()
			if err != nil {
				return err
			}
			s, err := l.Status()
			if err != nil {
				return err
			}
			l.AskDaemons(ctx, s)
			return v.show(s, func(w io.Writer) { printStatus(w, s) })
		}),
	}
}

func printStatus(w io.Writer, s lab.Status) {
	output.Fields(w, [2]string{"lab", s.Name}, [2]string{"addresses", s.Prefix}, [2]string{"this machine", s.RootEnd},
		[2]string{"wan", s.WAN}, [2]string{"shaped by", s.Shaper}, [2]string{"files", s.Dir})
	fmt.Fprintln(w)
	table := output.NewTable("SITE", "HOST", "KIND", "ADDRESS", "STATE", "PID", "CPUS", "OWNER", "DAEMONS")
	for _, site := range s.Sites {
		label := site.Name
		if site.Cut {
			label += " (cut)"
		}
		for _, h := range site.Hosts {
			state, pid := "down", ""
			if h.Running {
				state, pid = "up", fmt.Sprint(h.PID)
			}
			daemons := describeDaemons(h.Daemons)
			if h.Running && len(h.Daemons) == 0 {
				daemons = "no answer"
			}
			cpus, owner := "", ""
			if h.CPUs > 0 {
				cpus = fmt.Sprint(h.CPUs)
			}
			if h.Running {
				owner = describeOwner(h.Owner)
			}
			table.Row(label, h.Name, kind(h), h.Address.String(), state, pid, cpus, owner, daemons)
		}
	}
	table.Write(w)
}

func kind(h lab.HostStatus) string {
	if h.Machine == nil {
		return "namespaces"
	}
	return fmt.Sprintf("whole: %s, %s, %s", h.Machine.Suite, output.Size(h.Machine.Memory<<20), output.Count(h.Machine.Cells, "cell"))
}

func describeDaemons(daemons []lab.DaemonStatus) string {
	var words []string
	for _, d := range daemons {
		word := d.Name
		switch {
		case d.PID == 0 && d.Error != "":
			word += " down: " + d.Error
		case d.Starts > 1:
			word += fmt.Sprintf(" (start %d, %s ago)", d.Starts, time.Since(d.Since).Round(time.Second))
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func (v *verbs) list() *cobra.Command {
	return &cobra.Command{
		Use:               "list",
		Aliases:           []string{"ls"},
		Short:             "List the labs on this machine",
		Example:           "  watari lab list",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: v.Run(func(context.Context, []string) error {
			names, err := lab.List()
			if err != nil {
				return err
			}
			all := []lab.Status{}
			table := output.NewTable("NAME", "SITES", "HOSTS UP", "WAN", "ADDRESSES")
			for _, name := range names {
				l, err := lab.Open(name)
				var s lab.Status
				if err == nil {
					s, err = l.Status()
				}
				if err != nil {
					v.Notef("lab %s cannot be shown: %v; `watari lab down --name %s` removes it", name, err, name)
					continue
				}
				all = append(all, s)
				running, hosts := countHosts(s)
				table.Row(name, fmt.Sprint(len(s.Sites)), fmt.Sprintf("%d of %d", running, hosts), s.WAN, s.Prefix)
			}
			return v.show(all, table.Write)
		}),
	}
}

func countHosts(s lab.Status) (running, hosts int) {
	for _, site := range s.Sites {
		for _, h := range site.Hosts {
			hosts++
			if h.Running {
				running++
			}
		}
	}
	return running, hosts
}
