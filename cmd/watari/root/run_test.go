package root_test

// run_test.go - watari run and related commands.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/stub"
)

func ended(state v1.RunState, code int32, message string) *v1.Run {
	return &v1.Run{Meta: meta("md-run-1"), State: state, ExitCode: code, Message: message}
}

func output(stdout, stderr string, end *v1.Run) *v1.RunOutputResponse {
	return &v1.RunOutputResponse{Stdout: []byte(stdout), Stderr: []byte(stderr), Ended: end}
}

func TestRunStreamsAndEndsWithTheProgramsStatus(t *testing.T) {
	manager := (&stub.Manager{Unary: answers, OnRunOutput: func(_ context.Context, r *v1.RunOutputRequest, send func(*v1.RunOutputResponse) error) error {
		return errors.Join(send(output("out ", "err\n", nil)), send(output("more\n", "", ended(v1.RunState_RUN_STATE_EXITED, 42, ""))))
	}}).Start(t)
	result := manager.Run(t, "run", "md", "-n", "4", "--", "program", "-n", "--help")
	if result != (stub.Result{Out: "out more\n", Err: "err\n", Status: 42}) {
		t.Errorf("%+v", result)
	}
}

func TestCtrlCWhileTheManagerIsAwayReachesTheCommand(t *testing.T) {
	manager := &stub.Manager{}
	var attempts atomic.Int32
	manager.OnExec = func(ctx context.Context, both *connect.BidiStream[v1.GuestExecRequest, v1.GuestExecResponse]) error {
		first := attempts.Add(1) == 1
		for {
			got, err := both.Receive()
			if err != nil {
				return err
			}
			if first {
				err = both.Send(&v1.GuestExecResponse{Output: &v1.AttachResponse{Stdout: []byte("begun\n")}})
			} else if got.Signal != 0 {
				return both.Send(&v1.GuestExecResponse{Output: &v1.AttachResponse{Ended: &v1.Process{ExitCode: 128 + got.Signal}}})
			}
			if err != nil {
				return err
			}
		}
	}
	manager.Start(t)
	command := manager.Begin(t, "guest", "exec", "md-0", "--", "sleep", "9")
	command.AwaitText(t, "begun")
	manager.Stop()
	command.AwaitText(t, "watari: waiting for the manager: no manager answers at")
	command.Signals <- os.Interrupt
	for end := time.Now().Add(10 * time.Second); len(command.Signals) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the signal is not taken")
		}
	}
	manager.Resume(t)
	if result := command.Wait(t); result.Status != 130 {
		t.Errorf("%+v", result)
	}
}

func TestRunSpecIsWhatWasAskedFor(t *testing.T) {
	t.Setenv("FROM_HERE", "yes")
	var asked *v1.RunSpec
	manager := (&stub.Manager{Unary: func(ctx context.Context, request any) (any, error) {
		if r, ok := request.(*v1.CreateRunRequest); ok {
			asked = r.Spec
		}
		return answers(ctx, request)
	}}).Start(t)
	result := manager.Run(t, "run", "-c", "list", "-n", "3", "-t", "-e", "A=1=2", "-e", "FROM_HERE", "-u", "root", "--launcher-arg=--bind-to", "--launcher-arg", "none", "--transport", "pm", "-d", "--", "p", "--", "q")
	if result.Status != 0 || asked.Cluster != "list" || asked.Ranks != 3 || !asked.TagOutput || asked.Env["A"] != "1=2" || asked.Env["FROM_HERE"] != "yes" ||
		asked.User != "root" || strings.Join(asked.LauncherArgs, " ") != "--bind-to none" || strings.Join(asked.Command, " ") != "p -- q" || asked.Hold ||
		asked.Transport != v1.Transport_TRANSPORT_PM {
		t.Errorf("%+v: %v", result, asked)
	}
}

func TestARunIsAskedForAgainByTheSameIDWhenTheAnswerIsLost(t *testing.T) {
	manager := &stub.Manager{}
	asked := make(chan string, 2)
	manager.Unary = func(ctx context.Context, request any) (any, error) {
		if r, ok := request.(*v1.CreateRunRequest); ok {
			asked <- r.RequestId
			if len(asked) == 1 {
				<-ctx.Done() // the connection is cut
				return nil, ctx.Err()
			}
		}
		return answers(ctx, request)
	}
	manager.Start(t)
	command := manager.Begin(t, "run", "md", "-d", "--", "program")
	for end := time.Now().Add(10 * time.Second); len(asked) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no run is asked for")
		}
	}
	manager.Stop()
	manager.Resume(t)
	if result := command.Wait(t); result.Status != 0 {
		t.Fatalf("%+v", result)
	}
	if first, second := <-asked, <-asked; first == "" || second != first {
		t.Errorf("asked by %q, then by %q", first, second)
	}
}

