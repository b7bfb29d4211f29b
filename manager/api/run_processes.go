package api

// run_processes.go - the processes of a run, which its guests list.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"watari/core"
	"watari/internal/printable"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
)

const (
	// listPatience is how long a guest may take to list its processes. It needs a second for that.
	listPatience = 4 * time.Second
	// listsAtOnce is the number of guests that are asked concurrently.
	listsAtOnce = 256
	// maxList bounds a guest's answer, in bytes. A full one takes half of that.
	maxList = 128 << 10
	// maxGuestProcesses and maxRunProcesses bound the processes that are listed of one guest, and of all.
	maxGuestProcesses = 1000
	maxRunProcesses   = 20_000
	// maxProcessName and maxListError bound the texts that come from guests, in characters.
	maxProcessName = 32
	maxListError   = 200
	// maxCores is more than a process can use. Guests have fewer.
	maxCores = 10_000
)

// RunProcesses asks the guests of a run for its processes.
func (s *Server) RunProcesses(ctx context.Context, r *connect.Request[v1.RunProcessesRequest]) (*connect.Response[v1.RunProcessesResponse], error) {
	snap := s.Store.Snapshot()
	run, err := find(callerOf(ctx), "run", r.Msg.Name, snap.Runs)
	if err != nil {
		return nil, err
	}
	if run.State != v1.RunState_RUN_STATE_RUNNING {
		return nil, fail(connect.CodeFailedPrecondition, "run %s has no processes: it is %s", run.Meta.Name, core.StateName(run.State.String()))
	}
	var guests []*v1.Guest
	for name, epoch := range run.StartedEpochs {
		// If another copy runs, or a later cluster has the name, the run is about to end.
		if g := snap.Guests[name]; g != nil && g.StartedEpoch == epoch && callerOf(ctx).owns(g.Meta) {
			guests = append(guests, g)
		}
	}
	slices.SortFunc(guests, func(a, b *v1.Guest) int { return cmp.Compare(a.Index, b.Index) })
	lists := askForProcesses(ctx, guests, listPatience, func(ctx context.Context, g *v1.Guest, most int) (*v1.ListRunProcessesResponse, error) {
		client, url, err := s.reach(g)
		if err != nil {
			return nil, err
		}
		guest := watariv1connect.NewGuestServiceClient(client, url, connect.WithReadMaxBytes(maxList))
		list, err := guest.ListRunProcesses(ctx, connect.NewRequest(&v1.ListRunProcessesRequest{Run: run.Meta.Uid, Most: uint32(most)}))
		if err != nil {
			return nil, err
		}
		return list.Msg, nil
	})
	return connect.NewResponse(&v1.RunProcessesResponse{Guests: lists}), nil
}

// askForProcesses asks guests for at most so many processes each, and returns their lists in the guests' order. If a guest does not
// answer within its time, its list has the reason.
func askForProcesses(ctx context.Context, guests []*v1.Guest, patience time.Duration,
	ask func(ctx context.Context, g *v1.Guest, most int) (*v1.ListRunProcessesResponse, error)) []*v1.GuestProcesses {
	most := min(maxGuestProcesses, maxRunProcesses/max(1, len(guests)))
	lists := make([]*v1.GuestProcesses, len(guests))
	turns := make(chan struct{}, listsAtOnce)
	var asked sync.WaitGroup
	for i, g := range guests {
		asked.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			list, err := ask(ctx, g, most)
			lists[i] = &v1.GuestProcesses{Guest: g.Meta.Name, Host: g.Host}
			if err != nil {
				lists[i].Error = whyNoList(err, patience)
				return
			}
			lists[i].Processes, lists[i].Omitted = bounded(list, most)
		})
	}
	asked.Wait()
	return lists
}

// whyNoList says for people why a guest has not listed its processes.
func whyNoList(err error, patience time.Duration) string {
	var coded *connect.Error
	switch code := connect.CodeOf(err); {
	case errors.Is(err, context.DeadlineExceeded) || code == connect.CodeDeadlineExceeded:
		return fmt.Sprintf("the guest does not answer within %v", patience)
	case code == connect.CodeUnimplemented: // which is also the code of a host that does not have the guest any more
		return "the guest's agent is of an earlier version, or the guest moves"
	case errors.As(err, &coded):
		return printable.Line(coded.Message(), maxListError)
	}
	return printable.Line(err.Error(), maxListError)
}

// bounded copies a guest's answer. The owner of a guest may have replaced its agent, so the answer may be anything.
func bounded(list *v1.ListRunProcessesResponse, most int) (processes []*v1.RunProcess, omitted uint32) {
	kept := list.Processes[:min(most, len(list.Processes))]
	for _, p := range kept {
		use := p.Cpu
		if !(use >= 0 && use <= maxCores) {
			use = 0
		}
		processes = append(processes, &v1.RunProcess{Pid: p.Pid, Name: printable.Line(p.Name, maxProcessName), Rank: p.Rank,
			State: printable.Line(p.State, 1), Cpu: use, CpuTimeNs: p.CpuTimeNs, MemoryBytes: p.MemoryBytes})
	}
	return processes, list.Omitted + uint32(len(list.Processes)-len(kept))
}
