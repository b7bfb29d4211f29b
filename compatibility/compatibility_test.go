package compatibility

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "watari/api/watariv1"
)

const (
	kvm = v1.AccelerationKind_ACCELERATION_KIND_KVM
	tcg = v1.AccelerationKind_ACCELERATION_KIND_TCG
)

// host returns a host with KVM and a CPU by AMD. features lists the CPU's features.
func host(model string, own, features string, models ...string) *v1.HostInfo {
	h := &v1.HostInfo{
		Acceleration: &v1.Acceleration{Kind: kvm}, QemuVersion: "7.2.22", LibvirtVersion: "9.0.0", CpuModel: model + " processor",
		GuestSupport: &v1.GuestSupport{
			Machines: []string{"pc-i440fx-6.2", "pc-i440fx-7.2"}, ModelFeatures: strings.Fields(own),
			Cpu: &v1.CPU{Vendor: "AMD", Model: model, Features: strings.Fields(features)},
		},
	}
	h.GuestSupport.Cpu.Disabled = Without(h.GuestSupport.ModelFeatures, h.GuestSupport.Cpu.Features)
	for _, name := range append(models, model) {
		h.GuestSupport.Models = append(h.GuestSupport.Models, &v1.CPUModel{Name: name, Usable: true})
	}
	return h
}

func oldHost() *v1.HostInfo { return host("EPYC", "avx2 npt sse2", "avx2 sse2", "EPYC-Milan") }

func newHost() *v1.HostInfo {
	return host("EPYC-Milan", "avx2 npt pku sse2 vaes", "avx2 pku sse2 vaes", "EPYC")
}

func cluster(cpu string, hosts map[string]*v1.HostInfo) *v1.Cluster {
	spec := &v1.ClusterSpec{Cpu: cpu}
	return &v1.Cluster{Spec: spec, Platforms: Platforms(spec, hosts)}
}

// started returns a guest of the cluster after its start on a host.
func started(c *v1.Cluster, h *v1.HostInfo, hosts map[string]*v1.HostInfo) *v1.Guest {
	p, _ := Start(c, h, hosts)
	return &v1.Guest{Platform: p}
}

func TestBaselineIsWhatAllHaveAndSaysWhatItCosts(t *testing.T) {
	hosts := map[string]*v1.HostInfo{"a1": newHost(), "a2": newHost(), "b1": oldHost()}
	c := cluster(Baseline, hosts)
	if len(c.Platforms) != 1 {
		t.Fatalf("platforms %v", c.Platforms)
	}
	p := c.Platforms[0]
	want := &v1.CPU{Vendor: "AMD", Model: "EPYC", Features: []string{"avx2", "sse2"}, Disabled: []string{"npt"}}
	if !proto.Equal(p.Cpu, want) || p.Machine != "pc-i440fx-7.2" || p.Acceleration != kvm {
		t.Errorf("platform %v", p)
	}
	if want := "all that guests can have on each of a1, a2, b1; pku, vaes are left out, not to be had on b1"; p.Explanation != want {
		t.Errorf("explanation %q, not %q", p.Explanation, want)
	}
	for name, h := range hosts {
		g := started(c, h, hosts)
		if g.Platform.QemuVersion != "7.2.22" || g.Platform.Explanation != "" {
			t.Errorf("guest on %s: %v", name, g.Platform)
		}
		for other, target := range hosts {
			if reason := RefuseMove(g, h, target); reason != "" {
				t.Errorf("from %s to %s: %s", name, other, reason)
			}
		}
	}
}

func TestAllOfAHostMovesToHostsThatHaveAllOfIt(t *testing.T) {
	hosts := map[string]*v1.HostInfo{"a1": newHost(), "b1": oldHost()}
	c := cluster(Host, hosts)
	rich, poor := started(c, hosts["a1"], hosts), started(c, hosts["b1"], hosts)
	if !proto.Equal(rich.Platform.Cpu, hosts["a1"].GuestSupport.Cpu) {
		t.Errorf("CPU %v", rich.Platform.Cpu)
	}
	if got, want := RefuseMove(rich, hosts["a1"], hosts["b1"]), "it lacks CPU features pku, vaes, which the guest was started with"; got != want {
		t.Errorf("to the host with less: %q, not %q", got, want)
	}
	if reason := RefuseMove(poor, hosts["b1"], hosts["a1"]); reason != "" {
		t.Errorf("to the host with more: %s", reason)
	}
}

