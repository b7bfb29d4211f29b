package root

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
	"watari/internal/version"
)

func newVersion(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Say which version this program is",
		Long:              "Say which version this program is. The manager's is told by `watari status`, the agents' by `watari host show`.",
		Example:           "  watari version",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Run(func(context.Context, []string) error {
			_, err := fmt.Fprintf(env.Out, "watari %s (%s, %s/%s)\n", version.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		}),
	}
}
