package policy

import (
	"context"
	"fmt"
	"io"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"watari/cmd/internal/cli"
)

func newDiff(env *cli.Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "diff FILE|-",
		Short: "Show what a file changes in the policy in force",
		Long: "Show the difference between the policy in force, or an earlier version, and a file, as a unified diff. \"-\" is " +
			"standard input. Only administrators can do this.\n\n" +
			"Exit status: 0 if the texts are equal, 1 if they differ. A failure ends with status 1 as well, with a message " +
			"and without a diff.",
		Example:           "  watari policy diff policy.yaml\n  watari policy show --default | watari policy diff -\n  watari policy diff policy.yaml --version 3",
		Args:              cli.Args("FILE"),
		ValidArgsFunction: cli.CompleteFile,
	}
	number := versionFlag(env, command, "version to compare with (default: the one in force)")
	command.RunE = env.Run(func(ctx context.Context, args []string) error {
		wanted, err := number()
		if err != nil {
			return err
		}
		return diff(ctx, env, args[0], wanted)
	})
	return command
}

func diff(ctx context.Context, env *cli.Env, path string, wanted uint64) error {
	changed, err := readFile(ctx, env, path)
	if err != nil {
		return err
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	p, err := version(ctx, c, wanted)
	if err != nil {
		return err
	}
	if p == nil {
		return fmt.Errorf("compare %s: no policy is in force; `watari policy apply` puts one in force", changed.name)
	}
	text := udiff.Unified(fmt.Sprintf("policy version %d", p.Version), changed.name, p.Text, changed.text)
	object, err := structpb.NewStruct(map[string]any{"version": fmt.Sprint(p.Version), "differs": text != "", "diff": text})
	if err != nil {
		return err
	}
	err = env.Show(object, func(w io.Writer) {
		if text == "" {
			env.Notef("no difference: %s is the text of policy version %d", changed.name, p.Version)
		}
		fmt.Fprint(w, text)
	})
	if err == nil && text != "" {
		return &cli.Exit{Code: cli.StatusFailed}
	}
	return err
}
