package image

// root.go - makes roots from Debian packages, and finds roots in the cache.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// rootEntry describes a root in the cache.
type rootEntry struct {
	dir      string
	Blob     blob     `json:"blob"`
	Source   string   `json:"source"`
	MPI      []string `json:"mpi"`
	Packages []string `json:"packages"` // "name version"
}

// bootDir is the directory of the root's own kernel, if it has one.
func (r *rootEntry) bootDir() string { return filepath.Join(r.dir, "boot") }

// root returns the recipe's root from the cache, or makes it.
func (w *workspace) root(ctx context.Context, recipe Recipe) (*rootEntry, error) {
	w.progress(Progress{Step: "look for a root made before"})
	key, err := rootKey(ctx, recipe, w.sources)
	if err != nil {
		return nil, err
	}
	entry := &rootEntry{}
	if dir, ok := w.cached("roots", key, entry); ok && !recipe.Force && hasSize(filepath.Join(dir, RootFile), entry.Blob) {
		entry.dir = dir
		return entry, nil
	}
	made := filepath.Join(w.temp, "root-entry")
	if err := os.Mkdir(made, 0o755); err != nil {
		return nil, diskError(err, w.cache)
	}
	entry = &rootEntry{dir: made, Source: recipe.source()}
	switch {
	case recipe.Tree != "":
		err = w.rootFromTree(ctx, recipe, entry)
	case recipe.OCI != "":
		err = w.rootFromArchive(ctx, recipe, entry)
	default:
		err = w.rootFromPackages(ctx, recipe, entry)
	}
	if err != nil {
		return nil, err
	}
	w.progress(Progress{Step: "hash the root"})
	hashed, err := fileBlob(ctx, filepath.Join(made, RootFile))
	if err != nil {
		return nil, err
	}
	entry.Blob = blob{hashed.Digest, hashed.Size}
	if err := writeEntry(made, entry); err != nil {
		return nil, err
	}
	entry.dir, err = w.keep(made, "roots", key, keptRoots)
	return entry, err
}

// rootKey hashes everything that determines a root: the recipe and the contents of its files. Newer versions of Debian
// packages do not change the key; --force gets them.
func rootKey(ctx context.Context, recipe Recipe, from *sources) (string, error) {
	parts := []string{rootType, recipe.source(), strings.Join(squashOptions, " ")}
	switch {
	case recipe.Tree != "":
		sum, err := treeSum(ctx, recipe.Tree)
		if err != nil {
			return "", fmt.Errorf("tree %s: %w", recipe.Tree, err)
		}
		// A kernel in the tree is stored with the root, together with the requested modules.
		parts = append(parts, sum, recipe.moduleKey())
	case recipe.OCI != "":
		file, err := fileBlob(ctx, recipe.OCI)
		if err != nil {
			return "", fmt.Errorf("archive: %w", err)
		}
		parts = append(parts, file.Digest, recipe.moduleKey())
	default:
		parts = append(parts, from.key, strings.Join(basePackages, " "), strings.Join(excludedPaths, " "))
	}
	for _, a := range recipe.Additions {
		sum, err := treeSum(ctx, a.Source)
		if err != nil {
			return "", fmt.Errorf("addition %s: %w", a.Source, err)
		}
		parts = append(parts, a.target(), sum)
	}
	return key(parts...), nil
}

// basePackages are installed in every root made from packages, in addition to Debian's essential packages. They help to
// inspect a guest's network and processes. The guest agent needs none of them.
var basePackages = []string{"iproute2", "procps"}

// excludedPaths are left out of roots made from packages: nobody reads them in a compute guest.
var excludedPaths = []string{"/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*"}

// rootFromPackages makes a root with mmdebstrap from packages that apt has downloaded before. Only apt uses the
// network, with the machine's settings.
func (w *workspace) rootFromPackages(ctx context.Context, recipe Recipe, entry *rootEntry) error {
	if w.sources.suite == "" {
		_, err := machineSuite() // its error names the reason
		return err
	}
	a, err := w.apt()
	if err != nil {
		return err
	}
	if err := a.update(ctx); err != nil {
		return err
	}
	packages := append(slices.Clone(basePackages), recipe.Packages...)
	count, err := a.simulate(ctx, packages)
	if err != nil {
		return err
	}
	if err := a.downloadAll(ctx, packages); err != nil {
		return err
	}
	root := filepath.Join(w.temp, "root")
	if err := a.prepare(root); err != nil {
		return err
	}
	if err := w.mmdebstrap(ctx, a, root, packages, count); err != nil {
		return fmt.Errorf("install packages: %w", err)
	}
	if entry.Packages, err = installed(ctx, root); err != nil {
		return err
	}
	if err := tidy(root); err != nil {
		return fmt.Errorf("tidy the root: %w", err)
	}
	for _, addition := range recipe.Additions {
		if err := add(ctx, addition, root); err != nil {
			return err
		}
	}
	if entry.MPI, err = mpiInTree(root); err != nil {
		return err
	}
	entry.Source = "packages: " + strings.Join(versions(recipe.Packages, entry.Packages), ", ") + " (" + a.sources.suite + ")"
	if err := run(ctx, command{name: "apt-get", args: append(a.options(), "autoclean")}); ctx.Err() != nil {
		return err // otherwise ignore the error: old packages do no harm
	}
	return w.squashTree(ctx, root, filepath.Join(entry.dir, RootFile), releaseTime(a.lists()))
}

