package agent_test

import (
	"context"
	"strings"
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
	end := agent.Hang(t, directory)
	begin, stop := context.WithCancel(ctx)
	go processes.StartProcess(begin, connect.NewRequest(&v1.StartProcessRequest{Id: "waits", Command: []string{"/bin/true"}, Directory: directory}))
	awaitProcess(t, processes, "/bin/true", true)
	stop()
	if _, err := processes.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{Id: "other", Command: []string{"/bin/true"}, Directory: "/"})); err != nil {
		t.Errorf("start another: %v", err)
	}
	if r, err := processes.ListProcesses(ctx, connect.NewRequest(&v1.ListProcessesRequest{})); err != nil || len(r.Msg.GetProcesses()) != 2 {
		t.Errorf("list: %v, %v", r, err)
	}
	end()
	awaitProcess(t, processes, "/bin/true", false)
	if _, err := processes.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: "waits"})); err != nil {
		t.Errorf("forget what waited: %v", err)
	}
}

func TestPeersCannotFillTheAgentsMemory(t *testing.T) {
	_, agents := cluster(t, "md-0", "md-1")
	ctx, peer := agents[0].Peer(t, "md-1")
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err := peer.StartProcess(ctx,
		connect.NewRequest(&v1.StartProcessRequest{Id: "x", Command: []string{"/bin/true", strings.Repeat("x", 8<<20)}}))
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a message of 8 MiB: %v", err)
	}
}

// The agents share this machine's processes. A process that an agent starts for another is no descendant of the launcher.
func TestProcessesThatARunStartsInOtherGuestsAreOfTheRun(t *testing.T) {
	socket, agents := cluster(t, "md-0", "md-1")
	_, processes := host(t, agents[0])
	guests, _ := host(t, agents[1])
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := processes.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{Id: "run-uid",
		Command: []string{launcher(t, socket), "md-1", "PMI_RANK=1 exec sleep 1004"}})); err != nil {
		t.Fatal(err)
	}
	defer processes.ForgetProcess(t.Context(), connect.NewRequest(&v1.ForgetProcessRequest{Id: "run-uid"}))
	for {
		r, err := guests.ListRunProcesses(ctx, connect.NewRequest(&v1.ListRunProcessesRequest{Run: "run-uid"}))
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]*v1.RunProcess{}
		for _, p := range r.Msg.GetProcesses() {
			names[p.GetName()] = p
		}
		if sleep := names["sleep"]; sleep != nil {
			if sleep.Rank == nil || sleep.GetRank() != 1 || names["watari-guest-rs"] == nil {
				t.Errorf("%v", r.Msg)
			}
			break
		}
	}
	if _, err := guests.ListRunProcesses(ctx, connect.NewRequest(&v1.ListRunProcessesRequest{})); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("without a run: %v", err)
	}
}
