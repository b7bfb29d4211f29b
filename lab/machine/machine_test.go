package machine

import (
	"archive/tar"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestSourcesAreThisMachinesWithAnotherSuite(t *testing.T) {
	targets := `http://mirror.example/debian bookworm main
http://mirror.example/debian bookworm contrib
http://mirror.example/debian bookworm-updates main
http://mirror.example/debian bookworm-backports main
http://mirror.example/security bookworm-security main
http://mirror.example/debian bookworm main
`
	want := []string{
		"deb [signed-by=" + keyring + "] http://mirror.example/debian trixie main",
		"deb [signed-by=" + keyring + "] http://mirror.example/debian trixie-updates main",
		"deb [signed-by=" + keyring + "] http://mirror.example/security trixie-security main",
	}
	if got := sourcesFor("trixie", targets); !slices.Equal(got, want) {
		t.Errorf("sources %q, want %q", got, want)
	}
}

func TestReportIsOfTheLastStart(t *testing.T) {
	for text, want := range map[string]Report{
		"":                              {},
		"start\n":                       {},
		"start\nready\n":                {Ready: true},
		"start\nready\njoined\n":        {Ready: true, Joined: true},
		"start\nready\njoined\nstart\n": {Joined: true},
		"start\nrea":                    {},
		"start\nfailed wait\n":          {Failed: "wait"},
		"start\nfailed wait\nstart\n":   {},
		"settled running\n":             {settled: "running"},
	} {
		if got := parseReport(text); got != want {
			t.Errorf("report of %q: %+v, want %+v", text, got, want)
		}
	}
}

func TestSpecIsChecked(t *testing.T) {
	for _, bad := range []Spec{{}, {"sid", DefaultModel, 3072, 2}, {"trixie", DefaultModel, 512, 2}, {"trixie", DefaultModel, 3072, 3}, {"trixie", "max -S", 3072, 2}} {
		if bad.Check() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if err := (Spec{"trixie", "EPYC,-avx", 2048, 4}).Check(); err != nil {
		t.Error(err)
	}
}

// TestCellsShareMemoryAndProcessors checks the NUMA layout that the machine's firmware gets.
func TestCellsShareMemoryAndProcessors(t *testing.T) {
	l := launch{spec: Spec{"bookworm", DefaultModel, 3072, 4}, memory: "/cache,x", save: true}
	got := strings.Join(l.cells(), " ")
	for _, want := range []string{
		"memory-backend-file,id=ram3,size=768M,share=on,mem-path=/cache,,x/ram3", "node,nodeid=3,memdev=ram3,cpus=3-3",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("cells are %q, wanted is %q in it", got, want)
		}
	}
	l.spec.Cells, l.memory = 1, ""
	got = strings.Join(l.cells(), " ")
	if want := "-object memory-backend-ram,id=ram0,size=3072M -numa node,nodeid=0,memdev=ram0,cpus=0-0"; got != want {
		t.Errorf("cells are %q, want %q", got, want)
	}
}

func testIdentity(t *testing.T) Identity {
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, []byte(strings.Repeat("agent", 2000)), 0o755); err != nil {
		t.Fatal(err)
	}
	return Identity{
		Name: "a1", UUID: uuid.New(), MachineID: uuid.MustParse("01234567-89ab-cdef-0123-456789abcdef"),
		MAC: net.HardwareAddr{2, 87, 72, 0, 0, 1}, Address: netip.MustParsePrefix("198.18.1.1/24"), Gateway: netip.MustParseAddr("198.18.1.254"),
		Files: []File{{Path: AgentBinary, Mode: 0o755, Source: agent}},
	}
}

func TestIdentityIsReadAsItWasWritten(t *testing.T) {
	dir, identity := t.TempDir(), testIdentity(t)
	hash, err := WriteIdentity(dir, identity)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, identityFile))
	if err != nil || info.Size() != identitySize {
		t.Fatalf("the disk: %v, %v; want %d bytes", info, err, identitySize)
	}
	archive, err := OpenIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	found := map[string]string{}
	for r := tar.NewReader(archive); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found["/"+header.Name] = string(data)
	}
	for path, want := range map[string]string{
		"/etc/hostname": "a1\n", "/etc/machine-id": "0123456789abcdef0123456789abcdef\n", AgentBinary: strings.Repeat("agent", 2000),
	} {
		if found[path] != want {
			t.Errorf("%s has %d bytes, want %d: %.60q", path, len(found[path]), len(want), found[path])
		}
	}
	if again, err := WriteIdentity(dir, identity); err != nil || again != hash {
		t.Errorf("the same identity has hash %s, %v; want %s", again, err, hash)
	}
	identity.Hosts = "198.18.1.2 a2\n"
	if other, err := WriteIdentity(dir, identity); err != nil || other == hash {
		t.Errorf("another identity has hash %s, %v", other, err)
	}
}

func TestAnIdentityThatIsTooLargeIsRefused(t *testing.T) {
	identity := testIdentity(t)
	identity.Files = append(identity.Files, File{Path: "/large", Mode: 0o644, Data: make([]byte, identitySize)})
	if _, err := WriteIdentity(t.TempDir(), identity); err == nil || !strings.Contains(err.Error(), "128 MiB") {
		t.Errorf("an identity larger than the disk: %v", err)
	}
}

func TestBackportsAreOnTheReleasesMirrors(t *testing.T) {
	lines := []string{"deb [signed-by=k] http://m/debian bookworm main", "deb [signed-by=k] http://m/debian bookworm-updates main",
		"deb [signed-by=k] http://m/debian-security bookworm-security main"}
	want := []string{"deb [signed-by=k] http://m/debian bookworm-backports main"}
	if got := backports("bookworm", lines); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
