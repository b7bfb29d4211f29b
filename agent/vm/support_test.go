package vm

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
)

// recording has the answers of libvirt on a real host.
type recording struct {
	VirtType   string
	Machines   []string
	Domain     string            // its domain capabilities
	Expansions map[string]string // spelled-out CPUs, by the CPU that was asked for
}

var recordingName = os.Getenv("WATARI_RECORD_SUPPORT") // set: TestSupportOfThisHost writes testdata/support/<name>.json

func (r *recording) expand(cpu libvirtxml.DomainCPU) (full libvirtxml.DomainCPU, err error) {
	text, err := cpu.Marshal()
	if err != nil {
		return full, err
	}
	answer, found := r.Expansions[text]
	if !found {
		return full, errors.New("not recorded")
	}
	return full, full.Unmarshal(answer)
}

func readRecording(t *testing.T, file string) *recording {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{}
	if err := json.Unmarshal(data, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *recording) support(t *testing.T) *v1.GuestSupport {
	t.Helper()
	var caps libvirtxml.DomainCaps
	if err := caps.Unmarshal(r.Domain); err != nil {
		t.Fatal(err)
	}
	support := &v1.GuestSupport{Machines: r.Machines}
	if err := addCPUs(support, &caps, r.VirtType, r.expand); err != nil {
		t.Fatal(err)
	}
	return support
}

func TestSupportIsReadFromRealCapabilities(t *testing.T) {
	files, _ := filepath.Glob("testdata/support/*.json")
	if len(files) == 0 {
		t.Fatalf("recordings: %v", files)
	}
	for _, file := range files {
		r := readRecording(t, file)
		support := r.support(t)
		checkSupport(t, filepath.Base(file), r.VirtType, support)
		compareReport(t, strings.TrimSuffix(file, ".json")+".report", support)
	}
}

// compareReport compares a report with the stored one, which package compatibility's tests use.
func compareReport(t *testing.T, file string, got *v1.GuestSupport) {
	t.Helper()
	if *update {
		text, err := protojson.MarshalOptions{Multiline: true}.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := &v1.GuestSupport{}
	if err := protojson.Unmarshal(text, want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("%s differs (run go test -update, and look at the difference):\n%v", file, got)
	}
}

// checkSupport checks what holds on any host.
func checkSupport(t *testing.T, name, virtType string, s *v1.GuestSupport) {
	t.Helper()
	cpu := s.Cpu
	if !slices.Contains(s.Machines, preferredMachine) || !slices.Contains(cpu.GetFeatures(), "sse2") || cpu.Model == "" {
		t.Errorf("%s: machines %v, CPU %v", name, s.Machines, cpu)
	}
	if (cpu.GetVendor() == "") != (virtType == "qemu") {
		t.Errorf("%s: vendor %q", name, cpu.GetVendor())
	}
	for what, list := range map[string][]string{"features": cpu.GetFeatures(), "disabled": cpu.GetDisabled(), "the model's": s.ModelFeatures} {
		if !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) != len(list) {
			t.Errorf("%s: %s are not sorted, or twice there: %v", name, what, list)
		}
	}
	for _, feature := range cpu.GetFeatures() {
		if nested(feature) || feature == "invtsc" || slices.Contains(cpu.Disabled, feature) {
			t.Errorf("%s: guests have %s", name, feature)
		}
	}
	for _, feature := range s.ModelFeatures {
		if slices.Contains(cpu.GetFeatures(), feature) == slices.Contains(cpu.GetDisabled(), feature) {
			t.Errorf("%s: %s is of the model, and neither given nor taken away, or both", name, feature)
		}
	}
	usable := 0
	for _, m := range s.Models {
		if m.Usable {
			usable++
		}
		if m.Usable && len(m.Lacks) > 0 || len(m.Lacks) > maxLacks {
			t.Errorf("%s: model %v", name, m)
		}
	}
	if usable == 0 || usable == len(s.Models) {
		t.Errorf("%s: %d of %d models can be used", name, usable, len(s.Models))
	}
	if text, err := protojson.Marshal(s); err != nil || len(text) > 16<<10 {
		t.Errorf("%s: the report is of %d bytes, %v", name, len(text), err)
	}
}

func TestEmulatedSupportIsTheEmulatedCPU(t *testing.T) {
	s := readRecording(t, "testdata/support/tcg-qemu-7.2.json").support(t)
	want := emulatedCPU()
	if s.Cpu.Model != want.Model.Value {
		t.Errorf("model %s", s.Cpu.Model)
	}
	for _, f := range want.Features {
		if slices.Contains(s.Cpu.Features, f.Name) != (f.Policy == "require") {
			t.Errorf("%s %s: %v", f.Policy, f.Name, s.Cpu)
		}
	}
	at := slices.IndexFunc(s.Models, func(m *v1.CPUModel) bool { return m.Name == "EPYC" })
	if got := strings.Join(s.Models[at].Lacks, " "); s.Models[at].Usable || got != "3dnowprefetch fxsr_opt misalignsse monitor nrip-save" {
		t.Errorf("EPYC: %v", s.Models[at])
	}
}

func TestAHostWhoseCPUCannotBeDescribedReportsItsModelsAlone(t *testing.T) {
	r := readRecording(t, "testdata/support/tcg-qemu-7.2.json")
	var caps libvirtxml.DomainCaps
	if err := caps.Unmarshal(r.Domain); err != nil {
		t.Fatal(err)
	}
	for i := range caps.CPU.Modes {
		if caps.CPU.Modes[i].Name == "host-model" {
			caps.CPU.Modes[i] = libvirtxml.DomainCapsCPUMode{Name: "host-model", Supported: "no"}
		}
	}
	s := &v1.GuestSupport{}
	if err := addCPUs(s, &caps, "kvm", r.expand); err != nil || s.Cpu != nil || len(s.Models) == 0 {
		t.Errorf("%v, %v", s, err)
	}
}

// A guest with the CPU that a host reports starts there, has that CPU, and moves to an equal host and back.
func TestAGuestWithASpelledCPUMoves(t *testing.T) {
	need(t)
	p := &pair{source: startHost(t, "h1"), target: startHost(t, "h2"), spec: newSpec("spelled", "")}
	first := p.source
	support := first.driver.Support()
	checkSupport(t, "this host", virtTypes[testAcceleration()], support)
	if recordingName != "" {
		record(t, first, filepath.Join("testdata", "support", recordingName+".json"))
	}
	p.spec.Platform = &v1.Platform{Acceleration: testAcceleration(), Machine: preferredMachine, Cpu: support.Cpu}
	p.source.prepare(t, p.spec)
	p.target.prepare(t, p.spec)
	ctx := t.Context()
	if err := p.source.driver.Boot(ctx, p.spec); err != nil {
		t.Fatal(err)
	}
	p.source.counts(t, p.spec, 3)
	for range 2 {
		p.connect(t, copyStream)
		if err := p.source.driver.Migrate(ctx, p.spec.UID, p.options); err != nil {
			t.Fatal(err)
		}
		counted := p.source.count(p.spec)
		if err := p.target.driver.Resume(ctx, p.spec.UID); err != nil {
			t.Fatal(err)
		}
		p.target.counts(t, p.spec, counted+3)
		p.source, p.target = p.target, p.source
	}
	text := virsh(t, first, "dumpxml", p.spec.UID)
	if !strings.Contains(text, "check='full'") || !strings.Contains(text, support.Cpu.Model+"</model>") {
		t.Errorf("the running domain:\n%s", text)
	}
	// A CPU that the host lacks is refused and named before a guest starts.
	lacking := newSpec("lacking", "")
	first.prepare(t, lacking)
	lacking.Platform = &v1.Platform{Cpu: &v1.CPU{Model: "qemu64", Features: []string{"avx512f"}}}
	if err := first.driver.Boot(ctx, lacking); err == nil || !strings.Contains(err.Error(), "avx512f") {
		t.Errorf("a CPU with avx512f: %v", err)
	}
}

// record stores the answers of the host's libvirt: everything that describes guests' CPU, and one other model.
func record(t *testing.T, h *testHost, file string) {
	t.Helper()
	conn, err := libvirt.NewConnect(h.uri())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	host := h.driver.hostFacts()
	r := recording{VirtType: host.virtType, Machines: host.support.Machines, Expansions: map[string]string{}}
	if r.Domain, err = conn.GetDomainCapabilities(host.emulator, "x86_64", host.machine, host.virtType, 0); err != nil {
		t.Fatal(err)
	}
	var caps libvirtxml.DomainCaps
	if err := caps.Unmarshal(r.Domain); err != nil {
		t.Fatal(err)
	}
	wanted := []string{host.support.Cpu.Model, "EPYC"}
	err = addCPUs(&v1.GuestSupport{}, &caps, host.virtType, func(cpu libvirtxml.DomainCPU) (full libvirtxml.DomainCPU, err error) {
		if len(cpu.Features) == 0 && !slices.Contains(wanted, cpu.Model.Value) {
			return full, errors.New("not recorded")
		}
		asked, err := cpu.Marshal()
		if err != nil {
			return full, err
		}
		if full, err = expander(conn, host)(cpu); err == nil {
			r.Expansions[asked], err = full.Marshal()
		}
		return full, err
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
