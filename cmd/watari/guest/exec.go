package guest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

// holdSeconds is how long a command runs on in the guest while no caller is attached to it.
const holdSeconds = 60

type execFlags struct {
	stdin, tty      bool
	user, directory string
	env             []string
}

func newExec(env *cli.Env) *cobra.Command {
	var f execFlags
	command := &cobra.Command{
		Use:   "exec [-it] GUEST -- COMMAND [ARGUMENT...]",
		Short: "Run a command in a guest",
		Long: "Run a command in a guest and exit with its status. With -i it gets standard input, with -t a " +
			"terminal. After a broken connection, the command reconnects. If it cannot do so within a minute, the " +
			"command in the guest is ended. Ctrl-C interrupts the command; a second Ctrl-C detaches from it. With -t, all keys go to the command: " +
			"to leave while the manager is away, close the terminal.",
		Example: "  watari guest exec md-0 -- uptime\n  watari guest exec -it md-0 -- bash\n  watari guest exec -i md-0 -- tar x < files.tar",
		RunE: func(command *cobra.Command, args []string) error {
			dash := command.ArgsLenAtDash()
			if dash < 0 && len(args) > 0 { // `exec md-0 uptime`, the command has no flags
				dash = 1
			}
			if dash != 1 || len(args) < 2 {
				return cli.Usagef("watari guest exec needs GUEST -- COMMAND, as in `watari guest exec -it md-0 -- bash`")
			}
			return env.RunWithSignals(func(ctx context.Context, args []string) error {
				return execute(ctx, env, args[0], args[1:], f)
			})(command, args)
		},
		ValidArgsFunction: env.Complete(cli.Guests),
	}
	flags := command.Flags()
	flags.BoolVarP(&f.stdin, "stdin", "i", false, "pass on standard input")
	flags.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	flags.StringVarP(&f.user, "user", "u", "", "user to run the command as (default: root; runs use watari)")
	flags.StringVar(&f.directory, "directory", "", "directory to run the command in (default: the user's home)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "environment variable K=V; may be repeated")
	return command
}

func execute(ctx context.Context, env *cli.Env, guest string, command []string, f execFlags) error {
	if err := cli.CheckName("guest", guest); err != nil {
		return err
	}
	for _, word := range f.env {
		if key, _, given := strings.Cut(word, "="); key == "" || !given {
			return cli.Usagef("--env %q: give it as K=V", word)
		}
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	s := &session{env: env, guest: guest, start: &v1.StartProcessRequest{
		Id: "exec-" + rand.Text(), Command: command, Env: f.env, Directory: f.directory, User: f.user,
		Stdin: f.stdin, Tty: f.tty, HoldSeconds: holdSeconds,
	}}
	if f.tty {
		restore, err := s.takeTerminal()
		if err != nil {
			return err
		}
		defer restore()
	}
	if f.stdin {
		s.input = readInput(ctx, env.In)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.leave = func() { cancel(cli.ErrInterrupted) }
	end := "\n"
	if f.tty {
		end = "; close the terminal to leave\r\n" // the terminal is raw, and Ctrl-C goes to the command
	}
	err = env.Patiently(ctx, c, end, func(alive func()) error { return s.attempt(ctx, c, alive) })
	if context.Cause(ctx) == cli.ErrInterrupted {
		return cli.Interruptedf("detached from the command in guest %s; it is ended in a minute", guest)
	}
	if err != nil {
		return fmt.Errorf("run %s in guest %s: %w", command[0], guest, client.Explain(err))
	}
	return ended(guest, command[0], s.ended)
}

// ended converts the end of a process to the result of the command.
func ended(guest, command string, process *v1.Process) error {
	switch {
	case process.GetMessage() != "" && process.GetExitCode() != 0:
		return &cli.Exit{Code: int(process.GetExitCode()), Err: fmt.Errorf("%s in guest %s: %s", command, guest, process.GetMessage())}
	case process.GetExitCode() != 0:
		return &cli.Exit{Code: int(process.GetExitCode())}
	case process.GetMessage() != "":
		return fmt.Errorf("%s in guest %s: %s", command, guest, process.GetMessage())
	}
	return nil
}

// takeTerminal makes the local terminal raw, so that every key goes to the guest, and reports its size and changes of
// it.
func (s *session) takeTerminal() (restore func(), err error) {
	file, ok := s.env.In.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil, cli.Usagef("--tty: standard input is not a terminal; omit -t")
	}
	fd := int(file.Fd())
	if columns, rows, err := term.GetSize(fd); err == nil {
		s.start.Rows, s.start.Columns = uint32(rows), uint32(columns)
	}
	if name := os.Getenv("TERM"); name != "" {
		s.start.Env = append([]string{"TERM=" + name}, s.start.Env...)
	}
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("make the terminal raw: %w", err)
	}
	stop := s.watchSize(fd)
	return func() {
		stop()
		_ = term.Restore(fd, old)
	}, nil
}
