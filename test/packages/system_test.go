package packages

// system_test.go - a small Debian system in a directory.

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"watari/lab/machine"
)

const (
	deb = "../../build/deb"
	// kept is the directory in which the archives of the systems are kept for later tests.
	kept = "../../build/test-packages"
)

// names are the packages that make deb builds.
var names = []string{"watari", "watari-agent", "libpm1", "libpm-dev", "libpm-fi"}

// need fails a test if something is missing that make test-full-bookworm and test-full-trixie set up.
func need(t *testing.T, there bool, what string) {
	t.Helper()
	if !there {
		t.Fatalf("missing: %s", what)
	}
}

// requirements skips a test unless it was requested. Each test calls it, because a test may be run alone.
func requirements(t *testing.T) {
	t.Helper()
	if os.Getenv("WATARI_TEST_FULL") == "" {
		t.Skip("WATARI_TEST_FULL is not set: making a Debian system takes a minute")
	}
	need(t, os.Geteuid() == 0, "root")
	for _, program := range []string{"mmdebstrap", "dpkg-deb", "unshare"} {
		_, err := exec.LookPath(program)
		need(t, err == nil, program+" (scripts/setup.sh deb installs it)")
	}
	for _, name := range names {
		need(t, len(built(name)) == 1, "build/deb/"+name+"_*.deb (make deb builds it)")
	}
}

// built returns the files of a package in build/deb.
func built(name string) []string {
	paths, _ := filepath.Glob(filepath.Join(deb, name+"_*.deb"))
	return paths
}

// system is a small Debian system in a directory.
type system struct {
	*testing.T
	root string
}

// newSystem makes a system of a suite, with the programs that the packages' scripts call and the libraries of
// watari-agent. It leaves out other dependencies, which saves minutes; TestDependenciesAreMet checks those.
func newSystem(t *testing.T, suite string) *system {
	t.Helper()
	s := &system{t, filepath.Join(t.TempDir(), "root")}
	archive := filepath.Join(kept, suite+".tar")
	if _, err := os.Stat(archive); err != nil {
		s.command("mkdir", "-p", kept)
		s.command("mmdebstrap", append([]string{"--quiet", "--mode=root", "--variant=apt", "--include=libvirt0,procps,systemd", suite,
			archive + ".new.tar"}, mirrors(t, suite)...)...)
		s.command("mv", archive+".new.tar", archive)
	}
	s.command("mkdir", "-p", s.root)
	s.command("tar", "--extract", "--numeric-owner", "--directory="+s.root, "--file="+archive)
	for _, name := range names {
		s.copyIn(built(name)[0])
	}
	return s
}

// mirrors returns apt's source lines for a suite, on the mirrors that this machine's apt uses.
func mirrors(t *testing.T, suite string) []string {
	t.Helper()
	lines, err := machine.Sources(t.Context(), suite)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// command runs a command on this machine.
func (s *system) command(name string, arguments ...string) string {
	s.Helper()
	out, err := exec.Command(name, arguments...).CombinedOutput()
	if err != nil {
		s.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// try runs a shell script in the system, in its own namespaces, without access to this machine's settings.
func (s *system) try(script string) (string, error) {
	outer := `mount --bind "$1" "$1" && mount -t proc proc "$1/proc" && mount --bind "$1/proc/sys" "$1/proc/sys" &&
mount -o remount,bind,ro "$1/proc/sys" && mount -t tmpfs tmpfs "$1/run" && exec chroot "$1" /bin/sh -ec "$2"`
	command := exec.Command("unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child",
		"/bin/sh", "-ec", outer, "sh", s.root, script)
	command.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"}
	out, err := command.CombinedOutput()
	return string(out), err
}

// must is try for a script that must succeed.
func (s *system) must(script string) string {
	s.Helper()
	out, err := s.try(script)
	if err != nil {
		s.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// refused is try for a script that must fail with a reason.
func (s *system) refused(script, why string) {
	s.Helper()
	out, err := s.try(script)
	if err == nil || !strings.Contains(out, why) {
		s.Errorf("%s: %v, without %q:\n%s", script, err, why, out)
	}
}

func (s *system) copyIn(path string) {
	s.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.root, "tmp", filepath.Base(path)), data, 0o644)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// remake makes another version of each built package with the same files, as /tmp/NAME_VERSION.deb.
func (s *system) remake(version string) {
	s.Helper()
	for _, name := range names {
		folder := filepath.Join(s.TempDir(), name)
		s.command("dpkg-deb", "--raw-extract", built(name)[0], folder)
		control := filepath.Join(folder, "DEBIAN", "control")
		text, err := os.ReadFile(control)
		if err != nil {
			s.Fatal(err)
		}
		old := s.version(name)
		text = []byte(strings.ReplaceAll(string(text), old, version))
		if err := os.WriteFile(control, text, 0o644); err != nil {
			s.Fatal(err)
		}
		s.command("dpkg-deb", "--root-owner-group", "-Znone", "--build", folder, filepath.Join(s.root, "tmp", name+"_"+version+".deb"))
	}
}

// version returns the version of a built package.
func (s *system) version(name string) string {
	return strings.TrimSpace(s.command("dpkg-deb", "--field", built(name)[0], "Version"))
}

// files returns all files of the system, except those that dpkg itself keeps and logs.
func (s *system) files() []string {
	s.Helper()
	apart := []string{"/var/lib/dpkg", "/var/log", "/var/cache", "/tmp", "/proc", "/run"}
	var all []string
	err := filepath.WalkDir(s.root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		inside := strings.TrimPrefix(path, s.root)
		if slices.Contains(apart, inside) {
			return filepath.SkipDir
		}
		all = append(all, inside)
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	return all
}
