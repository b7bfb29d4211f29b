package controller

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

// mixedFixture has the hosts a1 and c1 with avx2, and b1 without.
func mixedFixture(t *testing.T) *fixture {
	f := newFixture(t, "a1", "b1", "c1")
	for name, features := range map[string]string{"a1": "avx2 sse2", "b1": "sse2", "c1": "avx2 sse2"} {
		f.hosts.with(name, func(h *fakeHost) {
			info := proto.CloneOf(h.report.Info)
			info.Acceleration = &v1.Acceleration{Kind: v1.AccelerationKind_ACCELERATION_KIND_KVM}
			info.GuestSupport = &v1.GuestSupport{Machines: []string{"pc-i440fx-7.2"}, ModelFeatures: []string{"sse2"},
				Models: []*v1.CPUModel{{Name: "EPYC", Usable: true}},
				Cpu:    &v1.CPU{Vendor: "AMD", Model: "EPYC", Features: strings.Fields(features)}}
			h.report.Info = info
		})
	}
	f.until("hosts have said what they can run", func(s *store.Snapshot) bool {
		return s.Hosts["a1"].GetInfo().GetGuestSupport() != nil && s.Hosts["b1"].GetInfo().GetGuestSupport() != nil &&
			s.Hosts["c1"].GetInfo().GetGuestSupport() != nil
	})
	return f
}

func (f *fixture) drain(host string) {
	h := proto.CloneOf(f.store.Snapshot().Hosts[host])
	h.Draining = true
	f.txn(store.Update(h))
}

func TestADrainInAMixedFleetFindsTheHostThatFits(t *testing.T) {
	f := mixedFixture(t)
	f.cluster("md", 1, 0, func(spec *v1.ClusterSpec) { spec.Cpu = "host" })
	f.until("cluster ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	s := f.store.Snapshot()
	g := s.Guests["md-0"]
	if g.Host != "a1" || strings.Join(g.GetPlatform().GetCpu().GetFeatures(), " ") != "avx2 sse2" {
		t.Fatalf("guest %v", g)
	}
	if w := f.hosts.hosts["a1"].wanted.Guests[0]; !proto.Equal(w.Platform, g.Platform) {
		t.Errorf("its host was told %v", w)
	}
	_, explanation, err := core.PlanMove(s, f.hosts, g, "b1", "")
	want := "guest md-0 cannot be moved: b1: refused: it lacks CPU feature avx2, which the guest was started with"
	if err == nil || err.Error() != want {
		t.Errorf("to b1: %v (%q)\nwant   %s", err, explanation, want)
	}
	f.drain("a1")
	f.until("it is on c1", func(s *store.Snapshot) bool {
		return s.Guests["md-0"].Host == "c1" && f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY)(s)
	})
	if got := f.store.Snapshot().Guests["md-0"].Platform; !proto.Equal(got, g.Platform) {
		t.Errorf("the move changed what it was started as: %v", got)
	}
	// No host fits now: the guest stays, and no move begins.
	f.drain("c1")
	if _, _, err := core.PlanMove(f.store.Snapshot(), f.hosts, f.store.Snapshot().Guests["md-0"], "", ""); err == nil ||
		!strings.Contains(err.Error(), "b1: refused: it lacks CPU feature avx2") {
		t.Errorf("away from c1: %v", err)
	}
}

func TestTheBaselineMovesEverywhere(t *testing.T) {
	f := mixedFixture(t)
	f.cluster("md", 1, 0)
	f.until("cluster ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	s := f.store.Snapshot()
	if p := s.Clusters["md"].Platforms; len(p) != 1 || strings.Join(p[0].Cpu.Features, " ") != "sse2" || !strings.Contains(p[0].Explanation, "avx2 is left out") {
		t.Errorf("platforms %v", p)
	}
	f.until("moved", f.migrationIs(f.migrate("md-0", "b1"), v1.MigrationState_MIGRATION_STATE_DONE))
}

func TestAClusterThatNoHostCanRunIsRefused(t *testing.T) {
	f := mixedFixture(t)
	spec := &v1.ClusterSpec{Guests: 1, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 512 << 20}, Cpu: "EPYC-Milan"}
	_, err := core.Feasible(f.store.Snapshot(), f.hosts, spec, "", time.Now(), time.Now().Add(-time.Hour))
	if err == nil || !strings.Contains(err.Error(), "a1: its libvirt  does not offer CPU model EPYC-Milan, which the cluster's guests have") {
		t.Errorf("%v", err)
	}
	spec.Cpu = "EPYC"
	if platforms, err := core.Feasible(f.store.Snapshot(), f.hosts, spec, "", time.Now(), time.Now().Add(-time.Hour)); err != nil || platforms[0].Cpu.Model != "EPYC" {
		t.Errorf("%v, %v", platforms, err)
	}
}
