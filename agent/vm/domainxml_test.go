package vm

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func goldenSpec() Spec {
	return Spec{
		UID: "6a8d5b8e-0f1c-4a53-9d0e-3f0c52a7f001", Name: "md-1", VCPUs: 2, MemoryBytes: 512 << 20,
		Kernel: "/images/abc/kernel", Initrd: "/images/abc/initrd", Root: "/images/abc/root", RootType: "squashfs",
		KernelArgs: "quiet", Tap: "wt6a8d5b8e0f", Channel: "/guests/1/channel.sock", Console: "/guests/1/console.log",
		ImageDigest: "abc",
	}
}

func emulatedHost() *hostFacts {
	return &hostFacts{
		virtType: "qemu", emulator: "/usr/bin/qemu-system-x86_64", machine: preferredMachine, cpu: emulatedCPU(),
		libvirtVersion: "9.0.0", qemuVersion: "7.2.22",
	}
}

func acceleratedHost() *hostFacts {
	host := emulatedHost()
	host.virtType, host.cpu = "kvm", passedThroughCPU()
	return host
}

func TestDomainXMLIsAsKept(t *testing.T) {
	for name, host := range map[string]*hostFacts{"tcg": emulatedHost(), "kvm": acceleratedHost()} {
		got, err := domainXML(goldenSpec(), host)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "domain-"+name+".xml")
		if *update {
			if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got+"\n" != string(want) {
			t.Errorf("%s differs (run go test -update, and look at the difference):\n%s", file, got)
		}
	}
}

