package image

// build_test.go - builds from trees, the cache, full disks, interrupts.

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "watari/api/watariv1"
	"watari/guest/initd"
)

// tools skips a test if the Debian packages needed for building are missing.
func tools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is missing: apt-get install %s", name, packageOf(name))
		}
	}
}

// kernelFiles returns the files of a kernel with all modules.
func kernelFiles(version string) map[string]string {
	files := map[string]string{
		"boot/vmlinuz-" + version:                        "kernel " + version,
		"lib/modules/" + version + "/modules.builtin":    "",
		"lib/modules/" + version + "/kernel/unwanted.ko": "not even ELF",
	}
	for _, name := range initd.Modules {
		files["lib/modules/"+version+"/kernel/"+name+".ko"] = string(moduleELF("depends="))
	}
	return files
}

// oddNames are file names that must be preserved.
var oddNames = []string{"new\nline", "tab\t space ", "-rf", "back\\slash", "quo\"te'", "not utf-8 \xff\xfe", "渡り", "*?[a]", "$(reboot)", ".hidden", strings.Repeat("long ", 40)}

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// build builds an image and unpacks its root.
func build(t *testing.T, recipe Recipe) (image *v1.Image, out, root string) {
	t.Helper()
	out = t.TempDir()
	image, err := Build(t.Context(), recipe, out, nil)
	if err != nil {
		t.Fatal(err)
	}
	root = filepath.Join(t.TempDir(), "root")
	if text, err := exec.Command("unsquashfs", "-no-progress", "-d", root, filepath.Join(out, RootFile)).CombinedOutput(); err != nil {
		t.Fatalf("unsquashfs: %v: %s", err, text)
	}
	return image, out, root
}

func TestTreeBecomesAnImageAsItIs(t *testing.T) {
	tools(t, "mksquashfs", "unsquashfs")
	tree := filepath.Join(t.TempDir(), "my tree\n-\xff")
	files := kernelFiles("6.1.0-9-test")
	for name, text := range kernelFiles("6.1.0-10-test") {
		files[name] = text
	}
	for _, name := range oddNames {
		files["usr/share/odd/"+name] = "content of " + name
	}
	files["usr/lib/libopen-pal.so.40"] = ""
	files["usr/bin/replaced"] = "old"
	write(t, tree, files)
	if err := os.Symlink("/nowhere", filepath.Join(tree, "usr/dangling")); err != nil {
		t.Fatal(err)
	}
	addition := filepath.Join(t.TempDir(), "new")
	write(t, filepath.Dir(addition), map[string]string{"new": "new"})
	recipe := testRecipe(t)
	recipe.Tree, recipe.KernelArgs, recipe.PM = tree, "quiet", recipe.GuestAgent // an ELF file, like PM
	recipe.Additions = []Addition{{addition, "/usr/bin/replaced"}, {addition, "/opt/deep/er/"}}
	image, out, root := build(t, recipe)

	for _, name := range oddNames {
		text, err := os.ReadFile(filepath.Join(root, "usr/share/odd", name))
		if err != nil || string(text) != "content of "+name {
			t.Errorf("file %q: %q, %v", name, text, err)
		}
	}
	for name, want := range map[string]string{"usr/bin/replaced": "new", "opt/deep/er/new": "new"} {
		if text, err := os.ReadFile(filepath.Join(root, name)); string(text) != want {
			t.Errorf("%s: %q, %v, want %q", name, text, err, want)
		}
	}
	if text, _ := os.ReadFile(filepath.Join(tree, "usr/bin/replaced")); string(text) != "old" {
		t.Error("the user's own tree was changed")
	}
	if to, err := os.Readlink(filepath.Join(root, "usr/dangling")); to != "/nowhere" {
		t.Errorf("symbolic link to %q, %v", to, err)
	}
	if text, _ := os.ReadFile(filepath.Join(out, KernelFile)); string(text) != "kernel 6.1.0-10-test" {
		t.Errorf("kernel: %q", text)
	}
	records, _ := readInitrd(t, filepath.Join(out, InitrdFile))
	for _, name := range initd.Modules {
		if _, there := records["lib/modules/6.1.0-10-test/kernel/"+name+".ko"]; !there {
			t.Errorf("module %s is missing in the initrd", name)
		}
	}
	if _, there := records["watari/libfabric/libpm-fi.so"]; !there || !image.Pm {
		t.Errorf("PM in the initrd: %v, described as %v", there, image.Pm)
	}
	checkDescription(t, image, out)
	if !slices.Equal(image.Mpi, []string{"openmpi"}) {
		t.Errorf("MPI: %v", image.Mpi)
	}
}

// checkDescription checks the digests, sizes and image.json of an image.
func checkDescription(t *testing.T, image *v1.Image, out string) {
	t.Helper()
	for name, blob := range map[string]*v1.Blob{KernelFile: image.Kernel, InitrdFile: image.Initrd, RootFile: image.Root} {
		got, err := fileBlob(t.Context(), filepath.Join(out, name))
		if err != nil || got.Digest != blob.Digest || got.Size != blob.Size || blob.Size == 0 {
			t.Errorf("%s: %v, %v, described as %v", name, got, err, blob)
		}
	}
	loaded, err := Load(out)
	if err != nil || loaded.Digest != image.Digest || loaded.Digest != Digest(loaded) || loaded.RootType != "squashfs" {
		t.Errorf("image.json: %v, %v", loaded, err)
	}
}