func TestRefusalsNameWhatIsMissing(t *testing.T) {
	fleet := map[string]*v1.HostInfo{"a1": newHost()}
	guest := started(cluster(Baseline, fleet), fleet["a1"], fleet)
	change := func(f func(*v1.HostInfo)) *v1.HostInfo { h := newHost(); f(h); return h }
	for _, test := range []struct {
		want string
		host *v1.HostInfo
	}{
		{"", newHost()},
		{"it runs guests by emulation (TCG), and the guest was started with KVM", change(func(h *v1.HostInfo) { h.Acceleration.Kind = tcg })},
		{"its libvirt has not answered its agent yet", change(func(h *v1.HostInfo) { h.GuestSupport = &v1.GuestSupport{} })},
		{"its agent does not say which CPUs guests can have there; upgrade watari-agent", change(func(h *v1.HostInfo) { h.GuestSupport = nil })},
		{"its QEMU 7.2.22 does not offer machine type pc-i440fx-7.2", change(func(h *v1.HostInfo) { h.GuestSupport.Machines = []string{"pc-i440fx-6.2"} })},
		{"its CPU is by Intel, and the guest was started with one by AMD", change(func(h *v1.HostInfo) { h.GuestSupport.Cpu.Vendor = "Intel" })},
		{"its libvirt 9.0.0 does not offer CPU model EPYC-Milan, which the guest was started with", change(func(h *v1.HostInfo) { h.GuestSupport.Models = nil })},
		{"it lacks CPU feature vaes, which the guest was started with", change(func(h *v1.HostInfo) { h.GuestSupport.Cpu.Features = []string{"avx2", "pku", "sse2"} })},
	} {
		if got := RefuseMove(guest, fleet["a1"], test.host); got != test.want {
			t.Errorf("%q, not %q", got, test.want)
		}
	}
}

func TestANewerQEMUsGuestMovesToAnOlderOneThatHasItsMachineType(t *testing.T) {
	newer := newHost()
	newer.QemuVersion = "10.0.2"
	newer.GuestSupport.Machines = []string{"pc-i440fx-7.2", "pc-i440fx-9.2", "pc-i440fx-10.0"}
	alone, both := map[string]*v1.HostInfo{"b1": newer}, map[string]*v1.HostInfo{"a1": newHost(), "b1": newer}
	guest := started(cluster(Baseline, both), newer, both)
	if reason := RefuseMove(guest, newer, newHost()); reason != "" || guest.Platform.Machine != "pc-i440fx-7.2" {
		t.Errorf("%v: %s", guest.Platform, reason)
	}
	newer.GuestSupport.Machines = newer.GuestSupport.Machines[1:]
	guest = started(cluster(Baseline, alone), newer, alone)
	if got, want := RefuseMove(guest, newer, newHost()), "its QEMU 7.2.22 does not offer machine type pc-i440fx-10.0"; got != want {
		t.Errorf("%v: %q, not %q", guest.Platform, got, want)
	}
}

func TestNamedModels(t *testing.T) {
	weak := oldHost()
	weak.GuestSupport.Models[0].Usable, weak.GuestSupport.Models[0].Lacks = false, []string{"pku", "vaes"}
	hosts := map[string]*v1.HostInfo{"a1": newHost(), "b1": weak}
	c := cluster("EPYC-Milan", hosts)
	if reason := RefuseStart(c, hosts["a1"]); reason != "" {
		t.Error(reason)
	}
	if got, want := RefuseStart(c, weak), "it cannot give guests CPU model EPYC-Milan: it lacks pku, vaes"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	guest := started(c, hosts["a1"], hosts)
	if got := RefuseMove(guest, hosts["a1"], weak); !strings.Contains(got, "it lacks pku, vaes") {
		t.Errorf("a move: %q", got)
	}
	if got, want := RefuseStart(&v1.Cluster{Spec: &v1.ClusterSpec{Cpu: "Opteron_X"}}, weak),
		"its libvirt 9.0.0 does not offer CPU model Opteron_X, which the cluster's guests have"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	if got := RefuseStart(c, &v1.HostInfo{}); !strings.Contains(got, "upgrade watari-agent") {
		t.Errorf("an older agent: %q", got)
	}
}

