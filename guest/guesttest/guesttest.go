// Package guesttest boots real guests under QEMU, for tests of the guest's parts. At most two guests share a network.
// Each is the other's gateway, as a host would be.
package guesttest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "watari/api/watariv1"
	"watari/guest/bare"
	"watari/guest/image"
)

// Guest is a running guest.
type Guest struct {
	*bare.Guest
	t testing.TB
}

// Cache keeps packages and kernels between tests.
const Cache = bare.Cache

var built sync.Once // protects the image that Image makes

// Image returns the directory of a bootable image, with kernel, initrd and root (squashfs): the one that
// WATARI_TEST_IMAGE names, or one with Open MPI that is made here, which only the long tests do.
func Image(t testing.TB) string {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("qemu-system-x86_64 is not installed (Debian package qemu-system-x86)")
	}
	directory := os.Getenv("WATARI_TEST_IMAGE")
	if directory == "" {
		if os.Getenv("WATARI_TEST_FULL") == "" {
			t.Skip("one of the long ones: make test-full; or name an image's directory by WATARI_TEST_IMAGE")
		}
		directory = filepath.Join(Cache, "openmpi")
		built.Do(func() {
			recipe := image.Recipe{Packages: []string{"openmpi-bin"}, GuestAgent: Agent(t), Cache: Cache}
			if _, err := image.Build(t.Context(), recipe, directory, nil); err != nil {
				t.Fatalf("build an image: %v", err)
			}
		})
	}
	for _, name := range []string{"kernel", "initrd", "root"} {
		if _, err := os.Stat(filepath.Join(directory, name)); err != nil {
			t.Fatalf("the image to test with: %v", err)
		}
	}
	return directory
}

// Agent builds watari-guest, with watari-guest-rsh beside it, and returns its path.
func Agent(t testing.TB) string {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "watari-guest")
	build := exec.Command("go", "build", "-o", agent, "watari/cmd/watari-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build watari-guest: %v: %s", err, text)
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatalf("find the sources: %v", err)
	}
	script := filepath.Join(strings.TrimSpace(string(root)), "scripts", "guest-rsh.sh")
	if text, err := exec.Command(script, agent+"-rsh").CombinedOutput(); err != nil {
		t.Fatalf("build watari-guest-rsh: %v: %s", err, text)
	}
	return agent
}

// Identities returns the identities of a cluster of n guests, of which the first serves the home directory.
func Identities(t testing.TB, n int) []*v1.Identity {
	list, err := bare.Identities(n)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Boot boots a guest. network is a path, the same for both guests of a network; index is the guest's end of it.
func Boot(t testing.TB, image string, identity *v1.Identity, index int, network string) *Guest {
	return start(t, image, identity, index, network)
}

// Restore starts a guest from a state that Move has written or will send.
func Restore(t testing.TB, image string, identity *v1.Identity, index int, network, from string) *Guest {
	return start(t, image, identity, index, network, "-incoming", from)
}

func start(t testing.TB, image string, identity *v1.Identity, index int, network string, more ...string) *Guest {
	return Start(t, identity, bare.Options{Image: image, Network: network, Index: index, More: more})
}

// Start boots a guest as options say; it gets a directory of its own.
func Start(t testing.TB, identity *v1.Identity, o bare.Options) *Guest {
	o.Directory = t.TempDir()
	started, err := bare.Start(identity, o)
	if err != nil {
		t.Fatal(err)
	}
	g := &Guest{Guest: started, t: t}
	t.Cleanup(g.stop)
	return g
}

// Move sends the running guest's state to one of QEMU's URIs (migrate) and waits until all of it is sent.
func (g *Guest) Move(uri string) {
	g.t.Helper()
	if err := g.Guest.Move(uri); err != nil {
		g.t.Fatal(err)
	}
}

func (g *Guest) stop() {
	g.End()
	if console, err := os.ReadFile(g.Console); err == nil && g.t.Failed() {
		g.t.Logf("console of %s:\n%s", g.Identity.GetName(), console)
	}
}

// Ready waits until the guest answers, and gives it its identity.
func (g *Guest) Ready(limit time.Duration) *v1.DescribeResponse {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	description, err := g.Identify(ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	return description
}

// Until repeats do until it succeeds. The test fails if ctx or the guest ends before.
func (g *Guest) Until(ctx context.Context, what string, do func() error) {
	g.t.Helper()
	if err := g.Guest.Until(ctx, what, do); err != nil {
		g.t.Fatal(err)
	}
}

// Result is the result of a command.
type Result struct {
	Stdout, Stderr string
	Code           int32
	Message        string
}

// Run runs a command line with sh as a user and waits until it ends.
func (g *Guest) Run(ctx context.Context, user, script string) (Result, error) {
	var stdout, stderr bytes.Buffer
	ended, err := g.Client.Run(ctx, user, script, &stdout, &stderr)
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: ended.GetExitCode(), Message: ended.GetMessage()}, err
}

// MustRun is Run for commands that must succeed. It returns their output.
func (g *Guest) MustRun(ctx context.Context, user, script string) string {
	g.t.Helper()
	r, err := g.Run(ctx, user, script)
	if err == nil && r.Code != 0 {
		err = errors.New(r.Message)
	}
	if err != nil {
		g.t.Fatalf("%s: %s: exit %d, %v\nstdout: %s\nstderr: %s", g.Identity.GetName(), script, r.Code, err, r.Stdout, r.Stderr)
	}
	return r.Stdout
}
