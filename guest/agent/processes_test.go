package agent_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/guest/agent"
)

func TestProcessesAreReachedWhileOneWaitsForItsDirectory(t *testing.T) {
	_, processes := host(t, newAgent(t))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	directory := t.TempDir()
	agent.Hang(t, directory)
	begin, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	processes.StartProcess(begin, connect.NewRequest(&v1.StartProcessRequest{Id: "waits", Command: []string{"/bin/true"}, Directory: directory}))
	<-begin.Done()
	if _, err := processes.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{Id: "other", Command: []string{"/bin/true"}, Directory: "/"})); err != nil {
		t.Errorf("start another: %v", err)
	}
	if r, err := processes.ListProcesses(ctx, connect.NewRequest(&v1.ListProcessesRequest{})); err != nil || len(r.Msg.GetProcesses()) != 2 {
		t.Errorf("list: %v, %v", r, err)
	}
}
