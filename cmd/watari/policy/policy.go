// Package policy holds the commands about policies: the rules by which guests move automatically.
package policy

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

const long = `A policy says when guests move without anybody asking. Guests leave a host when its owner is back, and the host
takes guests again when the owner has been away for long enough. Hosts have no guests in maintenance windows, and guests
leave them before a window begins. Guests move to hosts where they wait less for processors, so that hosts become free, or so
that a cluster is spread more evenly. If no policy is in force, guests move only if somebody asks.

A policy is a YAML text. Each text that is applied becomes a new version, and the highest version is in force. Earlier
versions are kept, so that "watari policy rollback" can put them in force again. "watari policy test" says what a policy
would have done lately, before it is applied.

Only administrators see and change policies. "watari explain host" says what the policy in force makes of a host.`

// New returns `watari policy`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "policy",
		Aliases: []string{"policies"},
		Short:   "Policies, the rules by which guests move: apply, show, diff, history, test, rollback",
		Long:    long,
		Example: "  watari policy show > policy.yaml\n  watari policy test policy.yaml --since 7d\n  watari policy apply policy.yaml --note 'owners are back sooner'",
	}, newApply(env), newShow(env), newDiff(env), newHistory(env), newTest(env), newRollback(env))
}

// noneInForce explains the situation without a policy.
const noneInForce = "no policy is in force: guests move only if somebody asks; `watari policy apply --default` puts the default policy in force"

// list fetches versions of the policy, the one in force first.
func list(ctx context.Context, c *client.Client, request *v1.ListPoliciesRequest) ([]*v1.Policy, error) {
	policies, err := client.List(ctx, c.ListPolicies, request, (*v1.ListPoliciesResponse).GetPolicies)
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	return policies, nil
}

// version fetches a version of the policy; 0: the one in force. It returns nil if version is 0 and none is in force.
func version(ctx context.Context, c *client.Client, version uint64) (*v1.Policy, error) {
	policies, err := list(ctx, c, &v1.ListPoliciesRequest{Version: version})
	switch {
	case connect.CodeOf(err) == connect.CodeNotFound || err == nil && len(policies) == 0 && version > 0:
		return nil, fmt.Errorf("there is no policy version %d; `watari policy history` lists the versions that are kept", version)
	case err != nil || len(policies) == 0:
		return nil, err
	}
	return policies[0], nil
}

// apply puts a policy in force, and prints that.
func apply(ctx context.Context, c *client.Client, request *v1.ApplyPolicyRequest) (*v1.ApplyPolicyResponse, error) {
	response, err := c.ApplyPolicy(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, err
	}
	if response.Msg.GetPolicy() == nil {
		return nil, errors.New("the manager's answer has no policy; `watari policy history` says which one is in force")
	}
	return response.Msg, nil
}

// parseVersion parses the number of a version.
func parseVersion(text string) (uint64, error) {
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil || number == 0 {
		return 0, cli.Usagef("version %q: give a number, as in 3; `watari policy history` lists the versions", text)
	}
	return number, nil
}

// versionFlag gives a command the flag --version. The returned function returns its value; 0: it is not given.
func versionFlag(env *cli.Env, command *cobra.Command, usage string) func() (uint64, error) {
	var text string
	command.Flags().StringVar(&text, "version", "", usage)
	env.CompleteFlag(command, "version", cli.PolicyVersions)
	return func() (uint64, error) {
		if !command.Flags().Changed("version") {
			return 0, nil
		}
		return parseVersion(text)
	}
}
