package guest

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"watari/cmd/internal/cli"
)

// shell is run if no command is given: the user's login shell, or else any shell.
const shell = `for s in "$SHELL" /bin/bash; do [ -x "$s" ] && exec "$s" -l; done; exec /bin/sh -l`

// NewSSH returns `watari ssh`.
func NewSSH(env *cli.Env) *cobra.Command {
	user := ""
	command := &cobra.Command{
		Use:   "ssh GUEST [-- COMMAND [ARGUMENT...]]",
		Short: "Open a shell in a guest, or run a command there",
		Long: "Open a shell in a guest, with a terminal, or run a command there and exit with its status. The guest needs no SSH server, and you no keys " +
			"for it: the way is that of `watari guest exec`. The session goes on while the guest moves to another host. " +
			"All keys go to the shell: to leave while the manager is away, close the terminal.\n\n" +
			"For ssh itself, scp, rsync and editors, a guest needs an SSH server (`watari image build --packages openssh-server,...`); `watari guest forward --stdio` " +
			"is their way to it.",
		Example:           "  watari ssh md-0\n  watari ssh md-0 -- hostname\n  watari ssh -u root md-0",
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: func(command *cobra.Command, args []string) error {
			if dash := command.ArgsLenAtDash(); len(args) == 0 || dash > 1 || dash == 0 {
				return cli.Usagef("watari ssh needs GUEST [-- COMMAND], as in `watari ssh md-0`")
			}
			return env.RunWithSignals(func(ctx context.Context, args []string) error {
				f := execFlags{user: user, stdin: true}
				run := args[1:]
				if len(run) == 0 {
					run = []string{"/bin/sh", "-c", shell}
					file, is := env.In.(*os.File)
					f.tty = is && term.IsTerminal(int(file.Fd()))
				}
				return execute(ctx, env, args[0], run, f)
			})(command, args)
		},
	}
	command.Flags().StringVarP(&user, "user", "u", "watari", "user in the guest; runs use watari, too")
	return command
}
