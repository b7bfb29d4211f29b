package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

func TestForkedXMLIsTheTemplatesWithTheGuestsOwn(t *testing.T) {
	template := goldenSpec()
	text, err := domainXML(template, emulatedHost())
	if err != nil {
		t.Fatal(err)
	}
	spec := template
	spec.UID, spec.Name, spec.Tap = "6a8d5b8e-0f1c-4a53-9d0e-3f0c52a7f002", "md-2", "wt2"
	spec.Channel, spec.Console = "/guests/2/channel.sock", "/guests/2/console.log"
	own := func(spec Spec) *libvirtxml.Domain {
		domain, err := newDomain(spec, emulatedHost())
		if err != nil {
			t.Fatal(err)
		}
		return domain
	}
	got, err := forkedXML(text, own(spec))
	if err != nil {
		t.Fatal(err)
	}
	// Except for the generation ID, the result is the guest's own domain.
	want, err := domainXML(spec, emulatedHost())
	if err != nil {
		t.Fatal(err)
	}
	var domain libvirtxml.Domain
	if err := domain.Unmarshal(got); err != nil {
		t.Fatal(err)
	}
	if domain.GenID.Value == "" {
		t.Error("no generation ID")
	}
	domain.GenID.Value = ""
	if got, err = domain.Marshal(); err != nil || got != want {
		t.Errorf("%v\n%s\nis not\n%s", err, got, want)
	}
	for name, change := range map[string]func(*Spec){
		"vcpus":   func(s *Spec) { s.VCPUs++ },
		"memory":  func(s *Spec) { s.MemoryBytes *= 2 },
		"network": func(s *Spec) { s.Tap = "" },
		"root":    func(s *Spec) { s.Root = "" },
	} {
		other := spec
		change(&other)
		if _, err := forkedXML(text, own(other)); err == nil {
			t.Errorf("%s: a template of another shape was taken", name)
		}
	}
	if _, err := forkedXML("<domain/>", own(spec)); err == nil {
		t.Error("an empty domain was taken")
	}
}

// TestATemplateBringsNothingOntoTheHost: the maker of a template may be root on another host, but not on this one.
func TestATemplateBringsNothingOntoTheHost(t *testing.T) {
	spec := goldenSpec()
	text, err := domainXML(spec, emulatedHost())
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*libvirtxml.Domain){
		"security label": func(d *libvirtxml.Domain) {
			d.SecLabel = []libvirtxml.DomainSecLabel{{Type: "none", Model: "apparmor"}, {Type: "static", Model: "dac", Label: "+0:+0"}}
		},
		"command line": func(d *libvirtxml.Domain) {
			d.QEMUCommandline = &libvirtxml.DomainQEMUCommandline{Args: []libvirtxml.DomainQEMUCommandlineArg{{Value: "-chardev"}}}
		},
		"emulator": func(d *libvirtxml.Domain) { d.Devices.Emulator = "/bin/sh" },
		"file system": func(d *libvirtxml.Domain) {
			d.Devices.Filesystems = []libvirtxml.DomainFilesystem{{Source: &libvirtxml.DomainFilesystemSource{
				Mount: &libvirtxml.DomainFilesystemSourceMount{Dir: "/"}}, Target: &libvirtxml.DomainFilesystemTarget{Dir: "root"}}}
		},
		"disk that is written": func(d *libvirtxml.Domain) {
			d.Devices.Disks[0].ReadOnly = nil
			d.Devices.Disks[0].Driver.Type = "qcow2"
			d.Devices.Disks[0].BackingStore = &libvirtxml.DomainDiskBackingStore{Source: &libvirtxml.DomainDiskSource{
				File: &libvirtxml.DomainDiskSourceFile{File: "/etc/shadow"}}}
		},
		"randomness": func(d *libvirtxml.Domain) {
			d.Devices.RNGs[0].Backend = &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/sda"}}
		},
		"controller's driver": func(d *libvirtxml.Domain) {
			d.Devices.Controllers[0].Driver = &libvirtxml.DomainControllerDriver{Queues: new(uint)}
		},
		"kernel": func(d *libvirtxml.Domain) {
			d.OS.Kernel, d.OS.Loader = "/k", &libvirtxml.DomainLoader{Path: "/etc/shadow"}
		},
	} {
		var template libvirtxml.Domain
		if err := template.Unmarshal(text); err != nil {
			t.Fatal(err)
		}
		change(&template)
		hostile, err := template.Marshal()
		if err != nil || hostile == text {
			t.Fatalf("%s: %v: the template was not changed", name, err)
		}
		own, err := newDomain(spec, emulatedHost())
		if err != nil {
			t.Fatal(err)
		}
		got, err := forkedXML(hostile, own)
		var domain libvirtxml.Domain
		if err := errors.Join(err, domain.Unmarshal(got)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		domain.GenID.Value = ""
		if got, err = domain.Marshal(); err != nil || got != text {
			t.Errorf("%s: %v: came from the template:\n%s", name, err, got)
		}
	}
	var template libvirtxml.Domain
	if err := template.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	template.CPU.Features = append(template.CPU.Features, libvirtxml.DomainCPUFeature{Policy: "require", Name: "avx=on,x"})
	hostile, err := template.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	own, err := newDomain(spec, emulatedHost())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forkedXML(hostile, own); err == nil {
		t.Error("a CPU's feature was taken that writes on QEMU's command line")
	}
}