func TestDomainXMLRefusesWhatCannotBe(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"no vCPU":   func(s *Spec) { s.VCPUs = 0 },
		"no memory": func(s *Spec) { s.MemoryBytes = 0 },
		"odd size":  func(s *Spec) { s.MemoryBytes += 512 },
		"name":      func(s *Spec) { s.Name = "a/b" },
	} {
		spec := goldenSpec()
		change(&spec)
		if _, err := domainXML(spec, emulatedHost()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestTemplateKeyIsOfWhatATemplateFreezes(t *testing.T) {
	host := emulatedHost()
	key := templateKey(goldenSpec(), host)
	same := goldenSpec()
	same.UID, same.Name, same.Tap, same.Channel, same.Console = "6a8d5b8e-0f1c-4a53-9d0e-3f0c52a7f002", "md-2", "wt2", "/c2", "/l2"
	if templateKey(same, host) != key {
		t.Error("another guest of the same shape has another key")
	}
	asked := goldenSpec()
	asked.Platform = &v1.Platform{Cpu: &v1.CPU{Model: "Nehalem"}}
	another := emulatedHost()
	another.hostCPU = "x86_64 AMD EPYC avx2"
	if templateKey(asked, another) != templateKey(asked, host) {
		t.Error("hosts of other CPUs have another key for a guest whose CPU is asked for")
	}
	for name, change := range map[string]func(*Spec, *hostFacts){
		"image":         func(s *Spec, _ *hostFacts) { s.ImageDigest = "def" },
		"owner":         func(s *Spec, _ *hostFacts) { s.TemplateOwner = "u" },
		"vcpus":         func(s *Spec, _ *hostFacts) { s.VCPUs = 1 },
		"memory":        func(s *Spec, _ *hostFacts) { s.MemoryBytes *= 2 },
		"arguments":     func(s *Spec, _ *hostFacts) { s.KernelArgs = "debug" },
		"asked machine": func(s *Spec, _ *hostFacts) { s.Platform = &v1.Platform{Machine: "pc-i440fx-7.1"} },
		"asked CPU":     func(s *Spec, _ *hostFacts) { s.Platform = &v1.Platform{Cpu: &v1.CPU{Model: "Nehalem"}} },
		"machine":       func(_ *Spec, h *hostFacts) { h.machine = "pc-i440fx-8.0" },
		"qemu":          func(_ *Spec, h *hostFacts) { h.qemuVersion = "8.0.0" },
		"kvm":           func(_ *Spec, h *hostFacts) { *h = *acceleratedHost() },
		"host CPU":      func(_ *Spec, h *hostFacts) { h.hostCPU = "x86_64 AMD EPYC avx2" },
		"user":          func(_ *Spec, h *hostFacts) { h.owner = owner{64055, 64055} },
		"security":      func(_ *Spec, h *hostFacts) { h.securityModel = "selinux" },
	} {
		spec, other := goldenSpec(), emulatedHost()
		change(&spec, other)
		if templateKey(spec, other) == key {
			t.Errorf("%s: the key is the same", name)
		}
	}
}

func TestMachineIsThePreferredElseTheNewest(t *testing.T) {
	for _, test := range []struct {
		want, oldest string
		offered      []string
	}{
		{preferredMachine, preferredMachine, []string{"pc-i440fx-9.0", "pc", preferredMachine, "pc-q35-7.2"}},
		{"pc-i440fx-10.0", "pc-i440fx-9.2", []string{"pc-i440fx-10.0", "pc-i440fx-9.2", "pc-q35-10.1"}},
		{"pc-i440fx-2.12", "pc-i440fx-2.9", []string{"pc-i440fx-2.12", "pc-i440fx-2.9"}},
	} {
		var offered []libvirtxml.CapsGuestMachine
		for _, name := range test.offered {
			offered = append(offered, libvirtxml.CapsGuestMachine{Name: name})
		}
		machines := family(offered)
		if got := chooseMachine(machines); got != test.want || machines[0] != test.oldest {
			t.Errorf("of %v: %v, of which %q, not %q", test.offered, machines, got, test.want)
		}
	}
	if machines := family([]libvirtxml.CapsGuestMachine{{Name: "pc"}, {Name: "q35"}, {Name: "microvm"}}); len(machines) != 0 {
		t.Errorf("of another family: %v", machines)
	}
}

func TestTheManagersPlatformGoesBeforeTheHostsOwn(t *testing.T) {
	spec := goldenSpec()
	spec.Platform = &v1.Platform{
		Acceleration: v1.AccelerationKind_ACCELERATION_KIND_KVM, Machine: "pc-i440fx-9.0",
		Cpu: &v1.CPU{Vendor: "AMD", Model: "EPYC-Rome", Features: []string{"avx2", "sse2"}, Disabled: []string{"svm"}},
	}
	cpu, machine, err := platform(spec, acceleratedHost())
	if err != nil || machine != "pc-i440fx-9.0" || cpu.Model.Value != "EPYC-Rome" || cpu.Check != "partial" {
		t.Errorf("%s, %+v, %v", machine, cpu, err)
	}
	want := []libvirtxml.DomainCPUFeature{{Policy: "require", Name: "avx2"}, {Policy: "require", Name: "sse2"}, {Policy: "disable", Name: "svm"}}
	if !slices.Equal(cpu.Features, want) {
		t.Errorf("features %v", cpu.Features)
	}
	if _, _, err := platform(spec, emulatedHost()); err == nil || !strings.Contains(err.Error(), "type kvm") {
		t.Errorf("on a host without KVM: %v", err)
	}
	spec.Platform = &v1.Platform{}
	if cpu, machine, err = platform(spec, acceleratedHost()); err != nil || machine != preferredMachine || cpu.Mode != "host-passthrough" {
		t.Errorf("nothing asked for: %s, %+v, %v", machine, cpu, err)
	}
}

func TestEventsThatAreNotReadBecomeOneOfAllDomains(t *testing.T) {
	q := newEventQueue()
	for range 3 * eventRoom {
		q.push(Event{UID: "u"})
	}
	q.close()
	changed, connected := 0, 0
	for e := range q.out {
		if e.UID == "" {
			connected++
		} else {
			changed++
		}
	}
	if changed != eventRoom-1 || connected != 1 {
		t.Errorf("%d changed, %d connected", changed, connected)
	}
	q.push(Event{}) // after close: no panic
}
