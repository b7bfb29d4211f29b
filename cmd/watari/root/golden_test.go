package root_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/stub"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/*.txt anew")

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(stub.Now.Add(-d)) }

func meta(name string) *v1.Meta {
	return &v1.Meta{Name: name, Uid: "5a7c1a52-0000-4000-8000-000000000001", Owner: "aiko", Created: ago(3 * time.Minute)}
}

var (
	hosts = []*v1.Host{
		{Meta: meta("a1"), State: v1.HostState_HOST_STATE_READY, Guests: []string{"md-0", "md-1"},
			Problems: []string{"network: nftables chain input of table filter drops forwarded packets by default", "guest md-1: its console cannot be read"},
			Info: &v1.HostInfo{Site: "a", Cores: 8, MemoryBytes: 16 << 30, LanAddress: "198.18.1.1", Mtu: 1500, CpuModel: "EPYC",
				NumaNodes:    []*v1.NUMANode{{Id: 0, Cpus: []uint32{0, 1, 2, 3}, MemoryBytes: 8 << 30}, {Id: 1, Cpus: []uint32{4, 5, 7}, MemoryBytes: 8 << 30}},
				Acceleration: &v1.Acceleration{Kind: v1.AccelerationKind_ACCELERATION_KIND_TCG, Reason: "the CPU has neither vmx nor svm"},
				GuestSupport: &v1.GuestSupport{Machines: []string{"pc-i440fx-2.0", "pc-i440fx-7.2"}, Cpu: clusters[0].Platforms[0].Cpu,
					Models: []*v1.CPUModel{{Name: "EPYC", Lacks: []string{"sha-ni"}}, {Name: "qemu64", Usable: true}}},
				AgentVersion: "v1", LibvirtVersion: "9.0.0", QemuVersion: "7.2.9", KernelVersion: "6.1", BootId: "b00t"},
			Load: &v1.HostLoad{CpuBusy: 1.25, MemoryAvailableBytes: 12 << 30, DiskAvailableBytes: 100 << 30}, Sample: &v1.HostSample{MigrationReceived: 25 << 20}, LastSeen: ago(2 * time.Second)},
		{Meta: meta("b1"), State: v1.HostState_HOST_STATE_UNREACHABLE, LastSeen: ago(90 * time.Second),
			Withdrawn: []*v1.Withdrawal{{Policy: "harvest", Since: ago(5 * time.Minute), Reason: "the owner is back: host.input_idle < duration(\"10s\")"},
				{Policy: "maintenance", Since: ago(14 * time.Hour), Reason: "the window begins at 13:00"}},
			Info: &v1.HostInfo{Site: "b", Cores: 2, CpuShare: 1.5, MemoryBytes: 4 << 30, Acceleration: &v1.Acceleration{Kind: v1.AccelerationKind_ACCELERATION_KIND_KVM}}},
	}
	clusters = []*v1.Cluster{{Meta: meta("md"), State: v1.ClusterState_CLUSTER_STATE_DEGRADED, ReadyGuests: 1, Prefix: "10.77.3.0/24", Mtu: 1420,
		Message: "guest md-1 is not reachable", ImageDigest: "sha256:0123456789abcdef0123",
		Spec: &v1.ClusterSpec{Guests: 2, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 512 << 20}, Image: "mpi", Sites: []string{"a", "b"}, Spread: v1.Spread_SPREAD_SITE,
			Mounts: []*v1.Mount{{Server: "nfs.lab", Path: "/data", At: "/data", ReadOnly: true}, {Server: "fd00::1", Path: "/", At: "/results"}}},
		Platforms: []*v1.Platform{{Acceleration: v1.AccelerationKind_ACCELERATION_KIND_TCG, Machine: "pc-i440fx-7.2",
			Cpu:         &v1.CPU{Model: "qemu64", Features: []string{"avx2", "sse2"}, Disabled: []string{"svm"}},
			Explanation: "all that guests can have on each of a1, b1"}}}}
	guests = []*v1.Guest{
		{Meta: meta("md-0"), Cluster: "md", State: v1.GuestState_GUEST_STATE_RUNNING, Ready: true, Host: "a1", Address: "10.77.3.10", Epoch: 3, Shape: clusters[0].Spec.Shape,
			Platform: &v1.Platform{Acceleration: v1.AccelerationKind_ACCELERATION_KIND_TCG, Machine: "pc-i440fx-7.2", Cpu: clusters[0].Platforms[0].Cpu, QemuVersion: "7.2.22"}},
		{Meta: meta("md-1"), Cluster: "md", State: v1.GuestState_GUEST_STATE_UNKNOWN, Host: "b1", Address: "10.77.3.11", Epoch: 1,
			Shape: clusters[0].Spec.Shape, Message: "host b1 is unreachable"},
	}
	images = []*v1.Image{{Meta: meta("mpi"), Digest: "sha256:0123456789abcdef0123", Kernel: &v1.Blob{Digest: "sha256:aa", Size: 8 << 20},
		Initrd: &v1.Blob{Digest: "sha256:bb", Size: 4 << 20}, Root: &v1.Blob{Digest: "sha256:cc", Size: 150 << 20}, RootType: "squashfs",
		Source: "packages: lammps, openmpi-bin", Mpi: []string{"openmpi"}, Pm: true}}
	migrations = []*v1.Migration{
		{Meta: meta("md-0-m1"), Guest: "md-0", Source: "a2", Target: "a1", State: v1.MigrationState_MIGRATION_STATE_DONE, TotalMs: 4510, DowntimeMs: 69, SendingMs: 40,
			Progress: &v1.MigrationProgress{TotalBytes: 512 << 20, TransferredBytes: 213 << 20}, SourceEpoch: 2, TargetEpoch: 3},
		{Meta: meta("md-1-m1"), Guest: "md-1", Source: "b1", Target: "a1", State: v1.MigrationState_MIGRATION_STATE_TRANSFERRING,
			Reason: "the owner of b1 is back", Policy: "harvest",
			Progress: &v1.MigrationProgress{TotalBytes: 512 << 20, ProcessedBytes: 128 << 20, RemainingBytes: 384 << 20}},
	}
	runs = []*v1.Run{{Meta: meta("md-run-1"), State: v1.RunState_RUN_STATE_EXITED, ExitCode: 3, Started: ago(2 * time.Minute), Ended: ago(112 * time.Second),
		Spec: &v1.RunSpec{Cluster: "md", Ranks: 4, Transport: v1.Transport_TRANSPORT_PM, Command: []string{"lmp", "-in", "in.melt", "-var", "a", "1", "-var", "b", "2", "-log", "none"}}}}
	processes = []*v1.GuestProcesses{
		{Guest: "md-0", Host: "a1", Omitted: 12, Processes: []*v1.RunProcess{
			{Pid: 312, Name: "mpirun", State: "S", CpuTimeNs: 400e6, MemoryBytes: 11 << 20},
			{Pid: 330, Name: "lmp\x1b[2J", Rank: new(uint32(1)), State: "R", Cpu: 0.994, CpuTimeNs: 131e9, MemoryBytes: 96 << 20},
			{Pid: 331, Name: "lmp", Rank: new(uint32(0)), State: "D", Cpu: 0.37, CpuTimeNs: 90e9, MemoryBytes: 1536 << 20}}},
		{Guest: "md-1", Host: "b1", Error: "the guest does not answer within 4s\x1b[2J"},
	}
	checkpoints = []*v1.Checkpoint{
		{Meta: meta("md-c1"), Cluster: "md", State: v1.CheckpointState_CHECKPOINT_STATE_DONE, Pinned: true, Reason: "user aiko asked for it", StoodMs: 142,
			Verification: &v1.Verification{State: v1.VerificationState_VERIFICATION_STATE_DONE, Guest: "md-1", Host: "b1", Ended: ago(time.Hour)}, Started: ago(2 * time.Hour),
			Taken: ago(119 * time.Minute), Ended: ago(118 * time.Minute), Runs: []*v1.CheckpointRun{{Uid: "r"}},
			Members: []*v1.CheckpointMember{{Guest: "md-0", Host: "a1", File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:aa", Size: 90 << 20}, StateBytes: 500 << 20, Hosts: []string{"a1", "b1"}}},
				{Guest: "md-1", Host: "b1", File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:bb", Size: 110 << 20}, StateBytes: 500 << 20, Hosts: []string{"b1"}}}}},
		{Meta: meta("md-c2"), Cluster: "md", State: v1.CheckpointState_CHECKPOINT_STATE_FAILED, Reason: "every 10m0s", Message: "host b1: no space left on device\x1b[2J", Started: ago(time.Minute), Ended: ago(time.Minute)},
		{Meta: meta("data-s1"), State: v1.CheckpointState_CHECKPOINT_STATE_DONE, Reason: "every 1h0m0s", Started: ago(time.Hour), Taken: ago(time.Hour), Ended: ago(59 * time.Minute), Copies: 3,
			Volume: &v1.CheckpointMember{Guest: "data", Host: "a2", File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:cc", Size: 40 << 20}, StateBytes: 2 << 30, Base: "sha256:dd", Hosts: []string{"a2", "b1"}}}},
	}
	storage = []*v1.Storage{
		{Meta: meta("inputs"), Server: "nfs.lab", Path: "/data", Port: 2049, ReadOnly: true, GatewayPort: 7200},
		{Meta: meta("results"), Server: "fd00::1", Path: "/", Port: 20490, Users: []string{"aiko", "ben"}, Sites: []string{"a"}, GatewayPort: 7201},
	}
	volumes = []*v1.Volume{
		{Meta: meta("data"), SizeBytes: 50 << 30, UsedBytes: 3 << 30, Host: "a2", State: v1.VolumeState_VOLUME_STATE_READY, Cluster: "md",
			Checkpoints: &v1.CheckpointPlan{EverySeconds: 3600, Copies: 3}, Restore: &v1.Restore{Checkpoint: "data-s1", State: v1.RestoreState_RESTORE_STATE_DONE},
			Move: &v1.VolumeMove{Source: "a2", Target: "b1", State: v1.VolumeMoveState_VOLUME_MOVE_STATE_COPYING, CopiedBytes: 1 << 30, TotalBytes: 3 << 30}},
		{Meta: meta("scratch"), SizeBytes: 1 << 40, State: v1.VolumeState_VOLUME_STATE_PENDING, Message: "no host that is connected and keeps volumes has 1.0 TiB of disk free\x1b[2J"},
	}
	users = []*v1.User{{Meta: meta("admin"), Role: v1.Role_ROLE_ADMIN}, {Meta: meta("aiko"), Role: v1.Role_ROLE_USER, Quota: &v1.Quota{Vcpus: 16, MemoryBytes: 32 << 30}}}
)

// answers answers like a manager that has a few objects of each kind.
func answers(_ context.Context, request any) (any, error) {
	switch r := request.(type) {
	case *v1.GetStatusRequest:
		return &v1.GetStatusResponse{Version: "v1", Leader: "https://192.0.2.1:7070", Hosts: 2, HostsReady: 1, Clusters: 1, Guests: 2, GuestsRunning: 1, MigrationsActive: 1, PolicyVersion: 4,
			Problems: []string{"host b1 has been unreachable for 90 s; guest md-1 may well run on there"}}, nil
	case *v1.WhoAmIRequest:
		return &v1.WhoAmIResponse{User: users[0]}, nil
	case *v1.ListHostsRequest:
		return &v1.ListHostsResponse{Hosts: named(hosts, r.Name)}, nil
	case *v1.ListClustersRequest:
		return &v1.ListClustersResponse{Clusters: named(clusters, r.Name)}, nil
	case *v1.ClusterTrafficRequest:
		if r.Name != "md" {
			return &v1.ClusterTrafficResponse{}, nil
		}
		return &v1.ClusterTrafficResponse{Cost: 115e6, Pairs: []*v1.GuestPair{
			{Guest: "md-0", Other: "md-1", Sent: 9e6, Received: 2e6, Host: "a1", OtherHost: "b1", Site: "a", OtherSite: "b", Distance: 10},
			{Guest: "md-0", Other: "md-2", Sent: 4e6, Received: 1e6, Host: "a1", OtherHost: "a2", Site: "a", OtherSite: "a", Distance: 1},
			{Guest: "md-2", Other: "md-3", Sent: 800, Host: "a2", Site: "a"}}}, nil
	case *v1.ListGuestsRequest:
		return &v1.ListGuestsResponse{Guests: named(guests, r.Name)}, nil
	case *v1.ListImagesRequest:
		return &v1.ListImagesResponse{Images: named(images, r.Name)}, nil
	case *v1.ListMigrationsRequest:
		return &v1.ListMigrationsResponse{Migrations: named(migrations, r.Name)}, nil
	case *v1.ListRunsRequest:
		return &v1.ListRunsResponse{Runs: named(runs, r.Name)}, nil
	case *v1.RunProcessesRequest:
		if r.Name != "slow" {
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("run %s has no processes: it is exited", r.Name))
		}
		return &v1.RunProcessesResponse{Guests: processes}, nil
	case *v1.ListGuestConsolesRequest:
		return &v1.ListGuestConsolesResponse{UnreachableHosts: []string{"b2"}, Consoles: []*v1.KeptConsole{
			{Host: "b1", Epoch: 1, Life: 1, Began: ago(3 * time.Hour), Ended: ago(2 * time.Hour), End: "it ended: its QEMU crashed or was killed\x1b[2J", Bytes: 30 << 10},
			{Host: "b1", Epoch: 2, Target: "a1", Began: ago(2 * time.Hour), Ended: ago(time.Hour), End: "it moved to a1", Bytes: 512}}}, nil
	case *v1.ListCheckpointsRequest:
		return &v1.ListCheckpointsResponse{Checkpoints: named(checkpoints, r.Name)}, nil
	case *v1.DeleteCheckpointRequest:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("cluster md is being restored from checkpoint md-c1; delete it afterwards"))
	case *v1.ChangeCheckpointRequest:
		return &v1.ChangeCheckpointResponse{Checkpoint: checkpoints[0]}, nil
	case *v1.PlanCheckpointsRequest:
		return &v1.PlanCheckpointsResponse{Cluster: clusters[0], Volume: volumes[0]}, nil
	case *v1.VerifyCheckpointRequest:
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no checkpoint \"md-c9\"; there are data-s1, md-c1, md-c2"))
	case *v1.RestoreCheckpointRequest:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("checkpoint md-c2 cannot be restored: it is failed; host b1: no space left on device"))
	case *v1.ListVolumesRequest:
		return &v1.ListVolumesResponse{Volumes: named(volumes, r.Name)}, nil
	case *v1.CreateVolumeRequest:
		return &v1.CreateVolumeResponse{Volume: volumes[1]}, nil
	case *v1.MoveVolumeRequest:
		if r.Host == "b9" {
			return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("volume data cannot move to host b9: that host keeps no volumes"))
		}
		return &v1.MoveVolumeResponse{Volume: volumes[0]}, nil
	case *v1.DeleteVolumeRequest:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("cluster md uses volume data; delete the cluster first (`watari cluster delete md`)"))
	case *v1.ListStorageRequest:
		return &v1.ListStorageResponse{Storage: storage}, nil
	case *v1.AllowStorageRequest:
		return &v1.AllowStorageResponse{Storage: r.Storage}, nil
	case *v1.ForbidStorageRequest:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("storage inputs is mounted in md; delete the clusters first"))
	case *v1.SpareHostRequest:
		return &v1.SpareHostResponse{Host: hosts[1]}, nil
	case *v1.ListUsersRequest:
		return &v1.ListUsersResponse{Users: users}, nil
	case *v1.CreateClusterRequest:
		if r.Spec.Guests > 4 {
			return nil, connect.NewError(connect.CodeResourceExhausted, errors.New("no host has 64 GiB free: a1 has 12 GiB, b1 is unreachable"))
		}
		return &v1.CreateClusterResponse{Cluster: clusters[0], Existed: r.Spec.Guests == 2}, nil
	case *v1.AddUserRequest:
		return &v1.AddUserResponse{User: users[1], Token: "watari1.token"}, nil
	case *v1.CreateTokenRequest:
		return &v1.CreateTokenResponse{Token: "watari1.token", Expires: timestamppb.New(stub.Now.Add(r.Valid.AsDuration()))}, nil
	case *v1.SetQuotaRequest:
		return &v1.SetQuotaResponse{User: &v1.User{Meta: meta(r.Name), Quota: r.Quota}}, nil
	case *v1.RemoveHostRequest:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("2 guests are on it: md-0, md-1; drain it first: watari host drain a1"))
	case *v1.RemoveImageRequest:
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("image mpi is admin's"))
	case *v1.MigrateRequest:
		return &v1.MigrateResponse{Migration: migrations[1], Explanation: []string{"a1: chosen: 12 GiB free", "b2: refused: 100 MiB free, 512 MiB wanted"}}, nil
	case *v1.ListPoliciesRequest:
		return listPolicies(r), nil
	case *v1.ApplyPolicyRequest:
		return applyPolicy(r)
	case *v1.TestPolicyRequest:
		return testPolicy(r)
	case *v1.ExplainRequest:
		return explain(r)
	case *v1.RecoverRequest:
		return recovery(r)
	case *v1.CreateRunRequest:
		return &v1.CreateRunResponse{Run: runs[0]}, nil
	}
	return nil, connect.NewError(connect.CodeUnimplemented, fmt.Errorf("%T", request))
}

