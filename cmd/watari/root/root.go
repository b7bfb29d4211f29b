// Package root assembles the commands of watari and determines the program's exit status.
package root

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/watari/checkpoint"
	"watari/cmd/watari/cluster"
	"watari/cmd/watari/console"
	"watari/cmd/watari/doctor"
	"watari/cmd/watari/explain"
	"watari/cmd/watari/guest"
	"watari/cmd/watari/host"
	"watari/cmd/watari/image"
	"watari/cmd/watari/lab"
	"watari/cmd/watari/local"
	"watari/cmd/watari/manager"
	"watari/cmd/watari/migrate"
	"watari/cmd/watari/policy"
	"watari/cmd/watari/quota"
	"watari/cmd/watari/run"
	"watari/cmd/watari/site"
	"watari/cmd/watari/storage"
	"watari/cmd/watari/token"
	"watari/cmd/watari/top"
	"watari/cmd/watari/user"
	"watari/cmd/watari/volume"
)

const long = `Watari makes virtual MPI clusters from existing machines, on several sites if needed, and moves their guests between
machines while MPI programs run on them.

  sudo watari up                                  this machine becomes manager and host
  watari image build mpi --packages openmpi-bin   make an image for guests
  watari cluster create md --guests 4 --image mpi --wait
  watari run md -- hostname
  watari migrate md-2 --to-site kyoto             move a guest while it runs

Exit status: 0 success, 1 failure, 2 a mistake in the command line, 130 after Ctrl-C; "watari run" and
"watari guest exec" end with the program's own status.

With --output json, a list is an array of objects, as are several runs that "watari run cancel" names, and all else is one object, in
protobuf's JSON mapping: the names of api/watari/v1/types.proto in lowerCamelCase, 64-bit numbers as strings, times as
RFC 3339. "watari events" and "watari audit" write one object a line. "watari lab" writes names in snake_case, and numbers as
numbers. What deletes or removes, and "watari up" and "watari down", write nothing. Notes, progress and errors go to
standard error.

The client config names the manager and the user. It is $WATARI_CONFIG, or else /var/lib/watari/admin.json for root
if it exists, or else ~/.config/watari/config.json, which "watari login" writes.`

// The groups of commands in the help.
const (
	groupWork  = "work"
	groupHosts = "hosts"
	groupAdmin = "admin"
)

// New returns the command watari with all commands below it.
func New(env *cli.Env) *cobra.Command {
	root := cli.Noun(&cobra.Command{
		Use:           "watari",
		Short:         "Virtual MPI clusters that migrate",
		Long:          long,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return env.CheckOutput()
		},
	})
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return cli.Usagef("%v; see `%s --help`", err, command.CommandPath())
	})
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	flags := root.PersistentFlags()
	flags.StringVar(&env.Config, "config", "", "client config to use instead of the default one")
	flags.StringVarP(&env.Output, "output", "o", output.FormatTable, "output format: table, json, yaml")
	env.CompleteFlag(root, "output", cli.Words(output.Formats...))
	root.AddGroup(&cobra.Group{ID: groupWork, Title: "Clusters and programs:"},
		&cobra.Group{ID: groupHosts, Title: "Machines:"}, &cobra.Group{ID: groupAdmin, Title: "People and insight:"})
	group(root, groupWork, image.New(env), cluster.New(env), guest.New(env), guest.NewSSH(env), run.New(env), migrate.New(env), checkpoint.New(env), volume.New(env), storage.New(env))
	group(root, groupHosts, local.NewUp(env), local.NewDown(env), doctor.New(env), host.New(env), site.New(env), policy.New(env), token.New(env), lab.New(env))
	group(root, groupAdmin, newStatus(env), top.New(env), console.New(env), explain.New(env), newRecover(env), newEvents(env), newAudit(env), newLogin(env), user.New(env), quota.New(env), newVersion(env))
	root.AddCommand(manager.Command()) // started by `watari up`
	cli.CompleteFiles(root, "config")
	cli.CompleteNothingElse(root)
	return root
}

func group(root *cobra.Command, id string, commands ...*cobra.Command) {
	for _, command := range commands {
		command.GroupID = id
		root.AddCommand(command)
	}
}

// Main runs watari with arguments and returns the exit status.
func Main(ctx context.Context, env *cli.Env, args []string) int {
	root := New(env)
	root.SetArgs(args)
	return status(env, root.ExecuteContext(ctx))
}

// status prints an error for people and returns its exit status.
func status(env *cli.Env, err error) int {
	if err == nil {
		return cli.StatusOK
	}
	code := cli.StatusFailed
	var exit *cli.Exit
	if errors.As(err, &exit) {
		code = exit.Code
		if exit.Err == nil && errors.Is(err, exit) && err.Error() == exit.Error() {
			return code // the message has been printed already
		}
	}
	env.Notef("watari: %v", client.Explain(err))
	return code
}
