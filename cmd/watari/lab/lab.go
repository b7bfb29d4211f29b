// Package lab holds the commands about labs: several sites and hosts on one machine.
package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
	"watari/lab"
)

// DefaultName is the name of the lab that commands use without --name.
const DefaultName = "default"

// verbs holds what the commands share.
type verbs struct {
	*cli.Env
	name string // --name
}

// New returns `watari lab`.
func New(env *cli.Env) *cobra.Command {
	v := &verbs{Env: env}
	noun := cli.Noun(&cobra.Command{
		Use:     "lab",
		Aliases: []string{"labs"},
		Short:   "Labs, several sites and hosts on this machine: up, down, status, wan, exec, host, owner",
		Long: `A lab runs several sites with several hosts each on this machine, for trying and testing Watari.
Each host is a set of namespaces with its own libvirt daemon, agent, addresses and files, or a virtual machine (a whole
host). Each site is a LAN. A WAN joins the sites. Its bandwidth, delay and loss can be set, and sites can be cut off
it.
A lab needs root, and a manager on this machine (watari up) that its hosts join.`,
		Example: "  watari lab up --sites 2 --hosts 2 --wan 20ms,200mbit\n  watari lab wan cut b\n  watari lab exec a1 -- virsh list",
	}, v.up(), v.down(), v.status(), v.list(), v.exec(), v.host(), v.owner(), v.wan())
	noun.PersistentFlags().StringVar(&v.name, "name", DefaultName, "the lab's name")
	_ = noun.RegisterFlagCompletionFunc("name", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := lab.List()
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	return noun
}

func (v *verbs) open() (*lab.Lab, error) {
	l, err := lab.Open(v.name)
	if errors.Is(err, lab.ErrNotFound) {
		return nil, fmt.Errorf("there is no lab %q; `watari lab up` makes one, `watari lab list` shows all labs", v.name)
	}
	if err != nil {
		return nil, err
	}
	l.OnProgress(v.say)
	return l, nil
}

// show writes a value in the requested format.
func (v *verbs) show(value any, table func(io.Writer)) error {
	if v.Output != output.FormatJSON && v.Output != output.FormatYAML {
		table(v.Out)
		return nil
	}
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if v.Output == output.FormatYAML {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
	}
	_, err = v.Out.Write(text)
	return err
}

// completeHosts completes the first argument with the lab's hosts.
func (v *verbs) completeHosts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	l, err := lab.Open(v.name)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, h := range l.Hosts() {
		names = append(names, h.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSitesAndHosts completes any argument with the lab's sites and hosts.
func (v *verbs) completeSitesAndHosts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	l, err := lab.Open(v.name)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := l.Sites()
	for _, host := range l.Hosts() {
		names = append(names, host.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSites completes any argument with the lab's sites.
func (v *verbs) completeSites(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	l, err := lab.Open(v.name)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return l.Sites(), cobra.ShellCompDirectiveNoFileComp
}
