package image

// oci.go - makes a root from an OCI or docker archive without unpacking it. A flattened tar stream goes to mksquashfs,
// so that owners, devices and names are preserved and root rights are not needed.

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// rootFromArchive makes a root from the layers of an archive.
func (w *workspace) rootFromArchive(ctx context.Context, recipe Recipe, entry *rootEntry) error {
	scratch, aside := filepath.Join(w.temp, "oci"), filepath.Join(w.temp, "oci-aside")
	for _, dir := range []string{scratch, aside} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return diskError(err, w.cache)
		}
	}
	bad := func(err error) error {
		if errors.Is(err, syscall.ENOSPC) || ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("archive %s is cut short, altered or of another kind: %w", recipe.OCI, err)
	}
	w.progress(Progress{Step: "check the archive"})
	archive, err := openArchive(recipe.OCI, scratch)
	if err != nil {
		return bad(err)
	}
	flat, err := planLayers(archive, func(r io.Reader) io.Reader { return readerContext{ctx, r} })
	if err != nil {
		return bad(err)
	}
	if !slices.ContainsFunc([]string{"bin", "sbin", "usr", "lib"}, func(name string) bool { _, ok := flat.kinds[name]; return ok }) {
		return fmt.Errorf("archive %s holds no root file system: neither bin, sbin, lib nor usr is there", recipe.OCI)
	}
	added, err := w.placeAdditions(ctx, recipe, flat)
	if err != nil {
		return err
	}
	var epoch time.Time
	if config, err := archive.ConfigFile(); err == nil && config.Created.Unix() > 0 {
		epoch = config.Created.Time
	}
	watch := &archiveWatch{aside: aside, kernel: recipe.KernelPackage == ""}
	if err := w.squashFlat(ctx, flat, added, watch, filepath.Join(entry.dir, RootFile), epoch); err != nil {
		if errors.Is(err, errStream) {
			return bad(err)
		}
		return err
	}
	slices.Sort(watch.mpi)
	entry.MPI = watch.mpi
	if entry.Packages, err = packagesOf(ctx, aside); err != nil {
		return err
	}
	return w.ownKernel(ctx, aside, recipe, entry)
}

// errStream marks errors in the stream to be packed, as opposed to errors of packing.
var errStream = errors.New("read the layers")

// squashFlat packs the additions and the flattened layers.
func (w *workspace) squashFlat(ctx context.Context, flat *flattener, added []addedFile, watch *archiveWatch, target string, epoch time.Time) error {
	reader, writer := io.Pipe()
	streamed := make(chan error, 1)
	go func() {
		out := tar.NewWriter(writer)
		err := flat.writeDirs(out)
		if err == nil {
			err = writeAdditions(out, added)
		}
		if err == nil {
			err = flat.write(out, watch.open)
		}
		if err == nil {
			err = out.Close()
		}
		writer.CloseWithError(err)
		streamed <- err
	}()
	err := w.squashTar(ctx, reader, target, epoch)
	reader.CloseWithError(io.ErrClosedPipe) // unblocks the writer if packing ended first
	if failed := <-streamed; failed != nil && !errors.Is(failed, io.ErrClosedPipe) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errStream, failed)
	}
	return err
}

// addedFile is a file or directory of the additions.
type addedFile struct {
	name   string // path in the root
	source string
}

// placeAdditions finds the places of the additions in the flattened tree and removes the entries that they replace.
func (w *workspace) placeAdditions(ctx context.Context, recipe Recipe, flat *flattener) ([]addedFile, error) {
	var added []addedFile
	for _, addition := range recipe.Additions {
		target, err := flat.resolve(addition.target())
		if err != nil {
			return nil, fmt.Errorf("addition %s: %w", addition.Source, err)
		}
		err = filepath.WalkDir(addition.Source, func(source string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			below, err := filepath.Rel(addition.Source, source)
			if err != nil {
				return err
			}
			name := filepath.Join(target, below)
			kind := byte(tar.TypeReg)
			if d.IsDir() {
				if kind = tar.TypeDir; flat.kinds[name] == tar.TypeDir {
					return nil
				}
			}
			flat.replace(name, kind)
			added = append(added, addedFile{name: name, source: source})
			return ctx.Err()
		})
		if err != nil {
			return nil, fmt.Errorf("addition %s: %w", addition.Source, err)
		}
	}
	return added, nil
}

// writeAdditions writes the added files, owned by root.
func writeAdditions(out *tar.Writer, added []addedFile) error {
	for _, file := range added {
		info, err := os.Lstat(file.source)
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(file.source); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		header = plainHeader(header, file.name)
		header.Uid, header.Gid = 0, 0
		if err := writeAddition(out, header, file.source); err != nil {
			return fmt.Errorf("%s: %w", file.source, err)
		}
	}
	return nil
}

func writeAddition(out *tar.Writer, header *tar.Header, source string) error {
	if header.Typeflag != tar.TypeReg {
		return out.WriteHeader(header)
	}
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	return copyEntry(out, header, file, func(string) io.WriteCloser { return nil })
}

// archiveWatch copies files from a passing tar stream: a kernel with its modules, and dpkg's list. It also records the
// names of MPI libraries.
type archiveWatch struct {
	aside  string // directory for the copied files
	kernel bool
	mpi    []string
}

var (
	bootFile = regexp.MustCompile(`^(boot/vmlinuz-[^/]+|(usr/)?lib/modules/[^/]+/(vmlinuz|modules\.builtin|.*\.ko(\.(gz|xz|zst))?))$`)
	dpkgFile = regexp.MustCompile(`^var/lib/dpkg/status$`)
)

func (a *archiveWatch) open(name string) io.WriteCloser {
	base := name[strings.LastIndex(name, "/")+1:]
	if mpi := mpiOf(base); mpi != "" && !slices.Contains(a.mpi, mpi) {
		a.mpi = append(a.mpi, mpi)
	}
	if !dpkgFile.MatchString(name) && !(a.kernel && bootFile.MatchString(name)) {
		return nil
	}
	// Names are clean and relative, and only regular files are made here, so none leads out of the directory.
	path := filepath.Join(a.aside, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return failingWriter{diskError(err, a.aside)}
	}
	file, err := os.Create(path)
	if err != nil {
		return failingWriter{diskError(err, a.aside)}
	}
	return file
}

// failingWriter returns an error for each write, because the file could not be made.
type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }
func (f failingWriter) Close() error              { return nil }
