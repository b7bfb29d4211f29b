package run

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
)

func newAttach(env *cli.Env) *cobra.Command {
	var collect []string
	command := &cobra.Command{
		Use:   "attach RUN",
		Short: "Attach to a run as if it had been started here",
		Long: "Attach to a run as if it had been started here. The command prints all output of the run, Ctrl-C interrupts the run, and the " +
			"exit status is the program's.",
		Example:           "  watari run attach md-run-1 --collect log.lammps",
		Args:              cli.Args("RUN"),
		ValidArgsFunction: env.Complete(cli.Runs),
		RunE: env.RunWithSignals(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("run", args[0]); err != nil {
				return err
			}
			files, err := pairs("--collect", collect)
			if err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			ended, interrupted, err := follow(ctx, env, c, args[0])
			if err != nil {
				return err
			}
			return errors.Join(gather(ctx, env, c, ended, files), conclude(ended, interrupted))
		}),
	}
	command.Flags().StringArrayVar(&collect, "collect", nil, "FILE[:LOCAL] of the run's directory to fetch at the end; may be repeated")
	return command
}
