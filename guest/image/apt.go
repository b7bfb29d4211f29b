package image

// apt.go - apt with this machine's sources and separate state.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// apt runs apt with the image's sources and this machine's keys and proxies. It has its own package lists and
// downloads, so that it does not disturb the machine's, and the machine's apt does not disturb it.
type apt struct {
	dir      string // directory in the cache
	sources  *sources
	progress func(Progress)
	updated  bool
}

// apt returns the workspace's apt. It prepares it on the first call.
func (w *workspace) apt() (*apt, error) {
	if w.packages != nil {
		return w.packages, nil
	}
	a := &apt{dir: filepath.Join(w.cache, w.sources.aptFolder()), sources: w.sources, progress: w.progress}
	for _, dir := range []string{a.lists() + "/partial", a.archives() + "/partial"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, diskError(err, w.cache)
		}
	}
	if err := os.WriteFile(a.status(), nil, 0o644); err != nil {
		return nil, diskError(err, w.cache)
	}
	w.packages = a
	return a, nil
}

func (a *apt) lists() string    { return filepath.Join(a.dir, "state/lists") }
func (a *apt) archives() string { return filepath.Join(a.dir, "cache/archives") }
func (a *apt) status() string   { return filepath.Join(a.dir, "status") }

// options make apt work in a.dir as on a machine without installed packages.
func (a *apt) options() []string {
	return append([]string{
		// Use one architecture only: other architectures of this machine have essential packages, too.
		"-q", "-o", "APT::Architectures=" + runtime.GOARCH, "-o", "Dir::State=" + filepath.Join(a.dir, "state"), "-o", "Dir::State::status=" + a.status(),
		"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"), "-o", "Dir::Log=" + filepath.Join(a.dir, "log"),
		"-o", "APT::Install-Recommends=false", "-o", "Acquire::Languages=none", "-o", "APT::Get::Assume-Yes=true",
		"-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20",
	}, a.sources.options()...)
}

// get runs apt-get and reports the progress of downloads for step.
func (a *apt) get(ctx context.Context, step, dir string, args ...string) error {
	a.progress(Progress{Step: step})
	status, done, err := statusPipe(func(line string) {
		// dlstatus:<item>:<percent>:<text>
		if fields := strings.SplitN(line, ":", 4); len(fields) == 4 && fields[0] == "dlstatus" {
			percent, _ := strconv.ParseFloat(fields[2], 64)
			a.progress(Progress{Step: step, Done: int64(percent), Total: 100, Unit: "%"})
		}
	})
	if err != nil {
		return err
	}
	err = run(ctx, command{
		name: "apt-get", dir: dir, status: status,
		args: append(append(a.options(), "-o", "APT::Status-Fd=3"), args...),
	})
	done()
	return a.explain(err)
}

// update fetches the package lists, once per build.
func (a *apt) update(ctx context.Context) error {
	if a.updated {
		return nil
	}
	if err := a.get(ctx, "fetch package lists", "", "update", "--error-on=any"); err != nil {
		return fmt.Errorf("fetch package lists: %w", err)
	}
	a.updated = true
	return nil
}

// usrIsMerged replaces the package usrmerge, which would install Perl. Roots have a merged /usr from the start.
var usrIsMerged = []string{"usr-is-merged", "usrmerge-"}

// simulate returns how many packages are installed for these packages and the essential ones. It returns an error for
// an unknown package or unmet dependencies.
func (a *apt) simulate(ctx context.Context, packages []string) (int, error) {
	a.progress(Progress{Step: "resolve dependencies"})
	args := append(append(a.options(), "--simulate", "install", "?essential"), usrIsMerged...)
	out, err := output(ctx, command{name: "apt-get", args: append(args, packages...)})
	if err != nil {
		return 0, a.explain(err)
	}
	return strings.Count("\n"+out, "\nInst "), nil
}

// downloadAll downloads the packages, the essential ones and all dependencies into archives().
func (a *apt) downloadAll(ctx context.Context, packages []string) error {
	args := append([]string{"install", "--download-only", "?essential"}, usrIsMerged...)
	if err := a.get(ctx, "download packages", "", append(args, packages...)...); err != nil {
		return fmt.Errorf("download packages: %w", err)
	}
	return nil
}

