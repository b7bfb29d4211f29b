package image

// suite.go - the sources of packages: this machine's apt sources, or the packages of another Debian release on the same
// mirror.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"watari/internal/osrelease"
)

// Suites are the Debian releases from which images can be built on any machine: Debian 12 and 13.
var Suites = []string{"bookworm", "trixie"}

// debianKeys has the signing keys of all of Suites. Debian 12's debian-archive-keyring has the keys of Debian 13 since
// 2023.3+deb12u1.
const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// sources are the apt sources of a build.
type sources struct {
	suite string   // "bookworm"
	own   bool     // this machine's sources, with its preferences
	files []string // in apt's format
	key   string   // differs for sources of different packages
}

// findSources returns this machine's sources if suite is empty or this machine's release. For another suite it writes a
// file in dir that names the mirror of this machine's Debian sources.
func findSources(ctx context.Context, suite, dir string) (*sources, error) {
	release, err := machineSuite()
	if suite == "" || err == nil && suite == release {
		return &sources{suite: release, own: true, files: sourceFiles(), key: sourcesKey()}, nil
	}
	if err != nil {
		return nil, err
	}
	known, err := output(ctx, command{name: "apt-get", args: []string{
		"indextargets", "--format", "$(LABEL)\t$(CODENAME)\t$(REPO_URI)\t$(COMPONENT)", "Created-By: Packages"}})
	if err != nil {
		return nil, fmt.Errorf("ask apt for its sources: %w", err)
	}
	text := suiteSources(known, release, suite)
	if text == "" {
		return nil, fmt.Errorf("this machine's apt knows no mirror of Debian %s, which could have %s, too: check /etc/apt, and run apt-get update",
			release, suite)
	}
	file := filepath.Join(dir, suite+".list")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, diskError(err, dir)
	}
	sum := sha256.Sum256([]byte(text))
	return &sources{suite: suite, files: []string{file}, key: hex.EncodeToString(sum[:])}, nil
}

// suiteSources returns the sources of a suite on the mirrors that a machine of the given release uses. known has a line
// "label, codename, URI, component", separated by tabs, for each source of the machine.
func suiteSources(known, release, suite string) string {
	var lines []string
	for line := range strings.Lines(known) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 4 || !strings.HasPrefix(fields[0], "Debian") {
			continue
		}
		pocket, of := strings.CutPrefix(fields[1], release) // "", "-updates", "-security"
		if !of || !slices.Contains([]string{"", "-updates", "-security"}, pocket) {
			continue
		}
		lines = append(lines, fmt.Sprintf("deb [signed-by=%s] %s %s %s\n", debianKeys, fields[2], suite+pocket, fields[3]))
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "")
}

// options make apt use these sources instead of this machine's.
func (s *sources) options() []string {
	if s.own {
		return nil
	}
	return []string{
		"-o", "Dir::Etc::sourcelist=" + s.files[0], "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::Etc::preferences=/dev/null", "-o", "Dir::Etc::preferencesparts=/dev/null",
		"-o", "APT::Default-Release=" + s.suite,
	}
}

// aptFolder returns the directory of apt's lists and packages in the cache.
func (s *sources) aptFolder() string {
	if s.own {
		return "apt"
	}
	return "apt-" + s.suite
}

// suiteName matches the code name of a Debian release.
var suiteName = regexp.MustCompile(`^[a-z]+$`)

func checkSuite(suite string) error {
	if suite == "" || slices.Contains(Suites, suite) {
		return nil
	}
	if own, err := machineSuite(); err == nil && suite == own && suiteName.MatchString(suite) {
		return nil
	}
	return fmt.Errorf("suite %q is not supported for images: use %s", suite, strings.Join(Suites, ", "))
}

// sourceFiles returns the apt source files of this machine that are in use.
func sourceFiles() []string {
	files := []string{"/etc/apt/sources.list"}
	for _, pattern := range []string{"/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"} {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	return slices.DeleteFunc(files, func(path string) bool { return hasNoContent(path) })
}

func hasNoContent(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// sourcesKey hashes the machine's apt sources, because other sources have other packages.
func sourcesKey() string {
	hash := sha256.New()
	for _, path := range sourceFiles() {
		text, _ := os.ReadFile(path)
		hash.Write(text)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// machineSuite returns this machine's Debian release ("bookworm").
func machineSuite() (string, error) {
	name, err := osrelease.Codename()
	if err != nil {
		return "", fmt.Errorf("building from packages needs Debian or a derivative; use --tree or --oci: %w", err)
	}
	return name, nil
}
