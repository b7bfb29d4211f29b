package placement

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1 "watari/api/watariv1"
)

const mib = 1 << 20

func request(spread v1.Spread) *Request {
	return &Request{Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 512 * mib}, Spread: spread}
}

func fourHosts() []Host {
	var hosts []Host
	for _, name := range []string{"a1", "a2", "b1", "b2"} {
		hosts = append(hosts, Host{Name: name, Site: name[:1], Connected: true, Cores: 2, MemoryBytes: 4096 * mib,
			Acceleration: v1.AccelerationKind_ACCELERATION_KIND_TCG})
	}
	return hosts
}

func TestSpreadOverSites(t *testing.T) {
	chosen, err := Plan(request(v1.Spread_SPREAD_SITE), 4, fourHosts())
	if got := strings.Join(chosen, " "); err != nil || got != "a1 b1 a2 b2" {
		t.Fatalf("Plan = %q, %v; want a1 b1 a2 b2", got, err)
	}
}

func TestEveryRefusalNamesItsReason(t *testing.T) {
	hosts := fourHosts()
	hosts[0].Connected = false
	hosts[1].Draining = true
	hosts[2].MemoryUsed = 4000 * mib
	hosts[3].Cores = 0
	_, err := Plan(request(0), 1, hosts)
	want := "no host for guest 1 of 1: a1: it is not reachable; a2: it is being drained; " +
		"b1: 512 MiB of memory wanted, 96 MiB of 4.0 GiB are free; b2: 1 vCPU wanted, it has 0 cores"
	if err == nil || err.Error() != want {
		t.Fatalf("error = %v\nwant    %s", err, want)
	}
}

func TestAHostThatCannotRunTheGuestIsRefusedWithTheReason(t *testing.T) {
	hosts := fourHosts()
	for i := range hosts {
		hosts[i].Info = &v1.HostInfo{QemuVersion: hosts[i].Name}
	}
	r := request(0)
	r.Compatible = func(h *v1.HostInfo) string {
		return refuse(h.QemuVersion != "b1", "it lacks CPU feature %s", "avx2")
	}
	chosen, verdicts := Choose(r, hosts)
	if want := "a1: refused: it lacks CPU feature avx2"; chosen != "b1" || verdicts[0].String() != want {
		t.Fatalf("chosen %q, %v; want b1, and %q", chosen, verdicts, want)
	}
}

// Guests that were lost are spread over the hosts that are left in proportion to the measured speeds. A new guest is not: speeds that
// differ by a little would decide before everything else.
func TestLostGuestsAreSpreadInProportionToSpeed(t *testing.T) {
	hosts := fourHosts()[:3]
	for i, capacity := range []float64{0.5, 3, 1} {
		hosts[i].Capacity, hosts[i].MemoryBytes = capacity, 8192*mib
	}
	lost := request(0)
	lost.Standby = true
	for r, want := range map[*Request]string{lost: "1 6 2", request(0): "3 3 3"} {
		chosen, err := Plan(r, 9, hosts)
		if err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		for _, name := range chosen {
			count[name]++
		}
		if got := fmt.Sprint(count["a1"], count["a2"], count["b1"]); got != want {
			t.Errorf("lost %v: %s guests on hosts of the capacities 0.5, 3 and 1, not %s", r.Standby, got, want)
		}
	}
}

func TestKVMBeforeEmulation(t *testing.T) {
	hosts := fourHosts()
	hosts[3].Acceleration = v1.AccelerationKind_ACCELERATION_KIND_KVM
	hosts[3].VCPUs = 2
	if chosen, _ := Choose(request(0), hosts); chosen != "b2" {
		t.Fatalf("chosen = %q, want the host with KVM, b2", chosen)
	}
}

// A plan is compared with the simplest rule: guests go to hosts that fit, and as long as every host has room, the numbers of
// guests differ by one at most.
func TestPlanAgainstPlainReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := make([]Host, rapid.IntRange(1, 8).Draw(t, "hosts"))
		capacity := 0
		for i := range hosts {
			slots := rapid.IntRange(0, 4).Draw(t, "slots")
			capacity += slots
			hosts[i] = Host{Name: string(rune('a' + i)), Site: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "site"),
				Connected: true, Cores: 2, MemoryBytes: uint64(slots) * 512 * mib}
		}
		n := rapid.IntRange(1, 20).Draw(t, "guests")
		spread := rapid.SampledFrom([]v1.Spread{0, v1.Spread_SPREAD_SITE, v1.Spread_SPREAD_HOST}).Draw(t, "spread")
		chosen, err := Plan(request(spread), n, hosts)
		if (err == nil) != (n <= capacity) {
			t.Fatalf("Plan of %d guests on %d slots: %v", n, capacity, err)
		}
		if err != nil {
			return
		}
		count := map[string]int{}
		for _, name := range chosen {
			count[name]++
		}
		for i := range hosts {
			slots := int(hosts[i].MemoryBytes / (512 * mib))
			if count[hosts[i].Name] > slots {
				t.Fatalf("%d guests on host %s with room for %d", count[hosts[i].Name], hosts[i].Name, slots)
			}
			for j := range hosts {
				full := count[hosts[j].Name] == int(hosts[j].MemoryBytes/(512*mib))
				if spread == v1.Spread_SPREAD_HOST && !full && count[hosts[i].Name] > count[hosts[j].Name]+1 {
					t.Fatalf("hosts %s and %s have %d and %d guests", hosts[i].Name, hosts[j].Name, count[hosts[i].Name], count[hosts[j].Name])
				}
			}
		}
	})
}

func TestHostsThatDoNotConfineGuestsAreRefused(t *testing.T) {
	for _, c := range []struct {
		name        string
		confinement *v1.Confinement
		want        string // part of the reason; empty: not refused
	}{
		{"not known", nil, ""},
		{"own user and AppArmor", &v1.Confinement{User: "libvirt-qemu", SecurityModel: "apparmor"}, ""},
		{"root", &v1.Confinement{User: "root", SecurityModel: "apparmor"}, "QEMU runs as root;"},
		{"no security driver", &v1.Confinement{User: "libvirt-qemu"}, "no security driver"},
		{"neither", &v1.Confinement{User: "root"}, "QEMU runs as root, and libvirt has no security driver"},
		{"neither, and accepted", &v1.Confinement{User: "root", UnconfinedAllowed: true}, ""},
	} {
		got := Unconfined(c.confinement)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
