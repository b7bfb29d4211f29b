// Package user holds the commands about the people and programs that may call the manager.
package user

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

// New returns `watari user`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "user",
		Aliases: []string{"users"},
		Short:   "Users of the manager: add, list, disable, revoke, remove",
		Long: "A user sees and changes only the user's own clusters, within a quota. An administrator sees and changes everything. " +
			"The certificate that `watari login` gets identifies the user.",
		Example: "  watari user add aiko --vcpus 16 --memory 32G\n  watari user list",
	}, newAdd(env), newList(env), newDisable(env), newRevoke(env), newRemove(env))
}

func newList(env *cli.Env) *cobra.Command {
	return cli.List[*v1.User]{Things: "users", Short: "List the users and their quotas", Example: "  watari user list",
		Get: func(ctx context.Context, c *client.Client) ([]*v1.User, error) {
			return client.List(ctx, c.ListUsers, &v1.ListUsersRequest{}, (*v1.ListUsersResponse).GetUsers)
		},
		Table: table}.Command(env)
}

func table(w io.Writer, env *cli.Env, users []*v1.User) {
	t := output.NewTable("NAME", "ROLE", "CALLS", "VCPUS", "MEMORY", "VOLUMES", "IMAGES", "RUNS", "OUTPUT", "AGE")
	for _, u := range users {
		q := u.GetQuota()
		t.Row(u.GetMeta().GetName(), output.State(u.GetRole()), calls(u), limit(q.GetVcpus()), limitSize(q.GetMemoryBytes()),
			limitSize(q.GetVolumeBytes()), limitSize(q.GetImageBytes()), limit(q.GetRuns()), limitSize(q.GetOutputBytes()), output.Age(env.Now(), u.GetMeta().GetCreated()))
	}
	t.Write(w)
}

// calls describes whether a user's calls are accepted.
func calls(u *v1.User) string {
	if u.GetDisabled() != nil {
		return "refused"
	}
	return "honoured"
}

func limit(n uint32) string {
	if n == 0 {
		return "no limit"
	}
	return fmt.Sprint(n)
}

func limitSize(bytes uint64) string {
	if bytes == 0 {
		return "no limit"
	}
	return output.Size(bytes)
}

func newRemove(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "remove USER",
		Aliases:           []string{"rm", "delete"},
		Short:             "Remove a user and revoke the user's certificate",
		Example:           "  watari user remove aiko",
		Args:              cli.Args("USER"),
		ValidArgsFunction: env.Complete(cli.Users),
		RunE: env.Removal("user", func(ctx context.Context, c *client.Client, name string) error {
			_, err := c.RemoveUser(ctx, connect.NewRequest(&v1.RemoveUserRequest{Name: name}))
			return err
		}),
	}
}
