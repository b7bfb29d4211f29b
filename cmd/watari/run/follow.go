package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

// offsets is how many bytes of a run's output have been written.
type offsets struct{ stdout, stderr uint64 }

// copyOutput writes a run's output from offsets on. With wait, it continues until the run has ended, even over broken
// connections and restarts of the manager. It returns the run if it has ended.
func copyOutput(ctx context.Context, env *cli.Env, c *client.Client, name string, from *offsets, wait bool, trouble func(error)) (*v1.Run, error) {
	var ended *v1.Run
	err := c.Patiently(ctx, trouble, func(alive func()) error {
		stream, err := c.RunOutput(ctx, connect.NewRequest(&v1.RunOutputRequest{
			Name: name, StdoutOffset: from.stdout, StderrOffset: from.stderr, Follow: wait}))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			alive()
			part := stream.Msg()
			stdoutBack, stderrBack := goBack(&from.stdout, part.StdoutOffset, part.Stdout), goBack(&from.stderr, part.StderrOffset, part.Stderr)
			if stdoutBack || stderrBack {
				env.Notef("watari: run %s went back to a checkpoint; its output goes on from there", name)
			}
			if err := errors.Join(write(env.Out, part.Stdout, &from.stdout), write(env.Err, part.Stderr, &from.stderr)); err != nil {
				return fmt.Errorf("write the output of run %s: %w", name, err)
			}
			if part.Ended != nil {
				ended = part.Ended
			}
		}
		if err := stream.Err(); err != nil {
			return err
		}
		if wait && ended == nil {
			return connect.NewError(connect.CodeUnavailable, errors.New("the output ended before the run"))
		}
		return nil
	})
	return ended, err
}

// goBack sets offset to the begin of a part of the output, and reports whether that is a step back.
func goBack(offset, part *uint64, data []byte) bool {
	if len(data) == 0 || part == nil || *part >= *offset {
		return false
	}
	*offset = *part
	return true
}

func write(w io.Writer, data []byte, offset *uint64) error {
	n, err := w.Write(data)
	*offset += uint64(n)
	return err
}

// follow copies a run's output until the run has ended. The first signal is passed to the run, the second ends the
// command.
func follow(ctx context.Context, env *cli.Env, c *client.Client, name string) (run *v1.Run, interrupted bool, err error) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	type end struct {
		run *v1.Run
		err error
	}
	ended := make(chan end, 1)
	wait := newWaiting(env)
	go wait.watch(ctx, c, name)
	go func() {
		run, err := copyOutput(ctx, wait.clearing(), c, name, &offsets{}, true, func(err error) {
			wait.say("run " + name + " goes on; waiting for the manager: " + client.Brief(err))
		})
		wait.end()
		ended <- end{run, err}
	}()
	for signals := 0; ; {
		select {
		case signal := <-env.Signals:
			if signals++; signals > 1 {
				leave(cli.ErrInterrupted)
				continue
			}
			env.Notef("watari: interrupting run %s; Ctrl-C again detaches from it", name)
			go interrupt(ctx, env, c, name, signal)
		case end := <-ended:
			if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
				return nil, true, cli.Interruptedf("detached from run %s; attach again with `watari run attach %s`, end it with `watari run cancel %s`", name, name, name)
			}
			if end.err != nil {
				return nil, false, fmt.Errorf("follow run %s: %w", name, end.err)
			}
			return end.run, signals > 0, nil
		}
	}
}

// interrupt passes a signal to a run.
func interrupt(ctx context.Context, env *cli.Env, c *client.Client, name string, signal os.Signal) {
	number := int32(syscall.SIGINT)
	if other, ok := signal.(syscall.Signal); ok {
		number = int32(other)
	}
	err := c.Patiently(ctx, nil, func(func()) error {
		_, err := c.CancelRun(ctx, connect.NewRequest(&v1.CancelRunRequest{Name: name, Signal: number}))
		return err
	})
	if err != nil && ctx.Err() == nil {
		env.Notef("watari: cannot interrupt run %s: %v", name, client.Explain(err))
	}
}

// conclude converts the end of a run to the command's result: the program's exit status, or the reason why there is
// none. If this command interrupted the program and the program did not succeed, the result is "interrupted", whatever
// the launcher returned.
func conclude(run *v1.Run, interrupted bool) error {
	name := run.GetMeta().GetName()
	switch run.GetState() {
	case v1.RunState_RUN_STATE_EXITED:
		if run.GetExitCode() == 0 {
			return nil
		}
		if interrupted {
			return &cli.Exit{Code: cli.StatusInterrupted, Err: fmt.Errorf("run %s was interrupted; its status was %d", name, run.GetExitCode())}
		}
		if run.GetMessage() != "" {
			return &cli.Exit{Code: int(run.GetExitCode()), Err: fmt.Errorf("run %s: %s", name, run.GetMessage())}
		}
		return &cli.Exit{Code: int(run.GetExitCode())}
	case v1.RunState_RUN_STATE_CANCELLED:
		code := int(run.GetExitCode())
		if code == 0 {
			code = cli.StatusInterrupted
		}
		if how, ok := strings.CutPrefix(run.GetMessage(), "cancelled "); ok {
			return &cli.Exit{Code: code, Err: fmt.Errorf("run %s was cancelled %s", name, how)}
		}
		return &cli.Exit{Code: code, Err: fmt.Errorf("run %s was cancelled%s", name, reasonSuffix(run))}
	}
	return &cli.Exit{Code: cli.StatusFailed, Err: fmt.Errorf("run %s %s%s; its output: `watari run logs %s`", name, output.State(run.GetState()), reasonSuffix(run), name)}
}

func reasonSuffix(run *v1.Run) string {
	if run.GetMessage() == "" {
		return ""
	}
	return ": " + run.GetMessage()
}
