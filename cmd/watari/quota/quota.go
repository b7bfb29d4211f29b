// Package quota holds the commands about users' quotas.
package quota

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

// New returns `watari quota`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "quota",
		Short:   "Quotas, the limits of users' clusters: set",
		Long:    "A quota limits the virtual CPUs and the memory of all of a user's clusters together, and the sizes of the volumes. `watari user list` shows the quotas.",
		Example: "  watari quota set aiko --vcpus 16 --memory 32G",
	}, newSet(env))
}

func newSet(env *cli.Env) *cobra.Command {
	var vcpus uint32
	var memory, volumes string
	command := &cobra.Command{
		Use:   "set USER",
		Short: "Set a user's quota",
		Long: "Set a user's quota. A limit that is not given is not changed; 0 removes the limit. Clusters that exceed a new " +
			"limit stay, but the user cannot make new ones until there is room.",
		Example:           "  watari quota set aiko --vcpus 16 --memory 32G\n  watari quota set aiko --memory 0",
		Args:              cli.Args("USER"),
		ValidArgsFunction: env.Complete(cli.Users),
	}
	command.RunE = env.Run(func(ctx context.Context, args []string) error {
		if err := cli.CheckName("user", args[0]); err != nil {
			return err
		}
		given := command.Flags()
		if !given.Changed("vcpus") && !given.Changed("memory") && !given.Changed("volumes") {
			return cli.Usagef("name a limit to set: --vcpus, --memory, --volumes")
		}
		memoryBytes, err := limit("memory", memory)
		if err != nil {
			return err
		}
		volumeBytes, err := limit("volumes", volumes)
		if err != nil {
			return err
		}
		c, err := env.Client()
		if err != nil {
			return err
		}
		users, err := c.ListUsers(ctx, connect.NewRequest(&v1.ListUsersRequest{}))
		if err != nil {
			return fmt.Errorf("set the quota of %s: %w", args[0], err)
		}
		quota := &v1.Quota{}
		for _, user := range users.Msg.Users {
			if user.GetMeta().GetName() == args[0] && user.Quota != nil {
				quota = user.Quota
			}
		}
		if given.Changed("vcpus") {
			quota.Vcpus = vcpus
		}
		if given.Changed("memory") {
			quota.MemoryBytes = memoryBytes
		}
		if given.Changed("volumes") {
			quota.VolumeBytes = volumeBytes
		}
		response, err := c.SetQuota(ctx, connect.NewRequest(&v1.SetQuotaRequest{Name: args[0], Quota: quota}))
		if err != nil {
			return fmt.Errorf("set the quota of %s: %w", args[0], err)
		}
		return env.Show(response.Msg.User, func(io.Writer) {
			env.Notef("quota of %s: %d vCPUs, %s of memory, volumes of %s (0: no limit)", args[0], quota.Vcpus, output.Size(quota.MemoryBytes), output.Size(quota.VolumeBytes))
		})
	})
	command.Flags().Uint32Var(&vcpus, "vcpus", 0, "maximum of virtual CPUs; 0: no limit")
	command.Flags().StringVar(&memory, "memory", "", "maximum memory, as in 32G; 0: no limit")
	command.Flags().StringVar(&volumes, "volumes", "", "maximum size of all volumes, as in 500G; 0: no limit")
	return command
}

// limit parses a limit in bytes; empty or 0 is none.
func limit(flag, text string) (bytes uint64, err error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	if bytes, err = output.ParseSize(text); err != nil {
		return 0, cli.Usagef("--%s: %v", flag, err)
	}
	return bytes, nil
}
