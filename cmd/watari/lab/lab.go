// Package lab is the noun `watari lab`: several sites and hosts on this one machine.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"watari/lab"
)

// DefaultName is the lab that commands mean unless --name says otherwise.
const DefaultName = "default"

// Command is `watari lab` with its verbs.
func Command() *cobra.Command {
	name := new(string)
	noun := &cobra.Command{
		Use:   "lab",
		Short: "Several sites and hosts on this one machine",
		Long: `A lab runs several sites with several hosts each on this one machine, to try Watari and to test it.
Each host is a set of namespaces with its own libvirt daemon, agent, addresses and files; each site is a LAN; the
sites are joined by a WAN whose bandwidth, delay and loss can be set, and which can be cut.
A lab needs root, and a manager on this machine (watari up) for its hosts to join.`,
	}
	noun.PersistentFlags().StringVar(name, "name", DefaultName, "the lab's name")
	noun.AddCommand(up(name), down(name), status(name), list(), exec(name), host(name), wan(name))
	noun.AddCommand(helpers()...)
	return noun
}

// helpers are the processes that a lab starts for itself.
func helpers() []*cobra.Command {
	var verbs []*cobra.Command
	for _, verb := range []string{"host-init", "wan-link"} {
		verbs = append(verbs, &cobra.Command{
			Use: verb, Hidden: true, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error {
				lab.Helper(append([]string{"watari", "lab", verb}, args...))
				return errors.New("is started by watari lab up alone")
			},
		})
	}
	return verbs
}

// interruptible gives a context that ends at Ctrl-C.
func interruptible(command *cobra.Command) (context.Context, func()) {
	parent := command.Context()
	if parent == nil {
		parent = context.Background()
	}
	return signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
}

func progressTo(w io.Writer) func(string) {
	return func(line string) { fmt.Fprintln(w, line) }
}

func open(name string) (*lab.Lab, error) {
	l, err := lab.Open(name)
	if errors.Is(err, lab.ErrNotFound) {
		return nil, fmt.Errorf("there is no lab %q; `watari lab up` makes one, `watari lab list` shows those there are", name)
	}
	return l, err
}
