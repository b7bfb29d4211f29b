package lab

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"watari/lab"
)

func up(name *string) *cobra.Command {
	o := lab.Options{}
	wan := ""
	command := &cobra.Command{
		Use:   "up",
		Short: "Make a lab, or finish one that was left half made",
		Long: `Make a lab, or finish one that was left half made. Each host's agent joins the manager of this machine, found by
the client config, unless --manager and --token name another; or pass --agent=false for hosts without agents.`,
		Example: "  watari lab up --sites 2 --hosts 2 --wan 20ms,200mbit",
		Args:    cobra.NoArgs,
	}
	flags := command.Flags()
	flags.IntVar(&o.Sites, "sites", 2, "number of sites")
	flags.IntVar(&o.Hosts, "hosts", 2, "number of hosts on each site")
	flags.StringVar(&wan, "wan", "", "round trip, bandwidth and loss between sites: 20ms,200mbit,1% (each may be left out); none: unshaped")
	flags.BoolVar(&o.Agent, "agent", true, "start an agent on each host")
	flags.StringVar(&o.Manager, "manager", "", "the URL of the manager, as the hosts reach it")
	flags.StringSliceVar(&o.Tokens, "token", nil, "join tokens, one for each host")
	command.RunE = func(command *cobra.Command, _ []string) error {
		ctx, stop := interruptible(command)
		defer stop()
		o.Name = *name
		o.Progress = progressTo(command.ErrOrStderr())
		if command.Flags().Changed("wan") {
			w, err := lab.ParseWAN(wan)
			if err != nil {
				return err
			}
			o.WAN = &w
		}
		if (o.Manager == "") != (len(o.Tokens) == 0) {
			return errors.New("--manager and --token go together: a host that joins needs both")
		}
		if o.Manager == "" {
			o.TokenFunc = tokenFromManager
		}
		l, err := lab.Up(ctx, o)
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("interrupted: `watari lab up` goes on from here, `watari lab down` removes what was made (%w)", err)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(command.OutOrStdout(), "Lab %s is up: %d sites of %d hosts; this machine is %s to them.\n",
			l.Name(), o.Sites, o.Hosts, l.RootEnd())
		return nil
	}
	return command
}

func down(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove every trace of a lab, also of one that crashed",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := interruptible(command)
			defer stop()
			removed := 0
			say := progressTo(command.OutOrStdout())
			err := lab.Down(ctx, *name, func(line string) { removed++; say(line) })
			if err == nil && removed == 0 {
				say(fmt.Sprintf("There is nothing of lab %s.", *name))
			}
			return err
		},
	}
}