// makeTemplate boots a guest on the host, saves it when it has counted a little, and returns the file.
func makeTemplate(t *testing.T, h *testHost, shape func(*Spec)) (Spec, string) {
	t.Helper()
	spec := newSpec("template.1", "")
	shape(&spec)
	h.prepare(t, spec)
	ctx := context.Background()
	if err := h.driver.Boot(ctx, spec); err != nil {
		t.Fatal(err)
	}
	h.counts(t, spec, 3)
	path := filepath.Join(h.folder, "key.save")
	begun := time.Now()
	if err := h.driver.SaveTemplate(ctx, spec.UID, path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("SaveTemplate took %v, %d MiB", time.Since(begun), info.Size()>>20)
	if d := h.domain(t, spec.UID); d.State != StateGone {
		t.Errorf("after SaveTemplate: %+v", d)
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return spec, path
}

func TestForkedGuestsGoOnWhereTheTemplateStood(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	template, path := makeTemplate(t, h, func(*Spec) {})
	stood := h.count(template)
	ids := map[string]bool{generationID(t, path): true}

	var specs []Spec
	for i := range 4 {
		spec := newSpec(fmt.Sprintf("fork-%d", i), "")
		h.prepare(t, spec)
		specs = append(specs, spec)
	}
	fork := func(spec Spec) {
		begun := time.Now()
		if err := h.driver.Fork(context.Background(), spec, path); err != nil {
			t.Error(err)
		}
		t.Logf("Fork of %s took %v", spec.Name, time.Since(begun))
	}
	fork(specs[0])
	var group sync.WaitGroup
	for _, spec := range specs[1:] {
		group.Go(func() { fork(spec) })
	}
	group.Wait()
	for _, spec := range specs {
		h.counts(t, spec, stood+2)
		first := firstCount(h, spec)
		if first < stood || first > stood+3 {
			t.Errorf("%s went on from %d, the template stood at %d", spec.Name, first, stood)
		}
		text := liveXML(t, h, spec.UID)
		var domain libvirtxml.Domain
		if err := domain.Unmarshal(text); err != nil {
			t.Fatal(err)
		}
		if ids[domain.GenID.Value] {
			t.Errorf("%s has another's generation ID %s", spec.Name, domain.GenID.Value)
		}
		ids[domain.GenID.Value] = true
		// QEMU itself shows the guest the same ID.
		shown := monitor(t, h, spec.Name, `{"execute":"query-vm-generation-id"}`)
		if !strings.Contains(shown, domain.GenID.Value) {
			t.Errorf("%s: libvirt says %s, QEMU %s", spec.Name, domain.GenID.Value, shown)
		}
		// The guest writes and listens at its own paths, and nowhere else.
		if _, err := os.Stat(h.path(spec.Channel)); err != nil {
			t.Error(err)
		}
	}
	if h.count(template) != stood {
		t.Error("a forked guest wrote to the template's console")
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestForkRefusesADamagedTemplate(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	_, path := makeTemplate(t, h, func(*Spec) {})
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(whole)
	clear(damaged[len(damaged)/2 : len(damaged)/2+1<<20])
	for name, file := range map[string][]byte{
		"missing":   nil,
		"truncated": whole[:len(whole)-len(whole)/3],
		"no stream": whole[:saveHeadLength+int(saveLength(t, whole))],
		"zeroed":    damaged,
	} {
		bad := filepath.Join(h.folder, "bad.save")
		_ = os.Remove(bad)
		if file != nil {
			if err := os.WriteFile(bad, file, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		spec := newSpec("bad", "")
		h.prepare(t, spec)
		begun := time.Now()
		err := h.driver.Fork(context.Background(), spec, bad)
		if !errors.Is(err, ErrTemplateUnusable) {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s after %v: %v", name, time.Since(begun), err)
		if d := h.domain(t, spec.UID); d.State != StateGone {
			t.Errorf("%s: %+v is there", name, d)
		}
	}
}

func saveLength(t *testing.T, file []byte) int {
	t.Helper()
	head, err := readSaveHead(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	return head.length
}

func generationID(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	head, err := readSaveHead(file)
	if err != nil {
		t.Fatal(err)
	}
	var domain libvirtxml.Domain
	if err := domain.Unmarshal(head.xml); err != nil || domain.GenID == nil || domain.GenID.Value == "" {
		t.Fatalf("the template has no generation ID: %v\n%s", err, head.xml)
	}
	return domain.GenID.Value
}

// firstCount is the first whole count that the guest wrote on this host.
func firstCount(h *testHost, spec Spec) int {
	text, _ := os.ReadFile(h.path(spec.Console))
	first := 0
	if at := bytes.Index(text, []byte("\ncount ")); at >= 0 {
		fmt.Sscanf(string(text[at+1:]), "count %d", &first)
	}
	return first
}

func liveXML(t *testing.T, h *testHost, uid string) string {
	t.Helper()
	var text string
	err := h.driver.withDomain(context.Background(), uid, func(d *libvirt.Domain) (err error) {
		text, err = d.GetXMLDesc(0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// monitor sends QEMU a command.
func monitor(t *testing.T, h *testHost, guest, command string) string {
	t.Helper()
	return virsh(t, h, "qemu-monitor-command", NamePrefix+guest, command)
}
