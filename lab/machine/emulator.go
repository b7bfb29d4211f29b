// The QEMU that plays the machines.

package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"watari/internal/osrelease"
)

// minQEMU is the oldest major version that is used. With 7.2, nested KVM guests died of a double fault at the first
// instruction of a system call after they had been migrated to another machine.
const minQEMU = 10

// emulator is a QEMU: the installed one, or one unpacked from Debian's backports.
type emulator struct {
	Program string   `json:"program"`
	Data    []string `json:"data,omitempty"` // directories of its firmware; empty: the built-in ones
	version string
}

// command returns the command that starts a machine.
func (e emulator) command(ctx context.Context, l launch) *exec.Cmd {
	var args []string
	for _, folder := range e.Data {
		args = append(args, "-L", folder)
	}
	args = append(args, l.arguments()...)
	// A fault of the emulation can make a machine reset itself. Only this log shows the state of its CPUs then.
	args = append(args, "-d", "cpu_reset", "-D", filepath.Join(l.dir, emulatorFile))
	return exec.CommandContext(ctx, e.Program, args...)
}

// findEmulator returns the installed QEMU if it is new enough. Otherwise it returns the QEMU of the release's
// backports, which it unpacks once into Cache.
func findEmulator(ctx context.Context, say func(format string, args ...any)) (emulator, error) {
	e := emulator{Program: "qemu-system-x86_64"}
	major, err := e.readVersion(ctx)
	if err != nil || major >= minQEMU {
		return e, err
	}
	release, err := osrelease.Codename()
	if err != nil {
		return e, fmt.Errorf("whole hosts need QEMU %d or later, and this machine's is of version %d: %w", minQEMU, major, err)
	}
	lines, err := Sources(ctx, release)
	if err != nil {
		return e, err
	}
	dir := filepath.Join(Cache, "qemu-"+release+"-backports")
	unlock, err := lockCache(ctx, filepath.Base(dir), say)
	if err != nil {
		return e, err
	}
	defer unlock()
	err = build(dir, func(dir string) error {
		say("fetching QEMU %d or later for whole hosts from the backports of Debian %s (once)", minQEMU, release)
		return unpackBackport(ctx, release, lines, dir)
	})
	if err != nil {
		return e, fmt.Errorf("whole hosts need QEMU %d or later, and this machine's is of version %d: %w", minQEMU, major, err)
	}
	e = emulator{Program: filepath.Join(dir, "usr/bin/qemu-system-x86_64"),
		Data: []string{filepath.Join(dir, "usr/share/qemu"), filepath.Join(dir, "usr/share/seabios")}}
	major, err = e.readVersion(ctx)
	if err == nil && major < minQEMU {
		err = fmt.Errorf("whole hosts need QEMU %d or later, and Debian's backports for %s have version %d: put a newer qemu-system-x86_64 into the PATH", minQEMU, release, major)
	}
	return e, err
}

var qemuMajor = regexp.MustCompile(`version (\d+)\.`)

// readVersion runs QEMU to get its version.
func (e *emulator) readVersion(ctx context.Context) (major int, err error) {
	out, err := exec.CommandContext(ctx, e.Program, "--version").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("ask QEMU for its version: %w: %s", err, lastLines(string(out), 2))
	}
	e.version = string(out)
	found := qemuMajor.FindStringSubmatch(e.version)
	if found == nil {
		return 0, fmt.Errorf("ask %s for its version: it says %q", e.Program, e.version)
	}
	return strconv.Atoi(found[1])
}

// unpackBackport makes apt fetch and verify the packages, with its own package lists, and unpacks them into dir.
func unpackBackport(ctx context.Context, release string, lines []string, dir string) error {
	work := filepath.Join(dir, "apt")
	for _, folder := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(work, folder), 0o755); err != nil {
			return err
		}
	}
	list := filepath.Join(work, "sources.list")
	if err := os.WriteFile(list, []byte(strings.Join(backports(release, lines), "\n")+"\n"), 0o644); err != nil {
		return err
	}
	apt := []string{"-q", "-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=/dev/null", "-o", "APT::Sandbox::User=root",
		"-o", "Dir::State::Lists=" + filepath.Join(work, "lists"), "-o", "Dir::Cache=" + filepath.Join(work, "cache")}
	if err := run(ctx, work, "apt-get", append(apt, "update")...); err != nil {
		return err
	}
	for _, name := range []string{"qemu-system-x86", "qemu-system-data", "seabios"} {
		if err := run(ctx, work, "apt-get", append(apt, "download", name+"/"+release+"-backports")...); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := run(ctx, work, "dpkg-deb", "--extract", file, dir); err != nil {
			return err
		}
	}
	return os.RemoveAll(work)
}

// backports returns apt's source lines for a release's backports, from the mirrors of the release itself.
func backports(release string, lines []string) (more []string) {
	for _, line := range lines {
		if before, found := strings.CutSuffix(line, " "+release+" main"); found {
			more = append(more, before+" "+release+"-backports main")
		}
	}
	return more
}
