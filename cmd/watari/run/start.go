package run

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/progress"
)

const (
	// stagePatience is how long staging waits for a cluster that is not ready.
	stagePatience = 10 * time.Minute
	stagePause    = 500 * time.Millisecond
	cancelTimeout = 10 * time.Second
)

// run creates a run, stages its files, releases it, and follows it unless it is detached.
func run(ctx context.Context, env *cli.Env, cluster string, program []string, f flags) error {
	spec, err := f.spec(cluster, program, os.LookupEnv)
	if err != nil {
		return err
	}
	stage, err := pairs("--stage", f.stage)
	if err != nil {
		return err
	}
	collect, err := pairs("--collect", f.collect)
	if err != nil {
		return err
	}
	if f.detach && len(collect) > 0 {
		return cli.Usagef("--collect waits for the end, and --detach does not: use only one, and fetch files later with `watari guest cp`")
	}
	for _, file := range stage {
		if info, err := os.Stat(file.from); err != nil || !info.Mode().IsRegular() {
			return cli.Usagef("--stage %s: no such regular file", file.from)
		}
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	made, err := begin(ctx, env, c, f.name, spec, stage)
	if err != nil {
		return err
	}
	if f.detach {
		return showRun(env, made)
	}
	ended, interrupted, err := follow(ctx, env, c, made.GetMeta().GetName())
	if err != nil {
		return err
	}
	return errors.Join(gather(ctx, env, c, ended, collect), conclude(ended, interrupted))
}

// begin creates a run and stages its files. Ctrl-C meanwhile cancels the run.
func begin(ctx context.Context, env *cli.Env, c *client.Client, name string, spec *v1.RunSpec, stage []pair) (*v1.Run, error) {
	ctx, stop := env.Interruptible(ctx)
	defer stop()
	made, err := create(ctx, env, c, &v1.CreateRunRequest{Name: name, Spec: spec, RequestId: rand.Text()})
	if err != nil && errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
		return nil, cli.Interruptedf("stopped asking: `watari run list %s` shows whether the run exists", spec.Cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("run on cluster %s: %w", spec.Cluster, err)
	}
	if len(stage) == 0 {
		return made, nil
	}
	name = made.GetMeta().GetName()
	err = putAll(ctx, env, c, made, stage)
	if err == nil {
		err = env.Patiently(ctx, c, "\n", func(func()) error {
			_, err := c.StartRun(ctx, connect.NewRequest(&v1.StartRunRequest{Name: name}))
			return err
		})
	}
	if err == nil {
		return made, nil
	}
	quiet, done := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer done()
	_, undo := c.CancelRun(quiet, connect.NewRequest(&v1.CancelRunRequest{Name: name}))
	if undo != nil {
		env.Notef("run %s could not be cancelled: %v; try `watari run cancel %s`", name, client.Explain(undo), name)
	}
	if ctx.Err() != nil {
		return nil, cli.Interruptedf("run %s was cancelled before it began", name)
	}
	return nil, fmt.Errorf("start run %s: %w", name, err)
}

// create creates a run. If the answer is lost, it repeats the request; the request's id prevents a second run.
func create(ctx context.Context, env *cli.Env, c *client.Client, request *v1.CreateRunRequest) (run *v1.Run, err error) {
	ask := func(func()) error {
		response, err := c.CreateRun(ctx, connect.NewRequest(request))
		if err == nil {
			run = response.Msg.Run
		}
		return err
	}
	err = ask(nil)
	var unreachable *client.Unreachable
	if client.Transient(err) && !connect.IsWireError(err) && !errors.As(err, &unreachable) {
		err = env.Patiently(ctx, c, "\n", ask)
	}
	return run, err
}

// putAll stages files. It waits for a cluster that is not ready.
func putAll(ctx context.Context, env *cli.Env, c *client.Client, run *v1.Run, stage []pair) error {
	lines := progress.New(env.Err)
	defer lines.Clear()
	begun := time.Now()
	for _, file := range stage {
		to := client.Place{Run: run.GetMeta().GetName(), Path: path.Clean(file.to)}
		for {
			err := c.Put(ctx, file.from, to, lines.Trouble, func(sent, size int64) {
				if lines.Terminal() {
					lines.Set(progress.Line{Key: file.from, Text: "staging " + file.from + " " + lines.Bar(uint64(sent), uint64(size))})
				}
			})
			if err == nil {
				break
			}
			if connect.CodeOf(err) != connect.CodeFailedPrecondition || time.Since(begun) > stagePatience {
				return fmt.Errorf("stage %s: %w", file.from, err)
			}
			lines.Set(progress.Line{Key: "wait", Text: "waiting to stage " + file.from + ": " + client.Explain(err).Error()})
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(stagePause):
			}
		}
	}
	return nil
}

// gather fetches files of a run that has ended.
func gather(ctx context.Context, env *cli.Env, c *client.Client, run *v1.Run, collect []pair) error {
	ctx, stop := env.Interruptible(ctx)
	defer stop()
	lines := progress.New(env.Err)
	defer lines.Clear()
	var failed []error
	for _, file := range collect {
		from := client.Place{Run: run.GetMeta().GetName(), Path: file.from}
		err := c.Get(ctx, from, file.to, lines.Trouble, func(got, size int64) {
			if lines.Terminal() {
				lines.Set(progress.Line{Key: file.from, Text: "collecting " + file.from + " " + lines.Bar(uint64(got), uint64(size))})
			}
		})
		if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
			lines.Clear()
			name := run.GetMeta().GetName()
			return cli.Interruptedf("stopped collecting; `watari run attach %s --collect FILE` fetches the missing files", name)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("collect %s of run %s: %w", file.from, run.GetMeta().GetName(), client.Explain(err)))
		}
	}
	return errors.Join(failed...)
}
