package host

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

func newTrust(env *cli.Env) *cobra.Command {
	var group string
	var none bool
	command := &cobra.Command{
		Use:   "trust HOST",
		Short: "Set with which other hosts a host shares templates",
		Long: "Put a host into a trust group. Guests are forked from templates, and the hosts of a group fetch templates from " +
			"each other. Root on a host that makes a template has root's power in all guests that are forked from it. " +
			"The hosts that one administrator joins form a group with the administrator's name. A host without a group " +
			"makes all its templates itself. When a host leaves a group, it deletes the templates that it fetched there.",
		Example:           "  watari host trust a1 --group physics\n  watari host trust a1 --none",
		Args:              cli.Args("HOST"),
		ValidArgsFunction: env.Complete(cli.Hosts),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			return trust(ctx, env, args[0], group, none)
		}),
	}
	command.Flags().StringVar(&group, "group", "", "the host's new trust group")
	command.Flags().BoolVar(&none, "none", false, "the host shares templates with no other host")
	return command
}

func trust(ctx context.Context, env *cli.Env, name, group string, none bool) error {
	if err := cli.CheckName("host", name); err != nil {
		return err
	}
	if (group == "") != none {
		return cli.Usagef("give either --group GROUP or --none")
	}
	if group != "" {
		if err := cli.CheckName("trust group", group); err != nil {
			return err
		}
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	response, err := c.TrustHost(ctx, connect.NewRequest(&v1.TrustHostRequest{Name: name, Group: group}))
	if err != nil {
		return fmt.Errorf("set the trust group of host %s: %w", name, err)
	}
	if none {
		return env.Done(response.Msg.Host, "host %s trusts no other host: it makes all its templates itself", name)
	}
	return env.Done(response.Msg.Host, "host %s is in trust group %s", name, group)
}
