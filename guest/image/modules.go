package image

// modules.go - finds kernel modules and the order in which to load them.

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// kernelModule is a module to be loaded.
type kernelModule struct {
	path    string // path in lib/modules/<version>, without the suffix of a compression
	content []byte // uncompressed
}

// moduleName normalizes names: "virtio-rng.ko.xz" becomes "virtio_rng".
func moduleName(file string) string {
	name := path.Base(file)
	if at := strings.Index(name, ".ko"); at >= 0 {
		name = name[:at]
	}
	return strings.ReplaceAll(name, "-", "_")
}

// moduleIndex is an index of the modules of one kernel version.
type moduleIndex struct {
	files   fs.FS // lib/modules/<version>
	paths   map[string]string
	builtin map[string]bool
}

func indexModules(files fs.FS) (*moduleIndex, error) {
	index := &moduleIndex{files: files, paths: map[string]string{}, builtin: map[string]bool{}}
	text, err := fs.ReadFile(files, "modules.builtin")
	if err != nil {
		return nil, fmt.Errorf("read which modules are built in: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		index.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	err = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type().IsRegular() && strings.Contains(path.Base(name), ".ko") {
			index.paths[moduleName(name)] = name
		}
		return nil
	})
	return index, err
}

// resolveModules finds modules by name, with their dependencies, in a valid load order: first all for needed, then
// those for late. Modules that are built into the kernel need no file. Late modules that the kernel does not have are
// skipped.
func resolveModules(ctx context.Context, files fs.FS, needed, late []string) ([]kernelModule, error) {
	index, err := indexModules(files)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(needed)
	var missing []string
	for _, name := range needed {
		if !index.has(name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s; guests need them: choose another kernel with --kernel-package (%s has them)",
			errNoModule, strings.Join(missing, ", "), DefaultKernelPackage)
	}
	for _, name := range late {
		if index.has(name) {
			names = append(names, name)
		}
	}
	r := resolver{ctx: ctx, index: index, seen: map[string]bool{}}
	for _, name := range names {
		if err := r.visit(moduleName(name)); err != nil {
			return nil, err
		}
	}
	return r.ordered, nil
}

// has reports whether the kernel has a module, as a file or built in.
func (m *moduleIndex) has(name string) bool {
	name = moduleName(name)
	return m.builtin[name] || m.paths[name] != ""
}

type resolver struct {
	ctx     context.Context
	index   *moduleIndex
	seen    map[string]bool
	ordered []kernelModule
}

// visit adds a module after its dependencies.
func (r *resolver) visit(name string) error {
	if r.seen[name] || r.index.builtin[name] {
		return nil
	}
	r.seen[name] = true
	file := r.index.paths[name]
	if file == "" {
		return fmt.Errorf("%w: %s, which another one depends on", errNoModule, name)
	}
	packed, err := fs.ReadFile(r.index.files, file)
	if err != nil {
		return fmt.Errorf("read module %s: %w", file, err)
	}
	content, suffix, err := uncompress(r.ctx, file, packed)
	if err != nil {
		return fmt.Errorf("uncompress module %s: %w", file, err)
	}
	info, err := readModuleInfo(content)
	if err != nil {
		return fmt.Errorf("module %s: %w", file, err)
	}
	for _, before := range info.softBefore {
		// A soft dependency may be an alias of several modules. The generic module works on every CPU.
		for _, candidate := range []string{before, before + "_generic"} {
			if r.index.paths[candidate] != "" {
				if err := r.visit(candidate); err != nil {
					return err
				}
				break
			}
		}
	}
	for _, before := range info.depends {
		if err := r.visit(before); err != nil {
			return err
		}
	}
	r.ordered = append(r.ordered, kernelModule{path: strings.TrimSuffix(file, suffix), content: content})
	return nil
}

// moduleInfo is the dependency information in a module.
type moduleInfo struct {
	depends    []string // modules that must be loaded before
	softBefore []string // modules that should be loaded before, if they exist
}

// readModuleInfo reads a module's .modinfo section.
func readModuleInfo(content []byte) (moduleInfo, error) {
	var info moduleInfo
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return info, fmt.Errorf("not a kernel module: %w", err)
	}
	section := file.Section(".modinfo")
	if section == nil {
		return info, fmt.Errorf("not a kernel module: no .modinfo section")
	}
	data, err := section.Data()
	if err != nil {
		return info, err
	}
	for field := range strings.SplitSeq(string(data), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok {
			for name := range strings.SplitSeq(list, ",") {
				if name != "" {
					info.depends = append(info.depends, moduleName(name))
				}
			}
		}
		if text, ok := strings.CutPrefix(field, "softdep="); ok {
			info.softBefore = append(info.softBefore, softBefore(text)...)
		}
	}
	return info, nil
}

// softBefore returns the names after "pre:" in "pre: a b post: c".
func softBefore(text string) []string {
	var names []string
	before := false
	for _, word := range strings.Fields(text) {
		switch {
		case strings.HasSuffix(word, ":"):
			before = word == "pre:"
		case before:
			names = append(names, moduleName(word))
		}
	}
	return slices.Compact(names)
}

// uncompress uncompresses a file according to the suffix of its name, and returns that suffix.
func uncompress(ctx context.Context, name string, packed []byte) (content []byte, suffix string, err error) {
	switch suffix = path.Ext(name); suffix {
	case ".zst":
		content, err = unpackZstd(packed)
	case ".gz":
		content, err = unpackGzip(packed)
	case ".xz":
		content, err = unpackXZ(ctx, packed)
	default:
		return packed, "", nil
	}
	return content, suffix, err
}

func unpackZstd(packed []byte) ([]byte, error) {
	reader, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return reader.DecodeAll(packed, nil)
}

func unpackGzip(packed []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	reader.Multistream(false)
	return io.ReadAll(reader)
}

func unpackXZ(ctx context.Context, packed []byte) ([]byte, error) {
	text, err := output(ctx, command{name: "xz", args: []string{"--decompress", "--stdout", "--single-stream"}, stdin: bytes.NewReader(packed)})
	return []byte(text), err
}
