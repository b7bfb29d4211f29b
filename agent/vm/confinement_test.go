package vm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"
)

func TestConfinementIsReadFromCapabilities(t *testing.T) {
	const (
		apparmor = `<secmodel><model>apparmor</model><doi>0</doi></secmodel>`
		selinux  = `<secmodel><model>selinux</model><doi>0</doi><baselabel type='kvm'>system_u:system_r:svirt_t:s0</baselabel></secmodel>`
		none     = `<secmodel><model>none</model><doi>0</doi></secmodel>`
		dac      = `<secmodel><model>dac</model><doi>0</doi><baselabel type='kvm'>+64055:+994</baselabel><baselabel type='qemu'>+64056:+995</baselabel></secmodel>`
		root     = `<secmodel><model>dac</model><doi>0</doi><baselabel type='kvm'>+0:+0</baselabel></secmodel>`
		strange  = `<secmodel><model>dac</model><doi>0</doi><baselabel type='kvm'>somebody</baselabel></secmodel>`
	)
	for _, c := range []struct {
		name, models, virtType string
		user                   owner
		model                  string
	}{
		{"a stock Debian host", apparmor + dac, "kvm", owner{64055, 994}, "apparmor"},
		{"the label is that of the virtualisation type", apparmor + dac, "qemu", owner{64056, 995}, "apparmor"},
		{"SELinux", selinux + dac, "kvm", owner{64055, 994}, "selinux"},
		{"no security driver", none + dac, "kvm", owner{64055, 994}, ""},
		{"QEMU as root", apparmor + root, "kvm", owner{}, "apparmor"},
		{"no models at all", "", "kvm", owner{}, ""},
		{"a label that cannot be read counts as root", strange, "kvm", owner{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var caps libvirtxml.Caps
			if err := caps.Unmarshal("<capabilities><host>" + c.models + "</host></capabilities>"); err != nil {
				t.Fatal(err)
			}
			if user, model := readConfinement(&caps, c.virtType); user != c.user || model != c.model {
				t.Errorf("got %v and %q, want %v and %q", user, model, c.user, c.model)
			}
		})
	}
}

// The path has to match what virt-aa-helper writes into each domain's profile.
func TestMigrateSocketIsOneThatAppArmorAllows(t *testing.T) {
	path := migratePath("m", "md-2")
	if ok, err := filepath.Match("/run/libvirt/*/*.tunnelmigrate.dest.watari-md-2", path); err != nil || !ok {
		t.Errorf("%s is not within the domain's profile", path)
	}
	longest := strings.Repeat("n", 59) // a cluster's name of 40 bytes and a number leave room
	if n := len(migratePath("m", longest)); n > pathLimit {
		t.Errorf("the path for a name of %d bytes has %d bytes, a socket's may have %d", len(longest), n, pathLimit)
	}
}

func TestMigrateSocketNeedsAConnection(t *testing.T) {
	if _, err := (&Libvirt{}).MigrateSocket("md-2"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want %v", err, ErrUnavailable)
	}
}

func TestOwnedFolderIsClosedToOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to give a folder away")
	}
	path := filepath.Join(t.TempDir(), "made", "watari")
	for range 2 { // it may exist, with another mode
		if err := ownedFolder(path, owner{64055, 64055}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("mode %v", info.Mode())
		}
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
