package initd

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestModulesAreSplitAfterTheLastThatBootingNeeds(t *testing.T) {
	paths := []string{"/lib/modules/6.1/virtio_pci.ko", "/lib/modules/6.1/overlay.ko", "/lib/x/virtio-rng.ko", "/lib/x/sunrpc.ko", "/lib/x/nfsd.ko"}
	early, late := splitModules(paths)
	if !slices.Equal(early, paths[:2]) || !slices.Equal(late, paths[2:]) {
		t.Errorf("early %v, late %v", early, late)
	}
	if early, late := splitModules(nil); len(early)+len(late) != 0 {
		t.Errorf("none: early %v, late %v", early, late)
	}
}

func TestModuleList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "modules")
	if paths, err := listModules(path); paths != nil || err != nil {
		t.Errorf("no list: %v, %v", paths, err)
	}
	os.WriteFile(path, []byte("# comment\n/a.ko\n\n /b.ko \n"), 0o600)
	if paths, err := listModules(path); !slices.Equal(paths, []string{"/a.ko", "/b.ko"}) || err != nil {
		t.Errorf("%v, %v", paths, err)
	}
}

func TestArguments(t *testing.T) {
	a := parseArgs("console=ttyS0 quiet watari.root=/dev/vda watari.rootfstype=erofs\n")
	if a != (arguments{"/dev/vda", "erofs"}) {
		t.Errorf("%+v", a)
	}
}

func TestModulesComeOnce(t *testing.T) {
	all := append(slices.Clone(Modules), LateModules...)
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("a module is named twice: %v", all)
	}
}