// kernelName matches the package that contains a kernel. linux-image-amd64 and the like only depend on such a package.
var kernelName = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-[0-9]\S+)$`)

// downloadKernel downloads a kernel's package, or the package that it depends on if it contains no kernel. It returns
// the path of the .deb file, and its package and version ("linux-image-6.1.0-1-amd64 6.1.1-1").
func (a *apt) downloadKernel(ctx context.Context, name string) (deb, identity string, err error) {
	out, err := output(ctx, command{name: "apt-cache", args: append(a.options(), "depends", name)})
	if err != nil {
		return "", "", fmt.Errorf("kernel package %s is not known to this machine's apt sources: check its name (apt-cache search linux-image): %w", name, err)
	}
	if match := kernelName.FindStringSubmatch(out); match != nil {
		name = match[1]
	}
	dir := filepath.Join(a.dir, "kernel")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", "", diskError(err, a.dir)
	}
	if err := a.get(ctx, "download kernel", dir, "-o", "APT::Sandbox::User=root", "download", name); err != nil {
		return "", "", fmt.Errorf("download kernel package %s: %w", name, err)
	}
	plain, _, _ := strings.Cut(name, "=")
	found, _ := filepath.Glob(filepath.Join(dir, plain+"_*.deb"))
	if len(found) == 0 {
		return "", "", fmt.Errorf("download kernel package %s: apt-get left no file", name)
	}
	newest := slices.MaxFunc(found, func(x, y string) int { return modTime(x).Compare(modTime(y)) })
	identity, err = output(ctx, command{name: "dpkg-deb", args: []string{"--showformat=${Package} ${Version}", "--show", newest}})
	return newest, strings.TrimSpace(identity), err
}

func modTime(path string) (t time.Time) {
	if info, err := os.Stat(path); err == nil {
		t = info.ModTime()
	}
	return t
}

// The messages in which apt and dpkg report errors.
var (
	unknownPackage = regexp.MustCompile(`[EW]: (?:Unable to locate package|Couldn't find any package by (?:glob|regex)) '?([^'\s]+)`)
	noCandidate    = regexp.MustCompile(`E: (?:Package '([^']+)' has no installation candidate|(Version '[^']+' for '[^']+' was not found)|(Release '[^']+' for '[^']+' was not found))`)
	noNetwork      = regexp.MustCompile(`Could not resolve|Temporary failure resolving|Could not connect|Unable to connect|Connection failed|onnection timed out|Connection refused|Network is unreachable|No route to host`)
	badSignature   = regexp.MustCompile(`is not signed|signatures? (?:couldn't be verified|were invalid)|NO_PUBKEY`)
	badDownload    = regexp.MustCompile(`Hash Sum mismatch|File has unexpected size`)
	noSpace        = regexp.MustCompile(`No space left on device|You don't have enough free space|Disk quota exceeded`)
)

// explain converts an error of apt, dpkg or a tool that they run to a sentence that says what to do.
func (a *apt) explain(err error) error {
	var failure *commandError
	if !errors.As(err, &failure) {
		return err
	}
	said := strings.Join(failure.tail, "\n")
	if match := unknownPackage.FindStringSubmatch(said); match != nil {
		return fmt.Errorf("package %q is not known to this machine's apt sources: check its name (apt-cache search), or add its source to /etc/apt", match[1])
	}
	if match := noCandidate.FindStringSubmatch(said); match != nil {
		if match[1] != "" {
			return fmt.Errorf("package %q cannot be installed from this machine's apt sources: %w", match[1], err)
		}
		return fmt.Errorf("%s in this machine's apt sources", match[2]+match[3])
	}
	switch {
	case noSpace.MatchString(said):
		return fullDisk(a.dir)
	case badSignature.MatchString(said):
		return fmt.Errorf("a package source's signature is not valid here: check apt's sources and keys: %w", err)
	case badDownload.MatchString(said):
		return fmt.Errorf("a download was altered or cut short: try again: %w", err)
	case noNetwork.MatchString(said):
		at := slices.IndexFunc(failure.tail, noNetwork.MatchString)
		return fmt.Errorf("the package mirror cannot be reached: check the network and apt's sources and proxy: %w",
			&commandError{name: failure.name, err: failure.err, tail: failure.tail[at : at+1]})
	}
	return err
}
