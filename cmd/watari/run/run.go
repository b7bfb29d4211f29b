// Package run holds `watari run` and the commands about runs.
package run

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

type flags struct {
	cluster, name, user, directory    string
	transport                         string
	ranks                             uint32
	env, stage, collect, launcherArgs []string
	tag, detach                       bool
}

const long = `Run a program on a cluster: an MPI program under the image's own launcher (Open MPI's mpirun or MPICH's mpiexec), with
one rank for each virtual CPU unless -n sets another number. Everything after -- is the program and its arguments.

Each run has its own directory in the cluster's shared home. --stage copies files there before the program starts.
--collect fetches files from there after its end. Output appears as the program writes it, separated into standard output
and standard error. A broken connection or a restart of the manager loses no output.

The exit status is the program's, or 130 if Ctrl-C has ended it. Ctrl-C interrupts the program (SIGINT to its ranks). A
second Ctrl-C detaches from the run; ` + "`watari run attach RUN`" + ` attaches to it again.`

// New returns `watari run`.
func New(env *cli.Env) *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:     "run CLUSTER [flags] -- PROGRAM [ARGUMENT...]",
		Aliases: []string{"runs"},
		Short:   "Run an MPI program on a cluster",
		Long:    long,
		Example: "  watari run md -- hostname\n  watari run md -n 4 --stage in.melt --collect log.lammps -- lmp -in in.melt\n" +
			"  watari run md --detach -- ./simulate\n  watari run md --transport pm -- lmp -in in.melt\n  watari run list\n  watari run logs -f md-run-1",
		RunE: func(command *cobra.Command, args []string) error {
			cluster, program, err := f.words(args, command.ArgsLenAtDash())
			if err != nil {
				return err
			}
			return env.RunWithSignals(func(ctx context.Context, _ []string) error {
				return run(ctx, env, cluster, program, f)
			})(command, nil)
		},
		ValidArgsFunction: env.Complete(cli.Clusters),
	}
	set := command.Flags()
	set.StringVarP(&f.cluster, "cluster", "c", "", "the cluster, if its name is also a subcommand (list, show, ...)")
	set.StringVar(&f.name, "name", "", "name of the run (default: the manager makes one)")
	set.Uint32VarP(&f.ranks, "ranks", "n", 0, "number of ranks (default: one per virtual CPU)")
	set.StringArrayVarP(&f.env, "env", "e", nil, "environment variable K=V of the ranks, or K to pass on the caller's value; may be repeated")
	set.StringArrayVar(&f.stage, "stage", nil, "local FILE[:NAME] to copy into the run's directory before the start; may be repeated")
	set.StringArrayVar(&f.collect, "collect", nil, "FILE[:LOCAL] of the run's directory to fetch at the end; may be repeated")
	set.StringVar(&f.directory, "directory", "", "directory in which to run (default: the run's own directory in the shared home)")
	set.StringVarP(&f.user, "user", "u", "", "user in the guests (default: the cluster's ordinary user)")
	set.StringVar(&f.transport, "transport", "", "transport of MPI messages: tcp (default), or pm, Watari's own message library")
	set.StringArrayVar(&f.launcherArgs, "launcher-arg", nil, "argument for the launcher, as in --launcher-arg=--bind-to --launcher-arg=none; may be repeated")
	set.BoolVarP(&f.tag, "tag-output", "t", false, "prefix each line with its rank")
	set.BoolVarP(&f.detach, "detach", "d", false, "print the run's name and return")
	env.CompleteFlag(command, "cluster", cli.Clusters)
	env.CompleteFlag(command, "transport", cli.Words("tcp", "pm"))
	cli.CompleteFiles(command, "stage")
	command.AddCommand(newList(env), newShow(env), newLogs(env), newAttach(env), newProcesses(env), newCancel(env), newRemove(env))
	return command
}

// words separates the cluster from the program. dash is the number of words before "--"; -1 if there is none.
func (f flags) words(args []string, dash int) (cluster string, program []string, err error) {
	before := args
	if dash >= 0 {
		before, program = args[:dash], args[dash:]
	}
	cluster = f.cluster
	if cluster == "" && len(before) > 0 {
		cluster, before = before[0], before[1:]
	}
	switch {
	case cluster == "":
		return "", nil, cli.Usagef("watari run needs CLUSTER -- PROGRAM, as in `watari run md -- hostname`")
	case dash < 0:
		return "", nil, cli.Usagef("put -- before the program, as in `watari run %s -- %s`", cluster, cmp.Or(strings.Join(before, " "), "hostname"))
	case len(before) > 0:
		return "", nil, cli.Usagef("%q is before --: the program and its arguments must come after it", strings.Join(before, " "))
	case len(program) == 0:
		return "", nil, cli.Usagef("no program after --, as in `watari run %s -- hostname`", cluster)
	}
	return cluster, program, cli.CheckName("cluster", cluster)
}

// pair is a local file and a file of the run.
type pair struct{ from, to string }

// pairs parses FILE[:NAME] words.
func pairs(flag string, words []string) ([]pair, error) {
	var all []pair
	for _, word := range words {
		from, to, two := strings.Cut(word, ":")
		if !two {
			to = filepath.Base(from)
		}
		if from == "" || to == "" {
			return nil, cli.Usagef("%s %q: give a file, or file:name", flag, word)
		}
		all = append(all, pair{from, to})
	}
	return all, nil
}

// spec checks the flags and returns the spec for the manager.
func (f flags) spec(cluster string, program []string, lookup func(string) (string, bool)) (*v1.RunSpec, error) {
	if f.name != "" {
		if err := cli.CheckName("run", f.name); err != nil {
			return nil, err
		}
	}
	transport, ok := map[string]v1.Transport{"": v1.Transport_TRANSPORT_UNSPECIFIED, "tcp": v1.Transport_TRANSPORT_TCP, "pm": v1.Transport_TRANSPORT_PM}[f.transport]
	if !ok {
		return nil, cli.Usagef("--transport %q: use tcp or pm", f.transport)
	}
	spec := &v1.RunSpec{Cluster: cluster, Transport: transport, Command: program, Ranks: f.ranks, TagOutput: f.tag, User: f.user,
		Directory: f.directory, LauncherArgs: f.launcherArgs, Hold: len(f.stage) > 0, Env: map[string]string{}}
	for _, word := range f.env {
		key, value, given := strings.Cut(word, "=")
		if key == "" {
			return nil, cli.Usagef("--env %q: give it as K=V", word)
		}
		if !given {
			if value, given = lookup(key); !given {
				return nil, cli.Usagef("--env %s: there is no such variable here; set it with %s=VALUE", key, key)
			}
		}
		spec.Env[key] = value
	}
	if len(spec.Env) == 0 {
		spec.Env = nil
	}
	return spec, nil
}

// showRun writes a run's name, or the run in the requested format.
func showRun(env *cli.Env, run *v1.Run) error {
	return env.Show(run, func(w io.Writer) { fmt.Fprintln(w, run.GetMeta().GetName()) })
}

// get fetches one run.
func get(ctx context.Context, c *client.Client, name string) (*v1.Run, error) {
	return cli.Find("run", name, func() ([]*v1.Run, error) {
		return client.List(ctx, c.ListRuns, &v1.ListRunsRequest{Name: name}, (*v1.ListRunsResponse).GetRuns)
	})
}
