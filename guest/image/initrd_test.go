package image

// initrd_test.go - what the initrd holds.

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
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
	for path, text := range map[string]string{module: "module", agent: "\x7fELF agent"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	modules := []moduleFile{{"/lib/modules/6.1/kernel/b.ko", module}, {"/lib/modules/6.1/kernel/a.ko", module}}
	target := filepath.Join(dir, "initrd")
	if err := writeInitrd(target, agent, modules); err != nil {
		t.Fatal(err)
	}
	records, order := readInitrd(t, target)
	if init := records["init"]; content(t, init) != "\x7fELF agent" || init.Mode != cpio.S_IFREG|0o755 {
		t.Errorf("init: mode %o", init.Mode)
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
	for i, name := range order {
		if dir := filepath.Dir(name); dir != "." && slices.Index(order, dir) > i || dir != "." && !slices.Contains(order, dir) {
			t.Errorf("%s comes before its folder", name)
		}
	}
	again := filepath.Join(dir, "again")
	if err := writeInitrd(again, agent, modules); err != nil {
		t.Fatal(err)
	}
	first, _ := os.ReadFile(target)
	second, _ := os.ReadFile(again)
	if !bytes.Equal(first, second) {
		t.Error("the same initrd differs when written again")
	}
}

func TestScriptIsNoGuestAgent(t *testing.T) {
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeInitrd(filepath.Join(t.TempDir(), "initrd"), agent, nil); err == nil {
		t.Error("was taken")
	}
}
