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

const long = `Look over this machine and say what it lacks to be a host or a manager, and what mends it. Nothing is changed.

A finding is ok, a warning (the machine works, but worse than it could), or missing (it cannot do its part). KVM and
libvirt are tried by the program watari-agent. Run it as root: others cannot see all of it.

Exit status: 0 where nothing is missing, 1 where something is.`

// New returns `watari doctor`.
func New(env *cli.Env) *cobra.Command {
	var role, state string
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine lacks to be a host or a manager",
		Long:  long,
		Example: "  sudo watari doctor\n  sudo watari doctor --for manager\n" +
			"  sudo watari doctor -o json | jq '.[] | select(.level != \"ok\")'",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	command.Flags().StringVar(&role, "for", string(RoleBoth), "what the machine is for: host, manager, both")
	command.Flags().StringVar(&state, "state", "/var/lib/watari", "folder in which everything is kept")
	env.CompleteFlag(command, "for", cli.Words(string(RoleHost), string(RoleManager), string(RoleBoth)))
	cli.CompleteFolders(command, "state")
	command.RunE = env.Run(func(ctx context.Context, _ []string) error {
		switch Role(role) {
		case RoleHost, RoleManager, RoleBoth:
		default:
			return cli.Usagef("--for %q: use host, manager or both", role)
		}
		slow := time.AfterFunc(time.Second, func() { env.Notef("trying KVM, and asking libvirt, which takes a while where its daemon starts now") })
		facts := Read(ctx, state)
		slow.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !facts.Root {
			env.Notef("some things are seen by root alone: sudo watari doctor")
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
			fmt.Fprintln(w, "\nTo mend it:")
			first = false
		}
		fmt.Fprintf(w, "  %s: %s\n", f.Check, f.Remedy)
	}
}