func TestRunOutputGoesOnAfterABrokenConnection(t *testing.T) {
	const text = "one two three four\n"
	manager := &stub.Manager{Unary: answers}
	reached := make(chan struct{})
	manager.OnRunOutput = func(ctx context.Context, r *v1.RunOutputRequest, send func(*v1.RunOutputResponse) error) error {
		if r.StdoutOffset > 0 {
			return send(output(text[r.StdoutOffset:], "", ended(v1.RunState_RUN_STATE_EXITED, 0, "")))
		}
		err := send(output(text[:7], "", nil))
		close(reached)
		<-ctx.Done()
		return err
	}
	manager.Start(t)
	command := manager.Begin(t, "run", "md", "--", "program")
	command.AwaitText(t, "one two")
	<-reached
	manager.Stop()
	manager.Resume(t)
	if result := command.Wait(t); result.Out != text || result.Status != 0 {
		t.Errorf("%+v", result)
	}
}

func TestTheOutputOfARunGoesBackWithItToACheckpoint(t *testing.T) {
	manager := &stub.Manager{Unary: answers}
	manager.OnRunOutput = func(ctx context.Context, r *v1.RunOutputRequest, send func(*v1.RunOutputResponse) error) error {
		part := func(text string, offset uint64) *v1.RunOutputResponse {
			return &v1.RunOutputResponse{Stdout: []byte(text), StdoutOffset: &offset, StderrOffset: new(uint64(0))}
		}
		if r.StdoutOffset > 0 { // after the connection broke
			if r.StdoutOffset != 7 {
				t.Errorf("asks for output from %d on", r.StdoutOffset)
			}
			return send(output("", "", ended(v1.RunState_RUN_STATE_EXITED, 0, "")))
		}
		return errors.Join(send(part("one two three", 0)), send(part("TWO", 4)), connect.NewError(connect.CodeUnavailable, errors.New("cut")))
	}
	manager.Start(t)
	result := manager.Begin(t, "run", "md", "--", "program").Wait(t)
	if result.Out != "one two threeTWO" || strings.Count(result.Err, "went back to a checkpoint") != 1 || result.Status != 0 {
		t.Errorf("%+v", result)
	}
}

