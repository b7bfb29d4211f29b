package run

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newLogs(env *cli.Env) *cobra.Command {
	var wait bool
	command := &cobra.Command{
		Use:               "logs RUN",
		Short:             "Print a run's output so far, or until the run ends with -f",
		Example:           "  watari run logs md-run-1 > out.txt",
		Args:              cli.Args("RUN"),
		ValidArgsFunction: env.Complete(cli.Runs),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("run", args[0]); err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			away := newWaiting(env)
			_, err = copyOutput(ctx, away.clearing(), c, args[0], &offsets{}, wait, func(err error) {
				away.say("waiting for the manager: " + client.Brief(err))
			})
			away.end()
			if ctx.Err() != nil {
				return cli.Interruptedf("stopped reading; run %s continues", args[0])
			}
			if err != nil {
				return fmt.Errorf("read the output of run %s: %w", args[0], client.Explain(err))
			}
			return nil
		}),
	}
	command.Flags().BoolVarP(&wait, "follow", "f", false, "continue until the run has ended")
	return command
}
