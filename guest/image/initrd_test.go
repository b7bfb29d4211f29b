package image

// initrd_test.go - the contents of the initrd.

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"
)

func readInitrd(t *testing.T, path string) (map[string]cpio.Record, []string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(file))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]cpio.Record{}
	var order []string
	for _, record := range records {
		byName[record.Name] = record
		order = append(order, record.Name)
	}
	return byName, order
}

func content(t *testing.T, record cpio.Record) string {
	t.Helper()
	text, err := io.ReadAll(io.NewSectionReader(record.ReaderAt, 0, int64(record.FileSize)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestInitrdHoldsAgentModulesAndConsole(t *testing.T) {
	dir := t.TempDir()
	module := filepath.Join(dir, "m.ko")
	agent := filepath.Join(dir, "agent")
	pm := filepath.Join(dir, "libpm-fi.so.new")
	for path, text := range map[string]string{module: "module", agent: "\x7fELF agent", launcherOf(agent): "\x7fELF launcher", pm: "\x7fELF PM"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	modules := []moduleFile{{"/lib/modules/6.1/kernel/b.ko", module}, {"/lib/modules/6.1/kernel/a.ko", module}}
	target := filepath.Join(dir, "initrd")
	if err := writeInitrd(target, agent, pm, modules); err != nil {
		t.Fatal(err)
	}
	records, order := readInitrd(t, target)
	if init := records["init"]; content(t, init) != "\x7fELF agent" || init.Mode != cpio.S_IFREG|0o755 {
		t.Errorf("init: mode %o", init.Mode)
	}
	if launcher := records["watari/watari-guest-rsh"]; content(t, launcher) != "\x7fELF launcher" || launcher.Mode != cpio.S_IFREG|0o755 {
		t.Errorf("MPI launchers' program: mode %o", launcher.Mode)
	}
	if console := records["dev/console"]; console.Mode != cpio.S_IFCHR|0o600 || console.Rmajor != 5 || console.Rminor != 1 {
		t.Errorf("console: %+v", console.Info)
	}
	if got := content(t, records["watari/modules"]); got != "/lib/modules/6.1/kernel/b.ko\n/lib/modules/6.1/kernel/a.ko\n" {
		t.Errorf("module list %q", got)
	}
	if got := content(t, records["lib/modules/6.1/kernel/a.ko"]); got != "module" {
		t.Errorf("module %q", got)
	}
	if provider := records["watari/libfabric/libpm-fi.so"]; content(t, provider) != "\x7fELF PM" || provider.Mode != cpio.S_IFREG|0o644 {
		t.Errorf("PM's provider: mode %o", provider.Mode)
	}
	for i, name := range order {
		if dir := filepath.Dir(name); dir != "." && slices.Index(order, dir) > i || dir != "." && !slices.Contains(order, dir) {
			t.Errorf("%s comes before its folder", name)
		}
	}
	again := filepath.Join(dir, "again")
	if err := writeInitrd(again, agent, pm, modules); err != nil {
		t.Fatal(err)
	}
	first, _ := os.ReadFile(target)
	second, _ := os.ReadFile(again)
	if !bytes.Equal(first, second) {
		t.Error("the same initrd differs when written again")
	}
}

func TestScriptIsNeitherGuestAgentNorPM(t *testing.T) {
	dir := t.TempDir()
	script, program := filepath.Join(dir, "script"), filepath.Join(dir, "program")
	for path, text := range map[string]string{script: "#!/bin/sh\n", program: "\x7fELF", launcherOf(program): "\x7fELF"} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range [][2]string{{script, ""}, {program, script}} {
		if err := writeInitrd(filepath.Join(dir, "initrd"), wrong[0], wrong[1], nil); err == nil || !strings.Contains(err.Error(), script) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

func TestInitrdWithoutPMHasNoFolderForIt(t *testing.T) {
	dir := t.TempDir()
	agent, target := filepath.Join(dir, "agent"), filepath.Join(dir, "initrd")
	for _, path := range []string{agent, launcherOf(agent)} {
		if err := os.WriteFile(path, []byte("\x7fELF"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeInitrd(target, agent, "", nil); err != nil {
		t.Fatal(err)
	}
	if _, order := readInitrd(t, target); slices.Contains(order, "watari/libfabric") {
		t.Errorf("%v", order)
	}
}