// recovery has a conflict until a copy is chosen.
func recovery(r *v1.RecoverRequest) (*v1.RecoverResponse, error) {
	response := &v1.RecoverResponse{Held: true, Evidence: []string{"host a1 took up orders of term 7 (t) at revision 40, and this manager's state does not know that term"},
		Guests: []*v1.GuestRecovery{
			{Guest: "lu-0", Cluster: "lu", Act: v1.RecoveryAct_RECOVERY_ACT_ADOPT, Host: "a1", Epoch: 2, Reason: "its cluster is made again"},
			{Guest: "md-0", Cluster: "md", Act: v1.RecoveryAct_RECOVERY_ACT_CONFLICT, Host: "a1, b1", Epoch: 3, Reason: "several hosts run copies of it"},
			{Guest: "x\x1b[2J", Act: v1.RecoveryAct_RECOVERY_ACT_LEAVE, Host: "b1", Reason: "too little\x1b[2J is known"}},
		Clusters: []*v1.ClusterRecovery{{Cluster: "lu", Owner: "aiko", Guests: 1, Notes: []string{"its owner, user aiko, is not known"}}},
		Hosts:    []*v1.HostRecovery{{Host: "b2", Vouched: len(r.Without) > 0, Reason: "it is not connected"}}}
	if r.Keep["md-0"] == "" {
		response.Obstacles = []string{"guest md-0 runs on a1 and b1; say whose copy goes on, the others are ended: --keep md-0=HOST"}
	}
	if r.Apply && len(response.Obstacles) > 0 {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("nothing was done: "+response.Obstacles[0]))
	}
	response.Done = r.Apply
	return response, nil
}

