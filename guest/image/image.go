// Package image builds bootable images for guests: a kernel, an initial RAM file system with the guest agent, and a
// read-only root file system made from Debian packages, a directory tree or an OCI archive.
package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"

	v1 "watari/api/watariv1"
)

// The file names of an image's blobs and of their descriptions in a directory.
const (
	KernelFile   = "kernel"
	InitrdFile   = "initrd"
	RootFile     = "root"
	ImageFile    = "image.json"   // a v1.Image in protobuf's JSON form
	PackagesFile = "packages.txt" // "name version" of each Debian package in the root and of the kernel's package
)

// Progress reports the progress of a build.
type Progress struct {
	Step  string // current step, for people: "install packages"
	Done  int64  // of Total, in Unit; 0 at the start of a step
	Total int64  // 0: unknown
	Unit  string // "packages", "bytes", "files"; "" if the step has no measure
	Line  string // detail for people, such as the package being unpacked; may be empty
}

// Build builds the image that recipe describes in outDir: the three blobs, image.json and packages.txt. It makes outDir
// if it does not exist. Roots and kernels of earlier equal recipes come from recipe.Cache, so the second build of a
// recipe takes about a second. progress, if not nil, is called by one goroutine at a time. If ctx is cancelled, only
// complete files of the cache remain.
//
// The returned image has no name. Errors that the user can fix (an unknown package, a bad archive, no network, a full
// disk) name the cause and the next step.
func Build(ctx context.Context, recipe Recipe, outDir string, progress func(Progress)) (*v1.Image, error) {
	recipe = recipe.withDefaults()
	if err := recipe.Validate(); err != nil {
		return nil, err
	}
	if progress == nil {
		progress = func(Progress) {}
	}
	if len(recipe.Packages) > 0 && os.Geteuid() != 0 {
		return nil, errors.New("building from packages needs root: use sudo (any user can build from a tree or an OCI archive, with --cache)")
	}
	if err := os.MkdirAll(outDir, 0o755); err != nil {
		return nil, err
	}
	w, err := openWorkspace(ctx, recipe.Cache, progress)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if w.sources, err = findSources(ctx, recipe.Suite, w.temp); err != nil {
		return nil, err
	}
	var kernel *kernelEntry
	if recipe.KernelPackage != "" {
		// Get this package first, so that a mistake in its name shows at once.
		if kernel, err = w.kernel(ctx, recipe, recipe.KernelPackage); err != nil {
			return nil, err
		}
	}
	root, err := w.root(ctx, recipe)
	if err != nil {
		return nil, err
	}
	if kernel == nil {
		kernel = &kernelEntry{dir: root.bootDir()}
		if readEntry(kernel.dir, kernel) != nil { // the root has no kernel
			if kernel, err = w.kernel(ctx, recipe, DefaultKernelPackage); err != nil {
				return nil, err
			}
		}
	}
	return w.assemble(ctx, recipe, root, kernel, outDir)
}

// assemble writes the three blobs and their description into outDir.
func (w *workspace) assemble(ctx context.Context, recipe Recipe, root *rootEntry, kernel *kernelEntry, outDir string) (*v1.Image, error) {
	w.progress(Progress{Step: "write the initial RAM file system"})
	if err := writeInitrd(filepath.Join(outDir, InitrdFile), recipe.GuestAgent, recipe.PM, kernel.modulePaths()); err != nil {
		return nil, err
	}
	if err := linkOrCopy(filepath.Join(kernel.dir, KernelFile), filepath.Join(outDir, KernelFile)); err != nil {
		return nil, err
	}
	if err := linkOrCopy(filepath.Join(root.dir, RootFile), filepath.Join(outDir, RootFile)); err != nil {
		return nil, err
	}
	initrd, err := fileBlob(ctx, filepath.Join(outDir, InitrdFile))
	if err != nil {
		return nil, err
	}
	image := &v1.Image{
		Kernel:     kernel.Blob.proto(),
		Initrd:     initrd,
		Root:       root.Blob.proto(),
		KernelArgs: recipe.KernelArgs,
		RootType:   rootType,
		Source:     root.Source + "; kernel " + kernel.Version,
		Mpi:        root.MPI,
		Pm:         recipe.PM != "",
	}
	image.Digest = Digest(image)
	packages := append(append([]string{}, root.Packages...), kernel.Packages...)
	if err := os.WriteFile(filepath.Join(outDir, PackagesFile), lines(packages), 0o644); err != nil {
		return nil, diskError(err, outDir)
	}
	text, err := protojson.MarshalOptions{Multiline: true}.Marshal(image)
	if err != nil {
		return nil, fmt.Errorf("describe the image: %w", err)
	}
	if err := os.WriteFile(filepath.Join(outDir, ImageFile), append(text, '\n'), 0o644); err != nil {
		return nil, diskError(err, outDir)
	}
	return image, nil
}

// Load reads the description of an image that Build has written into dir.
func Load(dir string) (*v1.Image, error) {
	text, err := os.ReadFile(filepath.Join(dir, ImageFile))
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	image := &v1.Image{}
	if err := protojson.Unmarshal(text, image); err != nil {
		return nil, fmt.Errorf("read image %s: %w", filepath.Join(dir, ImageFile), err)
	}
	return image, nil
}
