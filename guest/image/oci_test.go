package image

// oci_test.go - archives with whiteouts, hard links across layers and odd names; damaged archives.

import (
	"archive/tar"
	"bytes"
	"io"
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
)

// layerOf makes a layer of tar entries. A file's Linkname is its content.
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
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// ociArchive writes an image as an OCI archive or as a docker archive.
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

// layeredImage returns an image with whiteouts, hard links across layers, odd names and a kernel.
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
