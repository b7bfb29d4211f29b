package run

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
)

func newShow(env *cli.Env) *cobra.Command {
	return cli.Show[*v1.Run]{Word: "RUN", Short: "Show a run",
		Example: "  watari run show md-run-1", Names: cli.Runs, Get: get, Describe: describe}.Command(env)
}

func describe(w io.Writer, env *cli.Env, r *v1.Run) {
	spec := r.GetSpec()
	ranks := "one per virtual CPU"
	if spec.GetRanks() > 0 {
		ranks = fmt.Sprint(spec.GetRanks())
	}
	var variables []string
	for _, key := range slices.Sorted(maps.Keys(spec.GetEnv())) {
		variables = append(variables, key+"="+spec.GetEnv()[key])
	}
	output.Fields(w,
		[2]string{"name", r.GetMeta().GetName()},
		[2]string{"cluster", spec.GetCluster()},
		[2]string{"command", strings.Join(spec.GetCommand(), " ")},
		[2]string{"ranks", ranks},
		[2]string{"state", output.State(r.GetState())},
		[2]string{"exit status", exit(r)},
		[2]string{"message", r.GetMessage()},
		[2]string{"head", r.GetHead()},
		[2]string{"directory", r.GetDirectory()},
		[2]string{"user", spec.GetUser()},
		[2]string{"transport", output.State(spec.GetTransport())},
		[2]string{"environment", strings.Join(variables, "\n")},
		[2]string{"launcher", strings.Join(spec.GetLauncherArgs(), " ")},
		[2]string{"took", took(env, r)},
		[2]string{"owner", r.GetMeta().GetOwner()},
		[2]string{"age", output.Age(env.Now(), r.GetMeta().GetCreated())},
	)
}
