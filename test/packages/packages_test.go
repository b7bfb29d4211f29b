package packages

// packages_test.go - installing, upgrading, downgrading and purging the packages in small Debian systems.

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// suites are the Debian suites that the packages support.
var suites = []string{"bookworm", "trixie"}

// install returns a script that installs packages of a version without their dependencies.
func install(version string) string {
	var files []string
	for _, name := range names {
		files = append(files, "/tmp/"+name+"_"+version+"*.deb")
	}
	return "dpkg --force-depends --install " + strings.Join(files, " ")
}

const purge = "dpkg --force-depends --purge watari-agent watari libpm-dev libpm1 libpm-fi"

func TestPackagesComeAndGo(t *testing.T) {
	requirements(t)
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			s := newSystem(t, suite)
			before := s.files()
			s.must(install(s.version("watari")))
			s.programsWork()
			s.nothingIsEnabled()
			s.state()
			s.upgrades()
			s.staysUnderGuests()
			s.must(purge)
			for _, path := range s.files() {
				if !slices.Contains(before, path) {
					t.Errorf("left by the purge: %s", path)
				}
			}
		})
	}
}

func (s *system) programsWork() {
	s.Helper()
	s.must("watari version; watari-agent version; test -x /usr/libexec/watari/watari-guest; test -x /usr/libexec/watari/watari-guest-rsh; test -e /usr/libexec/watari/libpm-fi.so; pm-info --version; " +
		"test -e /usr/lib/x86_64-linux-gnu/libpm.so.1")
	for _, unit := range []string{"watari-manager", "watari-agent"} {
		if out, err := s.try("systemd-analyze verify --man=no /lib/systemd/system/" + unit + ".service"); err != nil || strings.Contains(out, unit) {
			s.Errorf("unit %s: %v\n%s", unit, err, out)
		}
	}
}

// nothingIsEnabled checks that the units are disabled: only `watari up` enables them.
func (s *system) nothingIsEnabled() {
	s.Helper()
	links, _ := filepath.Glob(filepath.Join(s.root, "etc/systemd/system/*/watari*"))
	if len(links) > 0 {
		s.Errorf("enabled by the installation: %v", links)
	}
}

// state makes the files that manager, agent and `watari up` would make.
func (s *system) state() {
	s.Helper()
	s.must(`mkdir -p /var/lib/watari/manager/etcd /var/lib/watari/agent/guests/1 /var/lib/watari/up /var/cache/watari/images
touch /var/lib/watari/admin.json /var/lib/watari/manager/etcd/db /var/lib/watari/agent/guests/1/record.json /var/lib/watari/up/agent.env \
  /var/lib/watari/up/manager.env /var/lib/watari/up/options.json
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s /lib/systemd/system/watari-agent.service /lib/systemd/system/watari-manager.service /etc/systemd/system/multi-user.target.wants`)
}

func (s *system) upgrades() {
	s.Helper()
	const newer, older = "99.2", "99.1"
	s.remake(newer)
	s.remake(older)
	s.must(install(newer) + "; test -e /var/lib/watari/agent/guests/1/record.json; test -e /var/lib/watari/manager/etcd/db")
	for _, name := range []string{"watari", "watari-agent"} {
		s.refused("dpkg --force-depends --install /tmp/"+name+"_"+older+".deb", "99.1 is older: it may not understand")
		if got := s.must("dpkg-query -W -f '${Status} ${Version}' " + name); got != "install ok installed "+newer {
			s.Errorf("after a downgrade that was refused, %s is %s", name, got)
		}
	}
	// If a package is removed but not purged, the state remains.
	s.must("dpkg --force-depends --remove watari-agent")
	s.refused("dpkg --force-depends --install /tmp/watari-agent_"+older+".deb", "99.1 is older: it may not understand")
	s.must("dpkg --force-depends --install /tmp/watari-agent_" + newer + ".deb")
}

// staysUnderGuests simulates a guest by a process with a guest's command line.
func (s *system) staysUnderGuests() {
	s.Helper()
	s.refused(`sh -c 'sleep 60; :' qemu -name guest=watari-md-0,debug-threads=on -uuid 11111111-2222-4333-8444-555555555555 &
until watari-agent cleanup | grep -q md-0; do kill -0 $!; done
dpkg --force-depends --remove watari-agent`, "watari host drain")
	if got := s.must("dpkg-query -W -f '${db:Status-Status}' watari-agent"); got != "installed" {
		s.Errorf("under guests, watari-agent is %s", got)
	}
	s.must("mkdir -p /var/lib/watari/lab/demo")
	s.refused("dpkg --force-depends --remove watari", "watari lab down")
	if err := os.RemoveAll(filepath.Join(s.root, "var/lib/watari/lab")); err != nil {
		s.Fatal(err)
	}
}

// TestDependenciesAreMet lets apt plan a complete installation without performing it.
func TestDependenciesAreMet(t *testing.T) {
	requirements(t)
	folder, err := filepath.Abs(deb)
	if err != nil {
		t.Fatal(err)
	}
	s := &system{t, t.TempDir()}
	index := filepath.Join(folder, "Packages")
	s.command("sh", "-ec", `cd "$0" && dpkg-scanpackages --multiversion . > Packages`, folder)
	t.Cleanup(func() { os.Remove(index) })
	for _, suite := range suites {
		s.command("mmdebstrap", append([]string{"--quiet", "--mode=root", "--simulate", "--variant=apt", "--include=watari,watari-agent,libpm-dev",
			suite, filepath.Join(s.root, suite), "deb [trusted=yes] copy:" + folder + " ./"}, mirrors(t, suite)...)...)
	}
}
