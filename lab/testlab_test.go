// Helpers for the tests of real labs.

package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// needLab skips a test if a lab is not possible. If CI is set, it fails the test instead.
func needLab(t *testing.T) {
	t.Helper()
	missing := Missing()
	for _, program := range []string{"virsh", "ping", "nsenter", "setpriv", "pkill"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if len(missing) == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("missing: %v", missing)
	}
	t.Skipf("missing: %v", missing)
}

// testLab is a lab with helpers for tests.
type testLab struct {
	*Lab
	t *testing.T
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func up(t *testing.T, o Options) testLab {
	t.Helper()
	return upWithin(t, deadline(t), o)
}

func upWithin(t *testing.T, ctx context.Context, o Options) testLab {
	t.Helper()
	needLab(t)
	t.Cleanup(func() {
		if err := Down(context.Background(), o.Name, nil); err != nil {
			t.Error(err)
		}
	})
	if err := Down(deadline(t), o.Name, nil); err != nil { // a test that was killed may have left a lab
		t.Fatal(err)
	}
	l, err := Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return testLab{l, t}
}

// on runs a command in a host and returns its output.
func (l testLab) on(host string, argv ...string) (string, error) {
	out, err := l.Command(host, argv...).CombinedOutput()
	return string(out), err
}

func (l testLab) must(host string, argv ...string) string {
	l.t.Helper()
	out, err := l.on(host, argv...)
	if err != nil {
		l.t.Fatalf("%s: %s: %v\n%s", host, strings.Join(argv, " "), err, out)
	}
	return out
}

// ping returns the smallest round trip in milliseconds, and the number of answers to count packets.
func (l testLab) ping(from, to string, count int) (least float64, received int) {
	l.t.Helper()
	out, _ := l.on(from, "ping", "-q", "-n", "-i", "0.002", "-W", "1", "-c", strconv.Itoa(count), to)
	if m := regexp.MustCompile(`(\d+) received`).FindStringSubmatch(out); m != nil {
		received, _ = strconv.Atoi(m[1])
	} else {
		l.t.Fatalf("ping %s from %s: %s", to, from, out)
	}
	if m := regexp.MustCompile(`rtt [a-z/]+ = ([0-9.]+)/`).FindStringSubmatch(out); m != nil {
		least, _ = strconv.ParseFloat(m[1], 64)
	}
	return least, received
}

func (l testLab) reaches(from, to string) bool {
	l.t.Helper()
	_, received := l.ping(from, to, 3)
	return received == 3
}

func (l testLab) until(what string, done func() bool) {
	l.t.Helper()
	if err := waitFor(deadline(l.t), 30*time.Second, what, done); err != nil {
		l.t.Fatal(err)
	}
}

// hold keeps a namespace alive until the test ends, and returns its inode; 0 if there is none. Without that, the kernel
// could give the inode's number to a new namespace, for instance of another package's tests.
func (l testLab) hold(path string) uint64 {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	l.t.Cleanup(func() { file.Close() })
	return inode(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
}

// marks returns the inodes of the lab's network namespaces. They identify processes of the lab after the lab is gone.
func (l testLab) marks() map[uint64]bool {
	marks := map[uint64]bool{}
	for _, name := range l.state.plan().namespaces() {
		marks[l.hold(l.namespacePath(name))] = true
	}
	for _, h := range l.Hosts() {
		marks[l.hold(fmt.Sprintf("/proc/%d/ns/net", l.hostProcess(h.Name)))] = true
	}
	delete(marks, 0)
	return marks
}

// nothingLeft checks that no mount, link, process, namespace or file of a lab exists.
func nothingLeft(t *testing.T, name string, marks map[uint64]bool) {
	t.Helper()
	for _, pid := range allProcesses() {
		mounts, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		for line := range bytes.Lines(mounts) {
			if bytes.Contains(line, []byte("/lab/"+name+"/")) {
				t.Errorf("process %d has the mount %s", pid, line)
			}
		}
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(command, []byte("\x00lab\x00")) && bytes.Contains(command, []byte("\x00"+name+"\x00")) && alive(pid) {
			t.Errorf("process %d is left: %q", pid, command)
		}
	}
	if left := inNamespaces(marks); len(left) > 0 {
		t.Errorf("processes %v are in the lab's network namespaces", left)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if link.Attrs().Name == rootLinkName(name) {
			t.Errorf("link %s is left", link.Attrs().Name)
		}
	}
	for _, pattern := range []string{stateRoot + "/" + name, runRoot + "/" + name, "/dev/shm/*" + name + "*", "/dev/shm/watari-lab-test-mark"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

// marksOfAny returns the marks of a lab that may be half made.
func (l testLab) marksOfAny() map[uint64]bool {
	marks := map[uint64]bool{}
	held, _ := filepath.Glob(l.namespacePath("*"))
	for _, path := range held {
		if heldNamespace(path) {
			marks[l.hold(path)] = true
		}
	}
	for _, pid := range findHelpers(helperArgs(verbHostInit, l.Name(), "")) {
		marks[l.hold(fmt.Sprintf("/proc/%d/ns/net", pid))] = true
	}
	delete(marks, 0)
	delete(marks, inode(ownNamespace))
	return marks
}