func TestSecondBuildTakesTheCache(t *testing.T) {
	tools(t, "mksquashfs", "unsquashfs")
	recipe := testRecipe(t)
	recipe.Tree = t.TempDir()
	write(t, recipe.Tree, kernelFiles("6.1"))
	first, _, _ := build(t, recipe)
	packed := func() bool {
		t.Helper()
		var steps []string
		second, err := Build(t.Context(), recipe, t.TempDir(), func(p Progress) { steps = append(steps, p.Step) })
		if err != nil || second.Root.Digest != first.Root.Digest {
			t.Errorf("second image %v, %v, want the first again", second, err)
		}
		return slices.Contains(steps, "pack the root file system")
	}
	if packed() {
		t.Error("an equal recipe was built again")
	}
	time.Sleep(1100 * time.Millisecond) // the image must not contain the time of packing
	if recipe.Force = true; !packed() {
		t.Error("--force took the cache")
	}
	left, _ := filepath.Glob(filepath.Join(recipe.Cache, "build-*"))
	if len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestCancelledBuildLeavesNothing(t *testing.T) {
	tools(t, "mksquashfs")
	recipe := testRecipe(t)
	recipe.Tree = t.TempDir()
	write(t, recipe.Tree, kernelFiles("6.1"))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted")
	_, err := Build(ctx, recipe, t.TempDir(), func(p Progress) {
		if p.Step == "pack the root file system" {
			cancel(stop)
		}
	})
	if !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
	for _, pattern := range []string{"build-*", "roots/*", "kernels/*"} {
		if left, _ := filepath.Glob(filepath.Join(recipe.Cache, pattern)); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

func TestStaleBuildIsRemoved(t *testing.T) {
	tools(t, "mksquashfs", "unsquashfs")
	recipe := testRecipe(t)
	recipe.Tree = t.TempDir()
	write(t, recipe.Tree, kernelFiles("6.1"))
	write(t, recipe.Cache, map[string]string{"build-123/root/etc/passwd": ""})
	build(t, recipe)
	if _, err := os.Stat(filepath.Join(recipe.Cache, "build-123")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed build left is still there: %v", err)
	}
}

func TestTreeWithoutARootIsRefused(t *testing.T) {
	recipe := testRecipe(t)
	recipe.Tree = t.TempDir()
	write(t, recipe.Tree, map[string]string{"README": ""})
	if _, err := Build(t.Context(), recipe, t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "holds no root file system") {
		t.Errorf("error %v", err)
	}
}

func TestAdditionStaysInTheTree(t *testing.T) {
	tools(t, "mksquashfs")
	outside := t.TempDir()
	recipe := testRecipe(t)
	recipe.Tree = t.TempDir()
	write(t, recipe.Tree, kernelFiles("6.1"))
	if err := os.Symlink(outside, filepath.Join(recipe.Tree, "opt")); err != nil {
		t.Fatal(err)
	}
	recipe.Additions = []Addition{{recipe.GuestAgent, "/opt/x"}}
	if _, err := Build(t.Context(), recipe, t.TempDir(), nil); err == nil {
		t.Error("was built")
	}
	if _, err := os.Stat(filepath.Join(outside, "x")); err == nil {
		t.Error("an addition was written outside the tree")
	}
}

func TestAFolderThatIsAddedReplacesLinksAndChangesNothingElse(t *testing.T) {
	outside, tree, folder := filepath.Join(t.TempDir(), "hosts"), t.TempDir(), t.TempDir()
	write(t, filepath.Dir(outside), map[string]string{"hosts": "this machine's"})
	write(t, tree, map[string]string{"etc/kept": ""})
	write(t, folder, map[string]string{"hosts": "new", "more/file": ""})
	if err := os.Symlink(outside, filepath.Join(tree, "etc/hosts")); err != nil {
		t.Fatal(err)
	}
	root := os.Geteuid() == 0
	for _, path := range []string{filepath.Join(tree, "etc/kept"), filepath.Join(folder, "hosts")} {
		if err := os.Chown(path, 1234, 1234); root && err != nil {
			t.Fatal(err)
		}
	}
	if err := add(t.Context(), Addition{folder, "/etc"}, tree); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{outside: "this machine's", filepath.Join(tree, "etc/hosts"): "new"} {
		if b, err := os.ReadFile(path); string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	for name, want := range map[string]uint32{"kept": 1234, "hosts": 0, "more/file": 0} {
		info, err := os.Lstat(filepath.Join(tree, "etc", name))
		if err != nil {
			t.Fatal(err)
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; root && uid != want {
			t.Errorf("%s is owned by %d, want %d", name, uid, want)
		}
	}
}

func TestFullDiskIsNamed(t *testing.T) {
	tools(t, "mksquashfs")
	if os.Geteuid() != 0 {
		t.Skip("root is missing: mounting a small file system needs it")
	}
	recipe := testRecipe(t)
	recipe.Tree, recipe.Cache = t.TempDir(), t.TempDir()
	mount := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", recipe.Cache)
	if text, err := mount.CombinedOutput(); err != nil {
		t.Skipf("a mount is not allowed here: %v: %s", err, text)
	}
	t.Cleanup(func() { exec.Command("umount", "-l", recipe.Cache).Run() })
	write(t, recipe.Tree, kernelFiles("6.1"))
	noise := bytes.NewBuffer(nil)
	for i := range 1 << 19 {
		noise.WriteString(time.Duration(i * i * 7919).String())
	}
	write(t, recipe.Tree, map[string]string{"usr/big": noise.String()})
	_, err := Build(t.Context(), recipe, t.TempDir(), nil)
	if err == nil || !strings.Contains(err.Error(), "the disk is full at "+recipe.Cache) {
		t.Errorf("error %v", err)
	}
}
