package root

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"watari/cmd/internal/cli"
	"watari/internal/version"
)

func newVersion(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version of this program",
		Long:              "Print the version of this program. `watari status` shows the manager's version, `watari host show` an agent's.",
		Example:           "  watari version\n  watari version -o json | jq -r .version",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Run(func(context.Context, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			facts, err := structpb.NewStruct(map[string]any{"version": version.Version, "go": runtime.Version(), "platform": platform})
			if err != nil {
				return err
			}
			return env.Show(facts, func(w io.Writer) {
				fmt.Fprintf(w, "watari %s (%s, %s)\n", version.Version, runtime.Version(), platform)
			})
		}),
	}
}
