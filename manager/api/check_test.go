package api

import (
	"strings"
	"testing"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

func TestRefusalsAreForPeopleToRead(t *testing.T) {
	spec := func(memory uint64) *v1.ClusterSpec {
		return &v1.ClusterSpec{Guests: 1, Image: "mpi", Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: memory}}
	}
	users := map[string]*v1.User{
		"ann": {Meta: &v1.Meta{Name: "ann"}, Quota: &v1.Quota{Vcpus: 1}},
		"bob": {Meta: &v1.Meta{Name: "bob"}, Quota: &v1.Quota{MemoryBytes: 1 << 30}},
	}
	guests := map[string]*v1.Guest{
		"lu-0": {Meta: &v1.Meta{Name: "lu-0", Owner: "ann"}, Shape: spec(512 << 20).Shape},
		"cg-0": {Meta: &v1.Meta{Name: "cg-0", Owner: "bob"}, Shape: spec(768 << 20).Shape},
	}
	snap := &store.Snapshot{Users: users, Guests: guests}
	for want, err := range map[string]error{
		"24 MiB of memory: a guest has 64 MiB to 16 TiB":                                             checkSpec(spec(24 << 20)),
		"67,108,865 bytes of memory are no whole number of MiB; give one, say 64 MiB":                checkSpec(spec(64<<20 + 1)),
		"the quota of user ann is 1 vCPU, with 1 in use and 1 more asked for":                        checkQuota(snap, "ann", spec(64<<20)),
		"the quota of user bob is 1.0 GiB of memory, with 768 MiB in use and 512 MiB more asked for": checkQuota(snap, "bob", spec(512<<20)),
		"or have an administrator raise it (`watari quota set bob --memory ...`)":                    checkQuota(snap, "bob", spec(512<<20)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	larger := spec(128 << 20)
	larger.Guests, larger.Shape.Vcpus, larger.Cpu = 3, 2, "host"
	want := "it has 1 guest, not 3; its guests have 1 vCPU, not 2; its guests have 64 MiB of memory, not 128 MiB; its guests' CPU is baseline, not host"
	if got := differences(spec(64<<20), larger); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := quotaText(&v1.Quota{Vcpus: 8}); got != "8 vCPUs, any amount of memory" {
		t.Error(got)
	}
}

func TestACPUIsAPolicyOrAName(t *testing.T) {
	for cpu, kept := range map[string]string{"": "", "baseline": "", "host": "host", "EPYC-Rome": "EPYC-Rome", "Skylake-Server-v4": "Skylake-Server-v4"} {
		spec := &v1.ClusterSpec{Guests: 1, Image: "mpi", Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 64 << 20}, Cpu: cpu}
		if err := checkSpec(spec); err != nil || spec.Cpu != kept {
			t.Errorf("%q: %q, %v", cpu, spec.Cpu, err)
		}
		spec.Cpu = cpu + "<"
		if err := checkSpec(spec); err == nil || !strings.Contains(err.Error(), "use baseline, host, or a named model") {
			t.Errorf("%q: %v", spec.Cpu, err)
		}
	}
}

func TestARunIsBounded(t *testing.T) {
	run := func(bytes int) *v1.RunSpec {
		return &v1.RunSpec{Cluster: "md", Command: []string{"x"}, Env: map[string]string{"A": strings.Repeat("x", bytes)}}
	}
	if err := checkRun("r1", run(100<<10)); err != nil {
		t.Error(err)
	}
	if err := checkRun("r1", run(1<<20)); err == nil || !strings.Contains(err.Error(), "have 1.0 MiB; at most 256 KiB") {
		t.Error(err)
	}
	snap := &store.Snapshot{Runs: map[string]*v1.Run{
		"a": {Spec: run(1), State: v1.RunState_RUN_STATE_PENDING},
		"b": {Spec: run(1), State: v1.RunState_RUN_STATE_RUNNING},
		"c": {Spec: run(1), State: v1.RunState_RUN_STATE_EXITED},
		"d": {Spec: &v1.RunSpec{Cluster: "lu"}, State: v1.RunState_RUN_STATE_RUNNING},
	}}
	if n := unended(snap, "md"); n != 2 {
		t.Errorf("%d runs of md have not ended", n)
	}
}

func TestNobodyWhoWasRemovedGetsACluster(t *testing.T) {
	spec := &v1.ClusterSpec{Guests: 1, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 64 << 20}}
	if err := checkQuota(&store.Snapshot{}, "ann", spec); err == nil || !strings.Contains(err.Error(), "user ann was removed") {
		t.Error(err)
	}
}
