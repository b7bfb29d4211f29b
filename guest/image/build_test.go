package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	ociv1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	v1 "watari/api/watariv1"
	"watari/guest/initd"
)

// tools skips a test where the Debian packages that building needs are missing.
func tools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is missing: apt-get install %s", name, packageOf(name))
		}
	}
}

// kernelFiles are the files of a kernel that has every module.
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

// oddNames are names that must survive.
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

// build builds and unpacks the root.
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
	recipe.Tree, recipe.KernelArgs = tree, "quiet"
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
	checkDescription(t, image, out)
	if !slices.Equal(image.Mpi, []string{"openmpi"}) {
		t.Errorf("MPI: %v", image.Mpi)
	}
}

// checkDescription checks digests, sizes and image.json of a built image.
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

// layerOf makes a layer of tar entries; content is the Linkname of files.
func layerOf(t *testing.T, headers ...tar.Header) ociv1.Layer {
	t.Helper()
	var file bytes.Buffer
	w := tar.NewWriter(&file)
	for _, header := range headers {
		text := ""
		if header.Typeflag == 0 {
			header.Typeflag = tar.TypeReg
		}
		if header.Typeflag == tar.TypeReg {
			text, header.Linkname = header.Linkname, ""
		}
		header.Size, header.Format, header.Uid, header.Gid = int64(len(text)), tar.FormatPAX, os.Geteuid(), os.Getegid()
		header.ModTime = time.Unix(1_600_000_000, 0)
		if header.Mode == 0 {
			header.Mode = 0o755
		}
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(text))
	}
	w.Close()
	layer, err := tarball.LayerFromReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// ociArchive packs an image as an OCI archive, or as docker's.
func ociArchive(t *testing.T, image ociv1.Image, docker bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if docker {
		if err := tarball.WriteToFile(path, nil, image); err != nil {
			t.Fatal(err)
		}
		return path
	}
	dir := t.TempDir()
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := mutate.ConfigFile(empty.Image, &ociv1.ConfigFile{OS: "linux", Architecture: "s390x"})
	if err := index.AppendImage(other, layout.WithPlatform(ociv1.Platform{OS: "linux", Architecture: "s390x"})); err != nil {
		t.Fatal(err)
	}
	if err := index.AppendImage(image, layout.WithPlatform(ociv1.Platform{OS: "linux", Architecture: runtime.GOARCH})); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("tar", "-C", dir, "-cf", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, text)
	}
	return path
}

