package qemuprocesses

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// process writes the files of a process in /proc.
func process(t *testing.T, proc, pid, cmdline, namespace, stat string) {
	t.Helper()
	dir := filepath.Join(proc, pid)
	if err := os.MkdirAll(filepath.Join(dir, "ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(os.WriteFile(filepath.Join(dir, "cmdline"), []byte(strings.ReplaceAll(cmdline, " ", "\x00")+"\x00"), 0o644),
		os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o644))
	if namespace != "" {
		err = errors.Join(err, os.Symlink(namespace, filepath.Join(dir, "ns", "pid")))
	}
	if err != nil {
		t.Fatal(err)
	}
}

const qemu = "qemu-system-x86_64 -name guest=watari-md-1,debug-threads=on -uuid u1"

func TestGuestsOfThisHostAreFound(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, "self", "test", "pid:[1]", "")
	process(t, proc, "10", qemu, "pid:[1]", "10 (qemu) S 1")
	process(t, proc, "11", strings.ReplaceAll(qemu, "u1", "u2"), "pid:[2]", "11 (qemu) S 1")
	process(t, proc, "12", "qemu -name guest=another -uuid u3", "pid:[1]", "12 (qemu) S 1")
	process(t, proc, "13", "sh -c true", "", "13 (sh) S 1")
	list, err := list(proc)
	if err != nil || len(list) != 1 || list[0] != (Process{10, "u1", "md-1"}) {
		t.Errorf("found %v, %v", list, err)
	}
}

func TestADomainThatIsNotAGuest(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, "self", "test", "pid:[1]", "")
	process(t, proc, "10", qemu, "pid:[1]", "10 (qemu) S 1")
	process(t, proc, "12", "qemu -name guest=win11,debug-threads=on -uuid u3", "pid:[1]", "12 (qemu) S 1")
	process(t, proc, "13", "qemu -name guest=win11 -uuid u4", "pid:[2]", "13 (qemu) S 1")
	for pid, want := range map[int]string{10: "watari-md-1", 12: "win11", 13: "", 14: ""} {
		if name, is := Domain(proc, pid); name != want || is != (want != "") {
			t.Errorf("process %d: %q, %v", pid, name, is)
		}
	}
	if guest, is := Of(proc, 10); !is || guest != (Process{10, "u1", "md-1"}) {
		t.Errorf("the guest: %v, %v", guest, is)
	}
	if guest, is := Of(proc, 12); is {
		t.Errorf("win11 is taken for a guest: %v", guest)
	}
}

func TestNamesOfDomains(t *testing.T) {
	for name, said := range map[string]string{"win11": "", "Office_2.0+x-y": "", "": "libvirt domain", "win 11": "libvirt domain", "-x": "libvirt domain",
		"a,b": "libvirt domain", "a/b": "libvirt domain", "a\nb": "libvirt domain", "é": "libvirt domain", strings.Repeat("a", 101): "libvirt domain",
		"watari-md-0": "guest of Watari"} {
		if err := CheckDomain(name); (err == nil) != (said == "") || err != nil && !strings.Contains(err.Error(), said) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestOnlyAProcessThatLivesIsTrouble(t *testing.T) {
	for name, c := range map[string]struct {
		stat    string
		trouble bool
	}{
		"it lives": {"10 (a) Z b) S 1", true}, "nobody has waited for it": {"10 (a) b) Z 1", false},
		"it is ending": {"10 (qemu) X 1", false},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			process(t, proc, "self", "test", "pid:[1]", "")
			process(t, proc, "10", qemu, "", c.stat)
			// Reading a directory as a link fails, even for root.
			if err := os.Mkdir(filepath.Join(proc, "10", "ns", "pid"), 0o755); err != nil {
				t.Fatal(err)
			}
			if found, err := list(proc); (err != nil) != c.trouble || len(found) != 0 {
				t.Errorf("found %v, %v", found, err)
			}
		})
	}
}

// A process table that cannot be read blocks only one check, and no later caller.
func TestALookIsBoundedAndNotRepeatedWhileItLasts(t *testing.T) {
	begun, release := make(chan struct{}, 10), make(chan struct{})
	f := &Finder{list: func() ([]Process, error) {
		begun <- struct{}{}
		<-release
		return []Process{{PID: 10, UID: "u1"}}, nil
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for range 3 {
		if _, err := f.Find(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a look that hangs: %v", err)
		}
	}
	if len(begun) != 1 {
		t.Errorf("%d looks at once", len(begun))
	}
	close(release)
	if pids, err := f.Find(t.Context()); err != nil || len(pids["u1"]) != 1 {
		t.Errorf("found %v, %v", pids, err)
	}
	if len(begun) != 2 {
		t.Errorf("%d looks; an old one was passed off as new", len(begun))
	}
}