func TestHostsThatSayNothingKeepTheirOwnCPU(t *testing.T) {
	silent := &v1.HostInfo{Acceleration: &v1.Acceleration{Kind: kvm}, CpuModel: "EPYC 7003"}
	other := &v1.HostInfo{Acceleration: &v1.Acceleration{Kind: kvm}, CpuModel: "EPYC 7002"}
	hosts := map[string]*v1.HostInfo{"a1": silent}
	c := cluster(Baseline, hosts)
	guest, added := Start(c, silent, hosts)
	if RefuseStart(c, silent) != "" || len(c.Platforms) != 0 || added != nil || guest.Cpu != nil {
		t.Errorf("%v, %v", guest, added)
	}
	for _, g := range []*v1.Guest{{Platform: guest}, {}} { // an older manager started the second guest
		if reason := RefuseMove(g, silent, proto.CloneOf(silent)); reason != "" {
			t.Error(reason)
		}
		if got := RefuseMove(g, silent, other); !strings.HasPrefix(got, "its CPU is EPYC 7002, and the guest was started with all of EPYC 7003") {
			t.Errorf("%q", got)
		}
	}
	emulated := []*v1.HostInfo{{Acceleration: &v1.Acceleration{Kind: tcg}, CpuModel: "a"}, {Acceleration: &v1.Acceleration{Kind: tcg}, CpuModel: "b"}}
	if reason := RefuseMove(&v1.Guest{}, emulated[0], emulated[1]); reason != "" {
		t.Errorf("emulated: %s", reason)
	}
}

// A host of a kind that did not exist when the cluster was made adds a platform.
func TestAPlatformIsDecidedOnce(t *testing.T) {
	hosts := map[string]*v1.HostInfo{"a1": newHost()}
	c := cluster(Baseline, hosts)
	hosts["b1"] = oldHost()
	if got, want := RefuseStart(c, hosts["b1"]), "it lacks CPU features pku, vaes, which the cluster's guests have"; got != want {
		t.Errorf("a weaker host that joined later: %q, not %q", got, want)
	}
	hosts["c1"] = oldHost()
	hosts["c1"].GuestSupport.Cpu.Vendor = "Intel"
	if reason := RefuseStart(c, hosts["c1"]); reason != "" {
		t.Error(reason)
	}
	guest, added := Start(c, hosts["c1"], hosts)
	if added.GetCpu().GetVendor() != "Intel" || !proto.Equal(added.Cpu, guest.Cpu) {
		t.Errorf("%v, %v", guest, added)
	}
	c.Platforms = append(c.Platforms, added)
	if _, again := Start(c, hosts["c1"], hosts); again != nil {
		t.Errorf("decided again: %v", again)
	}
}

// The report of a real host, and the same report with parts removed.
func TestRealHosts(t *testing.T) {
	text, err := os.ReadFile("../agent/vm/testdata/support/tcg-qemu-7.2.report")
	if err != nil {
		t.Fatal(err)
	}
	full := &v1.HostInfo{Acceleration: &v1.Acceleration{Kind: tcg}, GuestSupport: &v1.GuestSupport{}}
	if err := protojson.Unmarshal(text, full.GuestSupport); err != nil {
		t.Fatal(err)
	}
	if n := proto.Size(full.GuestSupport); n > 8<<10 {
		t.Errorf("the report is of %d bytes", n)
	}
	less := proto.CloneOf(full)
	less.GuestSupport.Cpu.Features = Without(less.GuestSupport.Cpu.Features, []string{"avx2"})
	hosts := map[string]*v1.HostInfo{"a1": full, "b1": less}
	c := cluster(Baseline, hosts)
	p := c.Platforms[0]
	if len(c.Platforms) != 1 || p.Cpu.Model != "qemu64" || slices.Contains(p.Cpu.Features, "avx2") || !slices.Contains(p.Cpu.Features, "avx") ||
		!slices.Equal(p.Cpu.Disabled, []string{"svm"}) || !strings.HasSuffix(p.Explanation, "avx2 is left out, not to be had on b1") {
		t.Errorf("platforms %v", c.Platforms)
	}
	guest := started(cluster(Host, hosts), full, hosts)
	if got, want := RefuseMove(guest, full, less), "it lacks CPU feature avx2, which the guest was started with"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	if got := RefuseMove(guest, full, full); got != "" {
		t.Errorf("to an equal one: %s", got)
	}
}

