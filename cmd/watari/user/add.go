package user

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
)

func newAdd(env *cli.Env) *cobra.Command {
	var admin bool
	var vcpus uint32
	var memory string
	command := &cobra.Command{
		Use:   "add USER",
		Short: "Add a user and make a token for logging in",
		Long: "Add a user and print a token. With the token the user gets a certificate, once: " +
			"`watari login --manager URL --token TOKEN`.",
		Example:           "  watari user add aiko --vcpus 16 --memory 32G\n  watari user add ops --admin",
		Args:              cli.Args("USER"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("user", args[0]); err != nil {
				return err
			}
			request := &v1.AddUserRequest{Name: args[0], Role: v1.Role_ROLE_USER, Quota: &v1.Quota{Vcpus: vcpus}}
			if admin {
				request.Role = v1.Role_ROLE_ADMIN
			}
			if memory != "" {
				var err error
				if request.Quota.MemoryBytes, err = output.ParseSize(memory); err != nil {
					return cli.Usagef("--memory: %v", err)
				}
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			response, err := c.AddUser(ctx, connect.NewRequest(request))
			if err != nil {
				return fmt.Errorf("add user %s: %w", args[0], err)
			}
			return env.Show(response.Msg, func(w io.Writer) {
				env.Notef("user %s is added; the token is valid once: watari login --manager %s --token TOKEN", args[0], c.Advertised(ctx))
				fmt.Fprintln(w, response.Msg.Token)
			})
		}),
	}
	command.Flags().BoolVar(&admin, "admin", false, "make the user an administrator")
	command.Flags().Uint32Var(&vcpus, "vcpus", 0, "maximum of virtual CPUs of all the user's clusters together (default: no limit)")
	command.Flags().StringVar(&memory, "memory", "", "maximum memory of all the user's clusters together, as in 32G (default: no limit)")
	return command
}
