package vm

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"libvirt.org/go/libvirtxml"
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
	for name, change := range map[string]func(*Spec, *hostFacts){
		"image":     func(s *Spec, _ *hostFacts) { s.ImageDigest = "def" },
		"vcpus":     func(s *Spec, _ *hostFacts) { s.VCPUs = 1 },
		"memory":    func(s *Spec, _ *hostFacts) { s.MemoryBytes *= 2 },
		"arguments": func(s *Spec, _ *hostFacts) { s.KernelArgs = "debug" },
		"machine":   func(_ *Spec, h *hostFacts) { h.machine = "pc-i440fx-8.0" },
		"qemu":      func(_ *Spec, h *hostFacts) { h.qemuVersion = "8.0.0" },
		"kvm":       func(_ *Spec, h *hostFacts) { *h = *acceleratedHost() },
		"host CPU":  func(_ *Spec, h *hostFacts) { h.hostCPU = "x86_64 AMD EPYC avx2" },
		"user":      func(_ *Spec, h *hostFacts) { h.owner = owner{64055, 64055} },
		"security":  func(_ *Spec, h *hostFacts) { h.securityModel = "selinux" },
	} {
		spec, other := goldenSpec(), emulatedHost()
		change(&spec, other)
		if templateKey(spec, other) == key {
			t.Errorf("%s: the key is the same", name)
		}
	}
}

func TestMachineIsThePreferredElseTheNewest(t *testing.T) {
	machines := func(names ...string) (list []libvirtxml.CapsGuestMachine) {
		for _, n := range names {
			list = append(list, libvirtxml.CapsGuestMachine{Name: n})
		}
		return list
	}
	for want, from := range map[string][]libvirtxml.CapsGuestMachine{
		preferredMachine: machines("pc-i440fx-9.0", "pc", preferredMachine, "pc-q35-7.2"),
		"pc-i440fx-10.0": machines("pc-i440fx-9.2", "pc-i440fx-10.0", "pc-q35-10.1"),
		"pc-i440fx-2.12": machines("pc-i440fx-2.9", "pc-i440fx-2.12"),
		"":               machines("pc", "q35", "microvm"),
	} {
		if got := chooseMachine(from); got != want {
			t.Errorf("of %v: %q, not %q", from, got, want)
		}
	}
}

func TestEventsThatAreNotReadBecomeOneConnected(t *testing.T) {
	q := newEventQueue()
	for range 3 * eventRoom {
		q.push(Event{UID: "u", Kind: Changed})
	}
	q.close()
	changed, connected := 0, 0
	for e := range q.out {
		if e.Kind == Connected {
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