// Properties, checked with simple sets and counts.

var alphabet = []string{"aes", "avx", "avx2", "bmi1", "fma", "pku", "sse2", "vaes"}

func anyHost() *rapid.Generator[*v1.HostInfo] {
	return rapid.Custom(func(t *rapid.T) *v1.HostInfo {
		set := func(label string) string {
			list := rapid.SliceOfDistinct(rapid.SampledFrom(alphabet), rapid.ID[string]).Draw(t, label)
			slices.Sort(list)
			return strings.Join(list, " ")
		}
		model := rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "model")
		h := host(model, set("own"), set("features")+" base", "A", "B", "C")
		slices.Sort(h.GuestSupport.Cpu.Features)
		h.GuestSupport.Cpu.Vendor = rapid.SampledFrom([]string{"AMD", "Intel"}).Draw(t, "vendor")
		h.GuestSupport.Machines = []string{"pc-i440fx-6.2", "pc-i440fx-7.2", "pc-i440fx-10.0"}[rapid.IntRange(0, 2).Draw(t, "oldest"):]
		return h
	})
}

func anyFleet(t *rapid.T) map[string]*v1.HostInfo {
	hosts := map[string]*v1.HostInfo{}
	for i, h := range rapid.SliceOfN(anyHost(), 1, 5).Draw(t, "hosts") {
		hosts[fmt.Sprintf("h%d", i)] = h
	}
	return hosts
}

func has(h *v1.HostInfo, feature string) bool {
	return slices.Contains(h.GuestSupport.Cpu.Features, feature)
}

func TestBaselineAgainstPlainReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := anyFleet(t)
		c := cluster(Baseline, hosts)
		for _, p := range c.Platforms {
			for _, feature := range append(alphabet, "base") {
				here, having := 0, 0
				for _, h := range hosts {
					if h.GuestSupport.Cpu.Vendor == p.Cpu.Vendor {
						here++
						if has(h, feature) {
							having++
						}
					}
				}
				if slices.Contains(p.Cpu.Features, feature) != (here == having) {
					t.Fatalf("%s is on %d of %d hosts; platform %v", feature, having, here, p)
				}
				if slices.Contains(p.Cpu.Disabled, feature) && here == having {
					t.Fatalf("%s is taken away; platform %v", feature, p)
				}
			}
		}
		for from, source := range hosts {
			if reason := RefuseStart(c, source); reason != "" && !strings.Contains(reason, "machine type") {
				t.Fatalf("a guest cannot start on %s, which the baseline is of: %s", from, reason)
			}
			guest, added := Start(c, source, hosts)
			if added != nil {
				t.Fatalf("%s has no platform", from)
			}
			for to, target := range hosts {
				same := source.GuestSupport.Cpu.Vendor == target.GuestSupport.Cpu.Vendor
				offered := slices.Contains(target.GuestSupport.Machines, guest.Machine)
				if reason := RefuseMove(&v1.Guest{Platform: guest}, source, target); (reason == "") != (same && offered) {
					t.Fatalf("from %s to %s: %q", from, to, reason)
				}
			}
		}
	})
}

func TestMovesAgainstPlainReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := anyFleet(t)
		c := cluster(Host, hosts)
		for from, source := range hosts {
			guest := started(c, source, hosts)
			for to, target := range hosts {
				fits := source.GuestSupport.Cpu.Vendor == target.GuestSupport.Cpu.Vendor &&
					slices.Contains(target.GuestSupport.Machines, guest.Platform.Machine)
				missing := ""
				for _, feature := range append(alphabet, "base") {
					if has(source, feature) && !has(target, feature) {
						fits, missing = false, feature
					}
				}
				reason := RefuseMove(guest, source, target)
				if (reason == "") != fits {
					t.Fatalf("from %s to %s: %q, missing %q", from, to, reason, missing)
				}
			}
		}
	})
}
