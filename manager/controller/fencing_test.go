package controller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"watari/core"
)

func TestTheFencingCommand(t *testing.T) {
	dir := t.TempDir()
	command := filepath.Join(dir, "fence")
	script := `#!/bin/sh
echo "$1 $WATARI_ADDRESS $WATARI_SITE $WATARI_BOOT_ID" > ` + dir + `/said
[ "$1" = a1 ] || { echo "no outlet for $1" >&2; exit 3; }`
	if err := os.WriteFile(command, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := runFence(t.Context(), command, core.Fence{Host: "a1", BootID: "boot", LANAddress: "192.0.2.1", Site: "a"}); err != nil {
		t.Error(err)
	}
	if said, _ := os.ReadFile(filepath.Join(dir, "said")); string(said) != "a1 192.0.2.1 a boot\n" {
		t.Errorf("it was told %q", said)
	}
	err := runFence(t.Context(), command, core.Fence{Host: "b1"})
	if err == nil || !strings.Contains(err.Error(), "no outlet for b1") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("its failure is told as %v", err)
	}
}
