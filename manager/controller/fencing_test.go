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

// The example for IPMI calls fence_ipmilan for the host's BMC, and succeeds only if that does.
func TestTheExampleForIPMI(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("fence_ipmilan", "#!/bin/sh\necho \"$@\" >>"+dir+"/calls\ncase $2 in 192.0.2.9) echo unreachable >&2; exit 1;; esac\n")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("WATARI_BMCS", write("bmcs", "a1 192.0.2.7 fencer\nb1 192.0.2.9 fencer\n"))
	const command = "../../examples/fence-ipmi"
	if err := runFence(t.Context(), command, core.Fence{Host: "a1"}); err != nil {
		t.Error(err)
	}
	if calls, _ := os.ReadFile(dir + "/calls"); string(calls) != "--ip 192.0.2.7 --username fencer --password-script /etc/watari/bmc-password --lanplus --action off\n" {
		t.Errorf("it calls fence_ipmilan with %q", calls)
	}
	for host, want := range map[string]string{"b1": "unreachable", "c1": "no line for host c1"} {
		if err := runFence(t.Context(), command, core.Fence{Host: host}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("host %s: %v, want %q", host, err, want)
		}
	}
}
