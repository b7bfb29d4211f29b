package policy

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

// noteLimit is the longest note, in bytes.
const noteLimit = 200

func newApply(env *cli.Env) *cobra.Command {
	var note string
	var useDefault bool
	command := &cobra.Command{
		Use:   "apply [FILE|-]",
		Short: "Put a policy in force, as a new version",
		Long: "Put the policy of a file in force, as a new version. \"-\" is standard input. A policy with an error is refused with " +
			"the line of the error, and the policy in force stays. With --default, the policy that new installations have is " +
			"put in force.\n\n" +
			"`watari policy diff` shows what changes, `watari policy test` what it would have done, and `watari policy rollback` " +
			"undoes it. Only administrators can do this.",
		Example: "  watari policy apply policy.yaml --note 'owners are back sooner'\n" +
			"  watari policy apply --default\n  watari policy show --version 3 | watari policy apply -",
		Args:              cli.ArgsBetween(0, "FILE"),
		ValidArgsFunction: cli.CompleteFile,
		RunE: env.Run(func(ctx context.Context, args []string) error {
			switch {
			case useDefault == (len(args) > 0):
				return cli.Usagef("give either a FILE or --default")
			case len(note) > noteLimit:
				return cli.Usagef("--note has %d bytes: give at most %d", len(note), noteLimit)
			case useDefault:
				return applyDefault(ctx, env, note)
			}
			return applyFile(ctx, env, args[0], note)
		}),
	}
	command.Flags().StringVar(&note, "note", "", "what changes, and why, for the history")
	command.Flags().BoolVar(&useDefault, "default", false, "put the policy in force that new installations have")
	return command
}

func applyDefault(ctx context.Context, env *cli.Env, note string) error {
	c, err := env.Client()
	if err != nil {
		return err
	}
	response, err := apply(ctx, c, &v1.ApplyPolicyRequest{UseDefault: true, Note: note})
	if err != nil {
		return fmt.Errorf("apply the default policy: %w", err)
	}
	return inForce(env, response)
}

func applyFile(ctx context.Context, env *cli.Env, path, note string) error {
	from, err := readFile(ctx, env, path)
	if err != nil {
		return err
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	response, err := apply(ctx, c, &v1.ApplyPolicyRequest{Text: from.text, Note: note})
	if err != nil {
		return from.refusal("apply", err)
	}
	return inForce(env, response)
}

// inForce says which version is in force now.
func inForce(env *cli.Env, response *v1.ApplyPolicyResponse) error {
	if response.GetUnchanged() {
		return env.Done(response.Policy, "policy version %d is in force already, with the same text", response.Policy.Version)
	}
	return env.Done(response.Policy, "policy version %d is in force", response.Policy.Version)
}
