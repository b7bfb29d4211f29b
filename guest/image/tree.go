package image

// tree.go - makes roots from directories; copies additions.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// rootFromTree makes a root from a user's directory without changes.
func (w *workspace) rootFromTree(ctx context.Context, recipe Recipe, entry *rootEntry) error {
	tree := recipe.Tree
	if err := checkTree(tree); err != nil {
		return err
	}
	var err error
	if len(recipe.Additions) > 0 {
		if tree, err = w.stage(ctx, recipe); err != nil {
			return err
		}
	}
	if entry.MPI, err = mpiInTree(tree); err != nil {
		return err
	}
	if entry.Packages, err = packagesOf(ctx, tree); err != nil {
		return err
	}
	if recipe.KernelPackage == "" {
		if err := w.ownKernel(ctx, tree, recipe, entry); err != nil {
			return err
		}
	}
	epoch, err := newest(recipe.Tree)
	if err != nil {
		return err
	}
	return w.squashTree(ctx, tree, filepath.Join(entry.dir, RootFile), epoch)
}

// newest returns the latest modification time in a tree.
func newest(tree string) (latest time.Time, err error) {
	err = filepath.WalkDir(tree, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.ModTime().After(latest) {
			latest = info.ModTime()
		}
		return err
	})
	return latest, err
}

// checkTree refuses a tree that cannot be a guest's root.
func checkTree(tree string) error {
	for _, name := range []string{"bin", "sbin", "usr", "lib"} {
		if info, err := os.Stat(filepath.Join(tree, name)); err == nil && info.IsDir() {
			return nil
		}
	}
	return fmt.Errorf("tree %s holds no root file system: neither bin, sbin, lib nor usr is there", tree)
}

// stage copies the tree if there are additions, so that the user's tree is not changed.
func (w *workspace) stage(ctx context.Context, recipe Recipe) (string, error) {
	staged := filepath.Join(w.temp, "tree")
	w.progress(Progress{Step: "copy the tree"})
	if err := copyTree(ctx, recipe.Tree, staged); err != nil {
		return "", err
	}
	for _, addition := range recipe.Additions {
		if err := add(ctx, addition, staged); err != nil {
			return "", err
		}
	}
	return staged, nil
}

// add copies an addition into the tree root, owned by root. It replaces a file of that name.
func add(ctx context.Context, a Addition, root string) error {
	target, err := insideTree(root, a.target())
	if err != nil {
		return fmt.Errorf("addition %s to %s: %w", a.Source, a.Destination, err)
	}
	if info, err := os.Lstat(target); err == nil && !info.IsDir() {
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	// --remove-destination replaces links of the tree; cp would write through them, to this machine's files. Files that
	// are already in the directory keep their owners.
	if err := copyTree(ctx, a.Source, target, "--remove-destination", "--no-preserve=ownership"); err != nil {
		return fmt.Errorf("addition %s to %s: %w", a.Source, a.Destination, err)
	}
	return nil
}

// insideTree makes the parent directories of name and returns its path. It refuses a path that a symbolic link of the
// tree leads outside.
func insideTree(tree, name string) (string, error) {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if dir := filepath.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	}
	return filepath.Join(tree, name), nil
}

// copyTree copies a file or directory with all attributes, except as further options of cp say.
func copyTree(ctx context.Context, source, target string, options ...string) error {
	args := append([]string{"-a", "--reflink=auto", "-T"}, append(options, "--", source, target)...)
	err := run(ctx, command{name: "cp", args: args})
	if failure, ok := err.(*commandError); ok && noSpace.MatchString(strings.Join(failure.tail, "\n")) {
		return fullDisk(filepath.Dir(target))
	}
	return err
}

// packagesOf lists the Debian packages of a tree, if it has any.
func packagesOf(ctx context.Context, tree string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(tree, "var/lib/dpkg/status")); err != nil {
		return nil, nil
	}
	return installed(ctx, tree)
}

// treeSum hashes a file or directory: names, types, modes, owners, link targets, times and contents.
func treeSum(ctx context.Context, root string) (string, error) {
	hash := sha256.New()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		fmt.Fprintf(hash, "%d:%s %o %d %d %d %d %d\n", len(name), name, stat.Mode, stat.Uid, stat.Gid, stat.Rdev, info.Size(), info.ModTime().Unix())
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			fmt.Fprintf(hash, "%d:%s\n", len(target), target)
			return err
		case info.Mode().IsRegular():
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = io.Copy(hash, file)
			return err
		}
		return nil
	})
	return hex.EncodeToString(hash.Sum(nil)), err
}

// mpiOf returns the MPI library that has a file of this name, or "".
func mpiOf(name string) string {
	switch {
	case strings.HasPrefix(name, "libopen-pal.so"), strings.HasPrefix(name, "libopen-rte.so"), name == "ompi_info":
		return "openmpi"
	case strings.HasPrefix(name, "libmpich.so"), name == "mpichversion":
		return "mpich"
	case strings.HasPrefix(name, "libprrte.so"), name == "prterun":
		return "prrte" // Open MPI's launcher since 5.0
	}
	return ""
}

// mpiInTree finds the MPI libraries in a tree.
func mpiInTree(tree string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if mpi := mpiOf(d.Name()); mpi != "" && !slices.Contains(found, mpi) {
			found = append(found, mpi)
		}
		return nil
	})
	slices.Sort(found)
	return found, err
}