// mmdebstrap installs packages into root. All of them have been downloaded before.
func (w *workspace) mmdebstrap(ctx context.Context, a *apt, root string, packages []string, count int) error {
	const step = "install packages"
	done := 0
	args := []string{
		"--mode=root", "--variant=essential", "--format=directory", "--verbose",
		"--skip=check/empty,check/signed-by,update,cleanup/apt,essential/unlink",
		"--include=" + strings.Join(packages, ","), `--aptopt=Acquire::Languages "none"`,
	}
	for _, path := range excludedPaths {
		args = append(args, "--dpkgopt=path-exclude="+path)
	}
	args = append(append(args, a.sources.suite, root), a.sources.files...)
	return a.explain(run(ctx, command{
		name: "mmdebstrap", args: args, contained: true, dir: w.temp,
		env: []string{"TMPDIR=" + w.temp, "DEBIAN_FRONTEND=noninteractive"},
		line: func(line string) {
			if strings.HasPrefix(line, "Unpacking ") || strings.HasPrefix(line, "Setting up ") {
				done++
				w.progress(Progress{Step: step, Done: int64(done / 2), Total: int64(count), Unit: "packages", Line: line})
			}
		},
	}))
}

// prepare fills root before mmdebstrap runs: package lists and downloaded packages, the machine's apt preferences, and
// the merged /usr.
func (a *apt) prepare(root string) error {
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc/apt/preferences.d",
		"var/lib/apt/lists/partial", "var/cache/apt/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return diskError(err, root)
		}
		for ; dir != "."; dir = filepath.Dir(dir) { // independent of the umask
			if err := os.Chmod(filepath.Join(root, dir), 0o755); err != nil {
				return err
			}
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	pin := "Package: usrmerge\nPin: version *\nPin-Priority: -1\n"
	if err := os.WriteFile(filepath.Join(root, "etc/apt/preferences.d/00watari"), []byte(pin), 0o644); err != nil {
		return diskError(err, root)
	}
	copies := map[string]string{
		a.lists() + "/*":        "var/lib/apt/lists",
		a.archives() + "/*.deb": "var/cache/apt/archives",
	}
	if a.sources.own {
		copies["/etc/apt/preferences"] = "etc/apt"
		copies["/etc/apt/preferences.d/*"] = "etc/apt/preferences.d"
	}
	for pattern, target := range copies {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Name() == "lock" {
				continue
			}
			if err := linkOrCopy(path, filepath.Join(root, target, filepath.Base(path))); err != nil {
				return diskError(err, root)
			}
		}
	}
	return nil
}

// installed lists the Debian packages of a root as "name version", sorted.
func installed(ctx context.Context, root string) ([]string, error) {
	out, err := output(ctx, command{name: "dpkg-query", args: []string{
		"--admindir=" + filepath.Join(root, "var/lib/dpkg"), "--show", "--showformat=${Package} ${Version}\\n"}})
	if err != nil {
		return nil, fmt.Errorf("list the installed packages: %w", err)
	}
	list := strings.Fields(strings.ReplaceAll(strings.TrimSpace(out), " ", "\t"))
	var pairs []string
	for i := 0; i+1 < len(list); i += 2 {
		pairs = append(pairs, list[i]+" "+list[i+1])
	}
	slices.Sort(pairs)
	return pairs, nil
}

// versions returns the requested packages with their versions from a list of "name version".
func versions(asked, installed []string) []string {
	var list []string
	for _, name := range asked {
		if end := strings.IndexAny(name, ":=/"); end > 0 {
			name = name[:end]
		}
		at, _ := slices.BinarySearch(installed, name+" ")
		if at < len(installed) && strings.HasPrefix(installed[at], name+" ") {
			name = installed[at]
		}
		list = append(list, name)
	}
	return list
}

// tidy removes from a new root what the installation left: apt's state, logs, caches and identities. They differ
// between builds, or guests must not share them.
func tidy(root string) error {
	for _, pattern := range []string{
		"etc/apt/*", "etc/dpkg/dpkg.cfg.d/99mmdebstrap", "var/lib/apt/*", "var/cache/apt/*", "var/log/*",
		"var/cache/ldconfig/aux-cache", "var/cache/debconf/*-old", "var/lib/dpkg/*-old", "var/lib/dpkg/lock*",
		"var/lib/dpkg/triggers/Lock", "etc/*-", "etc/ssh/ssh_host_*", "var/lib/systemd/random-seed", "tmp/*", "run/*",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, path := range found {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	// Each guest writes its own machine id, host name and name servers.
	if err := os.WriteFile(filepath.Join(root, "etc/machine-id"), nil, 0o444); err != nil {
		return err
	}
	for _, name := range []string{"etc/hostname", "etc/resolv.conf"} {
		if err := os.Remove(filepath.Join(root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
