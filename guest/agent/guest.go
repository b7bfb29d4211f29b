package agent

// guest.go - GuestService: identity, time, description and runs' processes of this guest, for its host.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/guest/peers"
	"watari/guest/process"
	"watari/internal/version"
)

// guestService serves GuestService to the host.
type guestService struct{ agent *Agent }

func (s *guestService) Identify(ctx context.Context, r *connect.Request[v1.IdentifyRequest]) (*connect.Response[v1.IdentifyResponse], error) {
	if r.Msg.GetIdentity() == nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no identity in the request"))
	}
	arrived := time.Now()
	now := func() *timestamppb.Timestamp { // the request may have to wait for an earlier one
		if r.Msg.GetNow() == nil {
			return nil
		}
		return timestamppb.New(r.Msg.GetNow().AsTime().Add(time.Since(arrived)))
	}
	if err := s.agent.identify(ctx, r.Msg.GetIdentity(), now); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, homeGrace)
	defer cancel()
	if err := s.agent.home.await(wait, true); err != nil && ctx.Err() == nil {
		s.agent.log.Warn("the guest is ready without its home", "reason", s.agent.home.status())
	}
	return connect.NewResponse(&v1.IdentifyResponse{Description: s.agent.describe()}), nil
}

// Describe returns the guest's state. In a guest without identity it first waits for the end of warmUp, because the
// caller may make a template from the guest.
func (s *guestService) Describe(ctx context.Context, _ *connect.Request[v1.DescribeRequest]) (*connect.Response[v1.DescribeResponse], error) {
	if s.agent.current() == nil {
		select {
		case <-s.agent.warm:
		case <-ctx.Done():
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("the guest is still starting"))
		}
	}
	return connect.NewResponse(s.agent.describe()), nil
}

func (s *guestService) SetTime(_ context.Context, r *connect.Request[v1.SetTimeRequest]) (*connect.Response[v1.SetTimeResponse], error) {
	if err := r.Msg.GetNow().CheckValid(); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("time: %w", err))
	}
	stepped, err := setClock(r.Msg.GetNow().AsTime())
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&v1.SetTimeResponse{SteppedNs: stepped.Nanoseconds()}), nil
}

// lookInterval is the time over which ListRunProcesses measures the use of processors.
const lookInterval = time.Second

func (s *guestService) ListRunProcesses(ctx context.Context, r *connect.Request[v1.ListRunProcessesRequest]) (*connect.Response[v1.ListRunProcessesResponse], error) {
	if r.Msg.GetRun() == "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no run in the request"))
	}
	most := cmp.Or(int(r.Msg.GetMost()), process.MaxMarked)
	list, omitted, err := process.Marked(ctx, r.Msg.GetRun(), lookInterval, most) // a run's process has the run's uid as its id
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ListRunProcessesResponse{Processes: list, Omitted: uint32(omitted)}), nil
}

// describe returns the guest's identity and state.
func (a *Agent) describe() *v1.DescribeResponse {
	d := &v1.DescribeResponse{
		AgentVersion: version.Version,
		Now:          timestamppb.New(time.Now()),
		Mpi:          findMPI(),
		Home:         "not identified yet",
		OutOfMemory:  a.memory.state(),
		CpuTimes:     process.CPUTimes("/proc/stat"),

		MountsStorage: true,
	}
	if i := a.current(); i != nil {
		boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // the kernel makes it at the first read, so not in a template
		d.BootId = strings.TrimSpace(string(boot))
		d.GuestUid, d.Name, d.Epoch = i.GetGuestUid(), i.GetName(), i.GetEpoch()
		d.Home = a.home.status()
		d.Storage = a.storage.status()
		d.PeersHash = peers.Hash(i.GetPeers(), i.GetHomeServer())
	}
	return d
}

// findMPI returns the names of the MPI libraries whose launchers are installed.
func findMPI() []string {
	var found []string
	for _, mpi := range []struct{ name, file string }{
		{"openmpi", "/usr/bin/orted"}, {"openmpi", "/usr/local/bin/orted"},
		{"openmpi", "/usr/bin/prted"}, {"openmpi", "/usr/local/bin/prted"}, // from 5.0 on
		{"mpich", "/usr/bin/mpiexec.hydra"}, {"mpich", "/usr/bin/hydra_pmi_proxy"}, {"mpich", "/usr/local/bin/hydra_pmi_proxy"},
	} {
		if _, err := os.Stat(mpi.file); err == nil && !slices.Contains(found, mpi.name) {
			found = append(found, mpi.name)
		}
	}
	return found
}
