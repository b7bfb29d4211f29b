package policy

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newRollback(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "rollback [VERSION]",
		Short: "Put an earlier version of the policy in force again",
		Long: "Put the text of an earlier version in force again, as a new version. Without VERSION it is the version before the one " +
			"in force, so that a second rollback undoes the first. The rollback is refused if another administrator applies a " +
			"policy meanwhile. Only administrators can do this.",
		Example:           "  watari policy rollback\n  watari policy rollback 3",
		Args:              cli.ArgsBetween(0, "VERSION"),
		ValidArgsFunction: env.Complete(cli.PolicyVersions),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			wanted := uint64(0)
			if len(args) > 0 {
				var err error
				if wanted, err = parseVersion(args[0]); err != nil {
					return err
				}
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			return rollback(ctx, env, c, wanted)
		}),
	}
}

// rollback puts a version in force again; 0: the one before the one in force.
func rollback(ctx context.Context, env *cli.Env, c *client.Client, wanted uint64) error {
	policies, err := list(ctx, c, &v1.ListPoliciesRequest{})
	switch {
	case err != nil:
		return err
	case len(policies) == 0:
		return errors.New("no policy is in force, and no earlier version is kept; `watari policy apply` puts one in force")
	case wanted == 0 && len(policies) == 1:
		return fmt.Errorf("no version before version %d is kept; `watari policy apply --default` puts the default policy in force", policies[0].Version)
	case wanted == 0:
		wanted = policies[1].Version
	}
	response, err := apply(ctx, c, &v1.ApplyPolicyRequest{Version: wanted, ExpectVersion: policies[0].Version})
	if err != nil {
		return fmt.Errorf("put policy version %d in force again: %w", wanted, err)
	}
	if response.Unchanged {
		return inForce(env, response)
	}
	return env.Done(response.Policy, "policy version %d is in force, with the text of version %d", response.Policy.Version, wanted)
}