// layeredImage has whiteouts, hard links over layers, odd names and a kernel.
func layeredImage(t *testing.T) ociv1.Image {
	t.Helper()
	var lower []tar.Header
	for name, text := range kernelFiles("6.1.0-1-oci") {
		lower = append(lower, tar.Header{Name: name, Linkname: text})
	}
	for _, name := range oddNames {
		lower = append(lower, tar.Header{Name: "./odd/" + name, Linkname: "content of " + name})
	}
	lower = append(lower,
		tar.Header{Name: "usr/", Typeflag: tar.TypeDir, Mode: 0o711},
		tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"},
		tar.Header{Name: "usr/bin/kept", Linkname: "kept"},
		tar.Header{Name: "usr/bin/gone", Linkname: "gone"},
		tar.Header{Name: "usr/bin/first", Linkname: "linked"},
		tar.Header{Name: "usr/bin/second", Typeflag: tar.TypeLink, Linkname: "usr/bin/first"},
		tar.Header{Name: "usr/bin/third", Typeflag: tar.TypeLink, Linkname: "./usr/bin/first"},
		tar.Header{Name: "usr/dir/a", Linkname: "a"},
		tar.Header{Name: "usr/dir/b/c", Linkname: "c"},
		tar.Header{Name: "usr/opaque/old", Linkname: "old"},
		tar.Header{Name: "usr/tofile/old", Linkname: "old"},
		tar.Header{Name: "usr/twice", Linkname: "once"},
		tar.Header{Name: "usr/twice", Linkname: "twice"},
		tar.Header{Name: "usr/again/x", Linkname: "below"},
		tar.Header{Name: "usr/bin/mpichversion", Linkname: "", Mode: 0o4755},
	)
	upper := []tar.Header{
		{Name: "usr/bin/.wh.gone"}, {Name: "usr/bin/.wh.first"}, {Name: "usr/.wh.dir"},
		{Name: "usr/opaque/.wh..wh..opq"}, {Name: "usr/opaque/new", Linkname: "new"},
		{Name: "usr/tofile", Linkname: "file"},
		{Name: "usr/.wh.again"}, {Name: "usr/again/y", Linkname: "y"},
	}
	image, err := mutate.AppendLayers(empty.Image, layerOf(t, lower...), layerOf(t, upper...))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestArchiveIsFlattened(t *testing.T) {
	tools(t, "mksquashfs", "unsquashfs", "tar")
	for _, docker := range []bool{false, true} {
		recipe := testRecipe(t)
		recipe.OCI = ociArchive(t, layeredImage(t), docker)
		addition := filepath.Join(t.TempDir(), "added")
		write(t, filepath.Dir(addition), map[string]string{"added": "added"})
		recipe.Additions = []Addition{{addition, "/bin/added"}, {addition, "/usr/bin/kept"}}
		image, out, root := build(t, recipe)
		for name, want := range map[string]string{
			"usr/bin/kept": "added", "usr/bin/added": "added", "bin/added": "added", "usr/bin/second": "linked", "usr/bin/third": "linked",
			"usr/opaque/new": "new", "usr/tofile": "file", "usr/twice": "twice", "usr/again/y": "y",
		} {
			if text, err := os.ReadFile(filepath.Join(root, name)); string(text) != want {
				t.Errorf("%s: %q, %v, want %q", name, text, err, want)
			}
		}
		for _, name := range []string{"usr/bin/gone", "usr/bin/first", "usr/dir", "usr/opaque/old", "usr/opaque/.wh..wh..opq", "usr/again/x"} {
			if _, err := os.Lstat(filepath.Join(root, name)); err == nil {
				t.Errorf("%s is there", name)
			}
		}
		for _, name := range oddNames {
			if text, err := os.ReadFile(filepath.Join(root, "odd", name)); string(text) != "content of "+name {
				t.Errorf("file %q: %q, %v", name, text, err)
			}
		}
		second, _ := os.Stat(filepath.Join(root, "usr/bin/second"))
		third, _ := os.Stat(filepath.Join(root, "usr/bin/third"))
		if !os.SameFile(second, third) {
			t.Error("a hard link has become a copy")
		}
		usr, err := os.Stat(filepath.Join(root, "usr"))
		if err != nil || usr.Mode().Perm() != 0o711 {
			t.Errorf("usr: %v, %v", usr.Mode(), err)
		}
		if text, _ := os.ReadFile(filepath.Join(out, KernelFile)); string(text) != "kernel 6.1.0-1-oci" {
			t.Errorf("kernel: %q", text)
		}
		if !slices.Equal(image.Mpi, []string{"mpich"}) {
			t.Errorf("MPI: %v", image.Mpi)
		}
		checkDescription(t, image, out)
	}
}

func TestDamagedArchiveIsRefused(t *testing.T) {
	tools(t, "mksquashfs", "tar")
	whole, err := os.ReadFile(ociArchive(t, layeredImage(t), false))
	if err != nil {
		t.Fatal(err)
	}
	docker, err := os.ReadFile(ociArchive(t, layeredImage(t), true))
	if err != nil {
		t.Fatal(err)
	}
	bigLayer := func(archive []byte) int { return bytes.Index(archive, []byte{0x1f, 0x8b}) }
	damage := func(archive []byte, at int) []byte {
		archive = bytes.Clone(archive)
		archive[at] ^= 0x40
		return archive
	}
	for name, archive := range map[string][]byte{
		"empty":               {},
		"text":                []byte("this is no archive"),
		"half":                whole[:len(whole)/2],
		"altered layer":       damage(whole, bigLayer(whole)+40),
		"half of docker's":    docker[:bigLayer(docker)+100],
		"altered in docker's": damage(docker, bigLayer(docker)+40),
	} {
		t.Run(name, func(t *testing.T) {
			recipe := testRecipe(t)
			recipe.OCI = filepath.Join(t.TempDir(), "image.tar")
			if err := os.WriteFile(recipe.OCI, archive, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Build(t.Context(), recipe, t.TempDir(), nil)
			if err == nil || !strings.Contains(err.Error(), "cut short, altered or of another kind") {
				t.Errorf("error %v", err)
			}
			if roots, _ := filepath.Glob(filepath.Join(recipe.Cache, "roots/*")); len(roots) > 0 {
				t.Error("a root was kept")
			}
		})
	}
}

func TestArchiveEntryOutsideTheRootIsRefused(t *testing.T) {
	tools(t, "mksquashfs")
	image, err := mutate.AppendLayers(empty.Image, layerOf(t, tar.Header{Name: "usr/x"}, tar.Header{Name: "../../etc/cron.d/x", Linkname: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	recipe := testRecipe(t)
	recipe.OCI = ociArchive(t, image, true)
	if _, err := Build(t.Context(), recipe, t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "leads out of the root") {
		t.Errorf("error %v", err)
	}
}
