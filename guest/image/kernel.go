package image

// kernel.go - finds, downloads and caches kernels with the modules that guests need.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// kernelEntry describes a kernel in the cache: the kernel's file, and the modules for the initrd in modules/.
type kernelEntry struct {
	dir      string
	Blob     blob     `json:"blob"`
	Version  string   `json:"version"`  // as in uname -r
	Modules  []string `json:"modules"`  // paths below lib/modules/<version>, in load order
	Packages []string `json:"packages"` // "name version" of its Debian package
}

// moduleFile is a kernel module for the initrd.
type moduleFile struct {
	Path   string // absolute path in the initrd
	Source string // the uncompressed file
}

func (k *kernelEntry) modulePaths() []moduleFile {
	var list []moduleFile
	for _, name := range k.Modules {
		list = append(list, moduleFile{
			Path:   path.Join("/lib/modules", k.Version, name),
			Source: filepath.Join(k.dir, "modules", name),
		})
	}
	return list
}

// kernel returns the kernel of a Debian package from the cache, or downloads it.
func (w *workspace) kernel(ctx context.Context, recipe Recipe, name string) (*kernelEntry, error) {
	entry := &kernelEntry{}
	key := key("kernel", name, recipe.moduleKey(), w.sources.key)
	if dir, ok := w.cached("kernels", key, entry); ok && !recipe.Force && hasSize(filepath.Join(dir, KernelFile), entry.Blob) {
		entry.dir = dir
		return entry, nil
	}
	entry = &kernelEntry{}
	made := filepath.Join(w.temp, "kernel-entry")
	if err := w.kernelFromPackage(ctx, name, recipe, made, entry); err != nil {
		return nil, err
	}
	var err error
	entry.dir, err = w.keep(made, "kernels", key, keptKernels)
	return entry, err
}

// kernelFromPackage makes an entry in the directory made from a Debian package.
func (w *workspace) kernelFromPackage(ctx context.Context, name string, recipe Recipe, made string, entry *kernelEntry) error {
	a, err := w.apt()
	if err != nil {
		return err
	}
	if err := a.update(ctx); err != nil {
		return err
	}
	deb, identity, err := a.downloadKernel(ctx, name)
	if err != nil {
		return err
	}
	w.progress(Progress{Step: "unpack the kernel", Line: identity})
	tree := filepath.Join(w.temp, "kernel-tree")
	if err := run(ctx, command{name: "dpkg-deb", args: []string{"--extract", deb, tree}}); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(deb), a.explain(err))
	}
	found, err := findKernel(tree)
	if err != nil {
		return err
	}
	if found == nil {
		return fmt.Errorf("package %s holds no kernel (boot/vmlinuz-VERSION with lib/modules/VERSION)", name)
	}
	entry.Packages = []string{identity}
	return w.keepKernel(ctx, found, recipe, made, entry)
}

// ownKernel stores the newest kernel of a tree, if it has one, beside the tree's root.
func (w *workspace) ownKernel(ctx context.Context, tree string, recipe Recipe, root *rootEntry) error {
	found, err := findKernel(tree)
	if err != nil || found == nil {
		return err
	}
	w.progress(Progress{Step: "take the kernel of the root", Line: found.version})
	return w.keepKernel(ctx, found, recipe, root.bootDir(), &kernelEntry{})
}

// keepKernel writes a kernel, the recipe's modules and their dependencies into the directory made.
func (w *workspace) keepKernel(ctx context.Context, found *foundKernel, recipe Recipe, made string, entry *kernelEntry) error {
	if err := os.MkdirAll(made, 0o755); err != nil {
		return diskError(err, w.cache)
	}
	packed, err := fs.ReadFile(found.tree, found.path)
	if err != nil {
		return fmt.Errorf("read kernel %s: %w", found.path, err)
	}
	if err := os.WriteFile(filepath.Join(made, KernelFile), unpackKernel(ctx, packed), 0o444); err != nil {
		return diskError(err, w.cache)
	}
	hashed, err := fileBlob(ctx, filepath.Join(made, KernelFile))
	if err != nil {
		return err
	}
	entry.dir, entry.Blob, entry.Version = made, blob{hashed.Digest, hashed.Size}, found.version
	modules, err := fs.Sub(found.tree, found.modules)
	if err != nil {
		return err
	}
	ordered, err := resolveModules(ctx, modules, recipe.Modules, recipe.LateModules)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", found.version, err)
	}
	for _, module := range ordered {
		target := filepath.Join(made, "modules", module.path)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return diskError(err, w.cache)
		}
		if err := os.WriteFile(target, module.content, 0o444); err != nil {
			return diskError(err, w.cache)
		}
		entry.Modules = append(entry.Modules, module.path)
	}
	return writeEntry(made, entry)
}

// foundKernel is a kernel in a tree.
type foundKernel struct {
	tree    fs.FS // confined to the tree, whatever symbolic links it contains
	version string
	path    string // path of the kernel
	modules string // path of the directory with its modules
}

// findKernel finds the newest kernel of a tree that has its modules in the tree; nil if there is none.
func findKernel(tree string) (*foundKernel, error) {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return nil, err
	}
	inside := root.FS()
	var newest *foundKernel
	for _, modules := range []string{"lib/modules", "usr/lib/modules"} {
		versions, err := fs.ReadDir(inside, modules)
		if err != nil {
			continue // no such directory, or a link that leads outside
		}
		for _, entry := range versions {
			version := entry.Name()
			for _, name := range []string{"boot/vmlinuz-" + version, path.Join(modules, version, "vmlinuz")} {
				info, err := fs.Stat(inside, name)
				if err != nil || !info.Mode().IsRegular() {
					continue
				}
				if newest == nil || compareVersions(version, newest.version) > 0 {
					newest = &foundKernel{tree: inside, version: version, path: name, modules: path.Join(modules, version)}
				}
			}
		}
	}
	return newest, nil
}

// compareVersions compares kernel versions: digits by numeric value, everything else by character.
func compareVersions(a, b string) int {
	for a != "" && b != "" {
		x, y := versionPart(a), versionPart(b)
		a, b = a[len(x):], b[len(y):]
		if isDigit(x[0]) && isDigit(y[0]) {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if len(x) != len(y) {
				return len(x) - len(y)
			}
		}
		if order := strings.Compare(x, y); order != 0 {
			return order
		}
	}
	return len(a) - len(b)
}

// versionPart returns the leading digits, or the leading other characters.
func versionPart(s string) string {
	digits := isDigit(s[0])
	if end := slices.IndexFunc([]byte(s), func(c byte) bool { return isDigit(c) != digits }); end > 0 {
		return s[:end]
	}
	return s
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// errNoModule means that a kernel does not have a module.
var errNoModule = errors.New("no such kernel module")
