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
		Long:    "A quota limits the virtual CPUs and the memory of all of a user's clusters together, the sizes of volumes and of images, and the number and the output of runs. `watari user list` shows the quotas.",
		Example: "  watari quota set aiko --vcpus 16 --memory 32G",
	}, newSet(env))
}

func newSet(env *cli.Env) *cobra.Command {
	var vcpus, runs uint32
	sizes := map[string]*string{"memory": new(string), "volumes": new(string), "images": new(string), "run-output": new(string)}
	command := &cobra.Command{
		Use:   "set USER",
		Short: "Set a user's quota",
		Long: "Set a user's quota. A limit that is not given is not changed; 0 removes the limit. What exceeds a new limit stays, but " +
			"the user gets no more of it until there is room.",
		Example:           "  watari quota set aiko --vcpus 16 --memory 32G\n  watari quota set aiko --memory 0",
		Args:              cli.Args("USER"),
		ValidArgsFunction: env.Complete(cli.Users),
	}
	command.RunE = env.Run(func(ctx context.Context, args []string) error {
		if err := cli.CheckName("user", args[0]); err != nil {
			return err
		}
		given := command.Flags()
		bytes, some := map[string]uint64{}, given.Changed("vcpus") || given.Changed("runs")
		for flag, text := range sizes {
			var err error
			if bytes[flag], err = limit(flag, *text); err != nil {
				return err
			}
			some = some || given.Changed(flag)
		}
		if !some {
			return cli.Usagef("name a limit to set: --vcpus, --memory, --volumes, --images, --runs, --run-output")
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
		if given.Changed("runs") {
			quota.Runs = runs
		}
		for flag, field := range map[string]*uint64{"memory": &quota.MemoryBytes, "volumes": &quota.VolumeBytes, "images": &quota.ImageBytes, "run-output": &quota.OutputBytes} {
			if given.Changed(flag) {
				*field = bytes[flag]
			}
		}
		response, err := c.SetQuota(ctx, connect.NewRequest(&v1.SetQuotaRequest{Name: args[0], Quota: quota}))
		if err != nil {
			return fmt.Errorf("set the quota of %s: %w", args[0], err)
		}
		return env.Show(response.Msg.User, func(io.Writer) {
			env.Notef("quota of %s: %d vCPUs, %s of memory, volumes of %s, images of %s, %d runs with output of %s (0: no limit)", args[0], quota.Vcpus,
				output.Size(quota.MemoryBytes), output.Size(quota.VolumeBytes), output.Size(quota.ImageBytes), quota.Runs, output.Size(quota.OutputBytes))
		})
	})
	set := command.Flags()
	set.Uint32Var(&vcpus, "vcpus", 0, "maximum of virtual CPUs; 0: no limit")
	set.StringVar(sizes["memory"], "memory", "", "maximum memory, as in 32G; 0: no limit")
	set.StringVar(sizes["volumes"], "volumes", "", "maximum size of all volumes, as in 500G; 0: no limit")
	set.StringVar(sizes["images"], "images", "", "maximum size of the files of all images and of uploads, as in 50G; 0: no limit")
	set.Uint32Var(&runs, "runs", 0, "maximum of runs that have not ended; 0: no limit")
	set.StringVar(sizes["run-output"], "run-output", "", "maximum size of the output that the manager keeps of all runs, as in 10G; 0: no limit")
	return command
}

// limit parses a limit in bytes; empty or 0 means no limit.
func limit(flag, text string) (bytes uint64, err error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	if bytes, err = output.ParseSize(text); err != nil {
		return 0, cli.Usagef("--%s: %v", flag, err)
	}
	return bytes, nil
}
