package image

// recipe.go - the description of an image, and its validation.

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"watari/guest/initd"
)

// DefaultCache is the directory in which Debian packages, roots and kernels are kept between builds.
const DefaultCache = "/var/cache/watari/images"

// DefaultKernelPackage is Debian's full kernel. The cloud kernel lacks 9p, and the VM generation ID, which makes the
// random numbers of guests differ as soon as they are forked from one template.
const DefaultKernelPackage = "linux-image-amd64"

// Addition is a file or directory of this machine that is copied into the root.
type Addition struct {
	Source      string
	Destination string // absolute path in the root; with a slash at the end, the directory to copy into
}

// ParseAddition parses SRC:DST. The last colon separates them, so SRC may contain colons.
func ParseAddition(text string) (Addition, error) {
	at := strings.LastIndex(text, ":")
	if at <= 0 || !strings.HasPrefix(text[at+1:], "/") {
		return Addition{}, fmt.Errorf("addition %q: want SOURCE:DESTINATION with an absolute destination", text)
	}
	return Addition{Source: text[:at], Destination: text[at+1:]}, nil
}

// target returns the cleaned path in the root, without a leading slash.
func (a Addition) target() string {
	destination := a.Destination
	if strings.HasSuffix(destination, "/") {
		destination = path.Join(destination, filepath.Base(a.Source))
	}
	return strings.TrimPrefix(path.Clean(destination), "/")
}

// Recipe describes an image. Exactly one of Packages, Tree and OCI is set.
type Recipe struct {
	Packages []string // Debian packages, as apt-get names them ("lammps", "lammps=1.2-3")
	Tree     string   // a directory that becomes the root unchanged
	OCI      string   // an OCI or docker archive (a tar file), whose layers become the root

	Additions []Addition
	// Suite is the Debian release of the packages and the kernel, one of Suites; "": this machine's release.
	Suite string
	// KernelPackage is the Debian package of the kernel; "": the kernel in the tree or archive if it has one, otherwise
	// DefaultKernelPackage.
	KernelPackage string
	KernelArgs    string   // appended to the kernel's command line
	Modules       []string // required modules; nil: initd.Modules
	LateModules   []string // loaded later, if the kernel has them; nil: initd.LateModules
	GuestAgent    string   // path of the statically linked watari-guest, with watari-guest-rsh beside it
	PM            string   // path of PM's libfabric provider, libpm-fi.so; "": guests have no PM

	// The remaining fields do not change the image.
	Cache string // "": DefaultCache
	Force bool   // ignore the cache and build again
}

// moduleKey is the part of cache keys that stands for a kernel's modules.
func (r Recipe) moduleKey() string {
	return strings.Join(r.Modules, " ") + " late: " + strings.Join(r.LateModules, " ")
}

func (r Recipe) withDefaults() Recipe {
	if r.Modules == nil {
		r.Modules = initd.Modules
	}
	if r.LateModules == nil {
		r.LateModules = initd.LateModules
	}
	if r.Cache == "" {
		r.Cache = DefaultCache
	}
	r.Packages = slices.Sorted(slices.Values(r.Packages))
	r.Packages = slices.Compact(r.Packages)
	return r
}

// packageName matches a single package for apt-get, and nothing that apt-get could take for an option or a pattern.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+~:-]+|/[a-z][a-z0-9-]*)?$`)

// Validate checks a recipe without building it.
func (r Recipe) Validate() error {
	sources := 0
	for _, set := range []bool{len(r.Packages) > 0, r.Tree != "", r.OCI != ""} {
		if set {
			sources++
		}
	}
	if sources != 1 {
		return errors.New("an image is made from exactly one of packages, a tree and an OCI archive")
	}
	if err := checkSuite(r.Suite); err != nil {
		return err
	}
	for _, name := range r.Packages {
		if !packageName.MatchString(name) {
			return fmt.Errorf("%q is not the name of a Debian package", name)
		}
	}
	if r.KernelPackage != "" && !packageName.MatchString(r.KernelPackage) {
		return fmt.Errorf("%q is not the name of a Debian package with a kernel", r.KernelPackage)
	}
	if r.Tree != "" {
		if info, err := os.Stat(r.Tree); err != nil {
			return fmt.Errorf("tree: %w", err)
		} else if !info.IsDir() {
			return fmt.Errorf("tree %s is not a directory", r.Tree)
		}
	}
	if r.OCI != "" {
		if info, err := os.Stat(r.OCI); err != nil {
			return fmt.Errorf("archive: %w", err)
		} else if !info.Mode().IsRegular() {
			return fmt.Errorf("archive %s is not a file; make one with skopeo copy ... oci-archive:FILE.tar or docker save -o FILE.tar", r.OCI)
		}
	}
	return r.validateFiles()
}

func (r Recipe) validateFiles() error {
	for _, a := range r.Additions {
		if _, err := os.Lstat(a.Source); err != nil {
			return fmt.Errorf("addition: %w", err)
		}
		if !strings.HasPrefix(a.Destination, "/") || a.target() == "" {
			return fmt.Errorf("addition %s: destination %q is not an absolute path below the root", a.Source, a.Destination)
		}
	}
	if strings.ContainsAny(r.KernelArgs, "\n\x00") {
		return errors.New("kernel arguments hold a line break or a zero byte")
	}
	if r.GuestAgent == "" {
		return errors.New("no guest agent given: name the watari-guest binary")
	}
	if err := checkFile("guest agent", r.GuestAgent); err != nil {
		return err
	}
	if err := checkFile("MPI launchers' program", launcherOf(r.GuestAgent)); err != nil || r.PM == "" {
		return err
	}
	return checkFile("PM's provider", r.PM)
}

func checkFile(what, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s %s is not a file", what, path)
	}
	return nil
}

// source describes the origin of the root, for people.
func (r Recipe) source() string {
	switch {
	case r.Tree != "":
		return "tree: " + printable(r.Tree)
	case r.OCI != "":
		return "archive: " + printable(filepath.Base(r.OCI))
	}
	return "packages: " + strings.Join(r.Packages, ", ")
}

// printable quotes a path that contains other than printable characters.
func printable(path string) string {
	if quoted := strconv.Quote(path); quoted[1:len(quoted)-1] != path {
		return quoted
	}
	return path
}