func TestCtrlCInterruptsTheRunAndASecondOneLeavesIt(t *testing.T) {
	var signals atomic.Int32
	interrupted := make(chan int32, 1)
	stay := make(chan struct{})
	manager := &stub.Manager{
		Unary: func(ctx context.Context, request any) (any, error) {
			if r, ok := request.(*v1.CancelRunRequest); ok {
				signals.Add(1)
				interrupted <- r.Signal
				return &v1.CancelRunResponse{Run: runs[0]}, nil
			}
			return answers(ctx, request)
		},
		OnRunOutput: func(ctx context.Context, _ *v1.RunOutputRequest, send func(*v1.RunOutputResponse) error) error {
			if err := send(output("begun\n", "", nil)); err != nil {
				return err
			}
			select {
			case <-stay:
				return send(output("", "", ended(v1.RunState_RUN_STATE_CANCELLED, 130, "")))
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
	manager.Start(t)

	command := manager.Begin(t, "run", "md", "--", "program")
	command.AwaitText(t, "begun")
	command.Signals <- os.Interrupt
	if number := <-interrupted; number != 2 {
		t.Errorf("the run got signal %d", number)
	}
	command.Signals <- os.Interrupt
	if result := command.Wait(t); result.Status != 130 || !strings.Contains(result.Err, "attach again with `watari run attach md-run-1`") {
		t.Errorf("%+v", result)
	}

	command = manager.Begin(t, "run", "attach", "md-run-1")
	command.AwaitText(t, "begun")
	command.Signals <- os.Interrupt
	<-interrupted
	close(stay)
	if result := command.Wait(t); result.Status != 130 || !strings.Contains(result.Err, "run md-run-1 was cancelled") {
		t.Errorf("%+v", result)
	}
}

func TestRunStagesFirstAndCollectsAtTheEnd(t *testing.T) {
	folder := t.TempDir()
	input, log := filepath.Join(folder, "in.melt"), filepath.Join(folder, "log")
	if err := os.WriteFile(input, []byte(strings.Repeat("units lj\n", 100_000)), 0o640); err != nil {
		t.Fatal(err)
	}
	var order []string
	tries := 0
	manager := &stub.Manager{
		Unary: func(ctx context.Context, request any) (any, error) {
			switch r := request.(type) {
			case *v1.CreateRunRequest:
				if !r.Spec.Hold {
					t.Error("the run does not wait for its files")
				}
			case *v1.StartRunRequest:
				order = append(order, "start "+r.Name)
				return &v1.StartRunResponse{Run: runs[0]}, nil
			}
			return answers(ctx, request)
		},
		OnPutFile: func(first *v1.ControlPutFileRequest, data []byte) error {
			if tries++; tries == 1 {
				return connect.NewError(connect.CodeFailedPrecondition, errors.New("cluster md is not ready: 1 of 4 guests"))
			}
			if first.Run != "md-run-1" || first.File.Path != "in" || first.File.Mode != 0o640 || len(data) != 900_000 {
				t.Errorf("%v, %d bytes", first, len(data))
			}
			order = append(order, "put")
			return nil
		},
		OnRunOutput: func(_ context.Context, _ *v1.RunOutputRequest, send func(*v1.RunOutputResponse) error) error {
			order = append(order, "output")
			return send(output("", "", ended(v1.RunState_RUN_STATE_EXITED, 3, "")))
		},
		OnGetFile: func(_ context.Context, r *v1.ControlGetFileRequest, send func(*v1.ControlGetFileResponse) error) error {
			if r.Path != "log.lammps" {
				return connect.NewError(connect.CodeNotFound, errors.New("there is no file "+r.Path))
			}
			if r.Offset == 0 { // then the connection breaks
				return send(&v1.ControlGetFileResponse{File: &v1.GetFileResponse{Data: []byte("Loop "), Size: 9, Mode: 0o600}})
			}
			return send(&v1.ControlGetFileResponse{File: &v1.GetFileResponse{Data: []byte("time"), Size: 9}})
		},
	}
	manager.Start(t)
	result := manager.Run(t, "run", "md", "--stage", input+":in", "--collect", "log.lammps:"+log, "--collect", "nothing:"+log+"2", "--", "lmp")
	if got, _ := os.ReadFile(log); string(got) != "Loop time" {
		t.Errorf("collected %q", got)
	}
	if got := strings.Join(order, ", "); got != "put, start md-run-1, output" {
		t.Errorf("order: %s", got)
	}
	if result.Status != 3 || !strings.Contains(result.Err, "collect nothing of run md-run-1: there is no file nothing") ||
		!strings.Contains(result.Err, "waiting to stage") {
		t.Errorf("%+v", result)
	}
	if _, err := os.Stat(log + "2"); err == nil {
		t.Error("a file that could not be collected is there")
	}
}

func TestRunIsTakenBackWhenStagingFails(t *testing.T) {
	input := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(input, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	takenBack := false
	manager := (&stub.Manager{
		Unary: func(ctx context.Context, request any) (any, error) {
			if _, ok := request.(*v1.CancelRunRequest); ok {
				takenBack = true
				return &v1.CancelRunResponse{Run: runs[0]}, nil
			}
			return answers(ctx, request)
		},
		OnPutFile: func(*v1.ControlPutFileRequest, []byte) error {
			return connect.NewError(connect.CodeResourceExhausted, errors.New("the guest's disk is full"))
		},
	}).Start(t)
	result := manager.Run(t, "run", "md", "--stage", input, "--", "lmp")
	if result.Status != 1 || !takenBack || !strings.Contains(result.Err, "the guest's disk is full") {
		t.Errorf("taken back: %v; %+v", takenBack, result)
	}
}

func TestExecPassesStreamsOnOverABrokenConnection(t *testing.T) {
	first := make(chan struct{})
	manager := &stub.Manager{}
	var id string
	manager.OnExec = func(ctx context.Context, both *connect.BidiStream[v1.GuestExecRequest, v1.GuestExecResponse]) error {
		begin, err := both.Receive()
		if err != nil {
			return err
		}
		if id == "" { // reads two bytes of input, prints hello, and loses the connection
			id = begin.Start.Id
			if _, err := both.Receive(); err != nil {
				return err
			}
			_ = both.Send(&v1.GuestExecResponse{Output: &v1.AttachResponse{Stdout: []byte("hello "), StdinOffset: 2}})
			<-first
			return nil
		}
		if begin.Start.Id != id || begin.Input.GetStdoutOffset() != 6 {
			t.Errorf("second attach: %v", begin)
		}
		var input []byte
		for closed := false; !closed; {
			next, err := both.Receive()
			if err != nil {
				return err
			}
			if next.Input.StdinOffset != 2+uint64(len(input)) {
				t.Errorf("input at %d after %d bytes", next.Input.StdinOffset, 2+len(input))
			}
			input, closed = append(input, next.Input.Stdin...), next.Input.StdinClosed
		}
		return both.Send(&v1.GuestExecResponse{Output: &v1.AttachResponse{Stdout: append([]byte("llo "), input...), StdoutOffset: 2,
			Ended: &v1.Process{ExitCode: 7}}})
	}
	manager.Start(t)
	command := manager.BeginWithInput(t, "abcdef", "guest", "exec", "-i", "md-0", "--", "cat")
	command.AwaitText(t, "hello")
	close(first)
	if result := command.Wait(t); result.Out != "hello cdef" || result.Status != 7 {
		t.Errorf("%+v", result)
	}
}

func TestRunThatCouldNotBeStartedSaysWhy(t *testing.T) {
	manager := (&stub.Manager{Unary: answers, OnRunOutput: func(_ context.Context, _ *v1.RunOutputRequest, send func(*v1.RunOutputResponse) error) error {
		return send(output("", "", ended(v1.RunState_RUN_STATE_EXITED, 126, "run as user x: unknown user x")))
	}}).Start(t)
	if result := manager.Run(t, "run", "md", "-u", "x", "--", "true"); result.Status != 126 || result.Err != "watari: run md-run-1: run as user x: unknown user x\n" {
		t.Errorf("%+v", result)
	}
}
