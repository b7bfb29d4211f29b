// Package doctor is the command `watari doctor`. It checks what a machine lacks to be a host or a manager, and names
// remedies.
package doctor

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
)

const long = `Check what this machine lacks to be a host or a manager, and what to do about it. The command changes nothing.

A finding is "ok", "warning" (the machine works, but worse than it could) or "missing" (it cannot fulfil its role). The
program watari-agent tests KVM and libvirt. Run the command as root: other users cannot see everything.

Exit status: 0 if nothing is missing, 1 if something is.`

// New returns `watari doctor`.
func New(env *cli.Env) *cobra.Command {
	var role, state string
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine lacks to be a host or a manager",
		Long:  long,
		Example: "  sudo watari doctor\n  sudo watari doctor --for manager\n" +
			"  sudo watari doctor -o json | jq '.[] | select(.level != \"ok\")'",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	command.Flags().StringVar(&role, "for", string(RoleBoth), "role of the machine: host, manager, both")
	command.Flags().StringVar(&state, "state", "/var/lib/watari", "directory of all of Watari's state")
	env.CompleteFlag(command, "for", cli.Words(string(RoleHost), string(RoleManager), string(RoleBoth)))
	cli.CompleteFolders(command, "state")
	command.RunE = env.Run(func(ctx context.Context, _ []string) error {
		switch Role(role) {
		case RoleHost, RoleManager, RoleBoth:
		default:
			return cli.Usagef("--for %q: use host, manager or both", role)
		}
		slow := time.AfterFunc(time.Second, func() { env.Notef("testing KVM and libvirt; this takes a while if libvirt's daemon has to start") })
		facts := Read(ctx, state)
		slow.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !facts.Root {
			env.Notef("only root can see everything: sudo watari doctor")
		}
		return show(env, Judge(facts, Role(role)))
	})
	return command
}

// show writes the findings. It ends with status 1 if something is missing.
func show(env *cli.Env, findings []Finding) error {
	messages := make([]*structpb.Struct, 0, len(findings))
	missing := 0
	for _, f := range findings {
		message, err := structpb.NewStruct(map[string]any{"check": f.Check, "for": string(f.Role), "level": string(f.Level),
			"found": f.Found, "remedy": f.Remedy})
		if err != nil {
			return err
		}
		messages = append(messages, message)
		if f.Level == Missing {
			missing++
		}
	}
	if err := cli.ShowList(env, messages, func(w io.Writer) { write(w, findings) }); err != nil {
		return err
	}
	if missing > 0 {
		return &cli.Exit{Code: cli.StatusFailed, Err: fmt.Errorf("%s missing", count(missing))}
	}
	return nil
}

func count(missing int) string {
	if missing == 1 {
		return "1 thing is"
	}
	return fmt.Sprintf("%d things are", missing)
}

// write writes the findings for people: a table, then the remedies.
func write(w io.Writer, findings []Finding) {
	table := output.NewTable("CHECK", "FOR", "LEVEL", "FOUND")
	for _, f := range findings {
		table.Row(f.Check, string(f.Role), string(f.Level), f.Found)
	}
	table.Write(w)
	first := true
	for _, f := range findings {
		if f.Level == OK || f.Remedy == "" {
			continue
		}
		if first {
			fmt.Fprintln(w, "\nWhat to do:")
			first = false
		}
		fmt.Fprintf(w, "  %s: %s\n", f.Check, f.Remedy)
	}
}