func named[T interface{ GetMeta() *v1.Meta }](all []T, name string) []T {
	var found []T
	for _, one := range all {
		if name == "" || one.GetMeta().GetName() == name {
			found = append(found, one)
		}
	}
	return found
}

// TestDialogues runs the command lines of testdata/*.txt, which begin with "$ ", and compares all of their output.
func TestDialogues(t *testing.T) {
	manager := (&stub.Manager{Unary: answers, OnEvents: func(_ context.Context, _ *v1.EventsRequest, send func(*v1.EventsResponse) error) error {
		for i, event := range []*v1.Event{
			{Kind: "cluster", Name: "md", Actor: "aiko", Message: "created: 2 guests", Severity: v1.Severity_SEVERITY_INFO},
			{Kind: "host", Name: "b1", Actor: "manager", Message: "unreachable", Severity: v1.Severity_SEVERITY_WARNING},
			{Kind: "guest", Name: "md-1", Actor: "manager", Severity: v1.Severity_SEVERITY_WARNING,
				Message: "ended on b1: its QEMU ended: the guest powered itself off or reset itself; its console ended with:\nKernel panic - not syncing: x\nRebooting immediately.."}} {
			event.Id, event.At = uint64(i+1), ago(time.Minute)
			if err := send(&v1.EventsResponse{Event: event}); err != nil {
				return err
			}
		}
		return nil
	}, OnAudit: func(_ context.Context, _ *v1.AuditRequest, send func(*v1.AuditResponse) error) error {
		return errors.Join(
			send(&v1.AuditResponse{Entry: &v1.AuditEntry{At: ago(time.Minute), Caller: "user aiko", Uid: "u1", Address: "192.0.2.7:40112", Call: "GuestConsole", Object: "md-0"}}),
			send(&v1.AuditResponse{Entry: &v1.AuditEntry{At: ago(time.Minute), Address: "192.0.2.66:1024", Call: "ListUsers", LeftOut: 3,
				Code: "unauthenticated", Error: "a certificate is needed"}}))
	}}).Start(t)
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dialogues: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for line := range strings.Lines(string(want)) {
				if words, ok := strings.CutPrefix(line, "$ watari "); ok {
					fmt.Fprint(&got, line)
					writeResult(&got, manager.Run(t, strings.Fields(words)...))
				}
			}
			if *rewrite {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got.String() != string(want) {
				t.Errorf("%s differs (go test -rewrite accepts it); got:\n%s", file, got.String())
			}
		})
	}
}

// writeResult writes standard output unchanged, standard error after "! ", and a status other than 0.
func writeResult(w *bytes.Buffer, result stub.Result) {
	w.WriteString(result.Out)
	for line := range strings.Lines(result.Err) {
		fmt.Fprint(w, "! ", line)
	}
	if result.Status != 0 {
		fmt.Fprintf(w, "? %d\n", result.Status)
	}
	fmt.Fprintln(w)
}
