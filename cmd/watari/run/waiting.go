package run

import (
	"context"
	"io"
	"sync"
	"time"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/progress"
)

// quiet is how long a run may wait before the reason is shown.
const quiet = time.Second

// waiting shows what a run waits for, beside the run's output.
type waiting struct {
	env   *cli.Env
	mu    sync.Mutex
	lines *progress.Lines
	over  bool
}

func newWaiting(env *cli.Env) *waiting { return &waiting{env: env, lines: progress.New(env.Err)} }

// watch shows why a run has not begun, until it begins.
func (w *waiting) watch(ctx context.Context, c *client.Client, name string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun, latest := time.Now(), ""
	timer := time.AfterFunc(quiet, func() {
		w.mu.Lock()
		text := latest
		w.mu.Unlock()
		if ctx.Err() == nil {
			w.say(text)
		}
	})
	defer timer.Stop()
	_ = c.Watch(ctx, "run", name, nil, func(now *v1.WatchResponse) (bool, error) {
		run := now.GetRun()
		if now.Gone || run.GetState() != v1.RunState_RUN_STATE_PENDING && run.GetState() != v1.RunState_RUN_STATE_STARTING {
			w.clear()
			return true, nil
		}
		text := "run " + name + " begins"
		if run.GetMessage() != "" {
			text = "run " + name + " " + run.GetMessage()
		}
		w.mu.Lock()
		latest = text
		w.mu.Unlock()
		if time.Since(begun) >= quiet {
			w.say(text)
		}
		return false, nil
	})
}

func (w *waiting) say(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over && text != "" {
		w.lines.Set(progress.Line{Key: "run", Text: "watari: " + text})
	}
}

func (w *waiting) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines.Clear()
}

// end erases the line for good.
func (w *waiting) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.lines.Clear()
}

// clearing returns an environment whose streams erase the line before they write.
func (w *waiting) clearing() *cli.Env {
	env := *w.env
	env.Out, env.Err = &clearing{w, w.env.Out}, &clearing{w, w.env.Err}
	return &env
}

type clearing struct {
	wait *waiting
	to   io.Writer
}

func (c *clearing) Write(p []byte) (int, error) {
	if len(p) > 0 {
		c.wait.clear()
	}
	return c.to.Write(p)
}
