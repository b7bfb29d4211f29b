package policy

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newShow(env *cli.Env) *cobra.Command {
	var useDefault bool
	command := &cobra.Command{
		Use:   "show",
		Short: "Print the policy in force, an earlier version, or the default policy",
		Long: "Print the text of the policy in force, of an earlier version, or of the policy that new installations have. Standard " +
			"output is exactly the text, so that `watari policy apply` takes it again. Who applied it, and when, goes to standard " +
			"error. Only administrators can do this.",
		Example: "  watari policy show > policy.yaml\n  watari policy show --version 3\n" +
			"  watari policy show --default",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	number := versionFlag(env, command, "version to print (default: the one in force)")
	command.Flags().BoolVar(&useDefault, "default", false, "print the policy that new installations have")
	command.RunE = env.Run(func(ctx context.Context, _ []string) error {
		wanted, err := number()
		if err != nil {
			return err
		}
		if wanted > 0 && useDefault {
			return cli.Usagef("--version and --default exclude each other: the default policy is no version")
		}
		c, err := env.Client()
		if err != nil {
			return err
		}
		if useDefault {
			return showDefault(ctx, env, c)
		}
		return show(ctx, env, c, wanted)
	})
	return command
}

func show(ctx context.Context, env *cli.Env, c *client.Client, wanted uint64) error {
	p, err := version(ctx, c, wanted)
	if err != nil {
		return err
	}
	if p == nil {
		return env.Done(&v1.Policy{}, noneInForce)
	}
	return env.Show(p, func(w io.Writer) {
		env.Notef("%s", origin(env, p))
		fmt.Fprint(w, p.Text)
	})
}

func showDefault(ctx context.Context, env *cli.Env, c *client.Client) error {
	policies, err := list(ctx, c, &v1.ListPoliciesRequest{UseDefault: true})
	if err != nil {
		return err
	}
	if len(policies) == 0 {
		return errors.New("the manager has no default policy; compare `watari version` with `watari status`")
	}
	return env.Show(policies[0], func(w io.Writer) {
		env.Notef("the default policy; `watari policy apply --default` puts it in force")
		fmt.Fprint(w, policies[0].Text)
	})
}

// origin describes where a version comes from: "policy version 4, applied by admin at 14:05:12: owners are back sooner".
func origin(env *cli.Env, p *v1.Policy) string {
	text := fmt.Sprintf("policy version %d, applied by %s at %s", p.GetVersion(), p.GetMeta().GetOwner(), output.Time(env.Now(), p.GetMeta().GetCreated()))
	if p.GetNote() != "" {
		text += ": " + p.GetNote()
	}
	return text
}
