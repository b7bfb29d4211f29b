package test

// system_test.go - a manager and a lab for the tests, and helpers for both.

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const imageName = "mpi"

// The system that the tests bring up. useWholeHosts changes it.
var (
	labName  = "e2e"
	listen   = "0.0.0.0:17070"
	labShape = []string{"--sites", "2", "--hosts", "2", "--wan", "10ms,400mbit"}
	packages = "openmpi-bin,lammps,netpipe-openmpi,hpcc" // packages of the image
	hosts    = []string{"a1", "a2", "b1", "b2"}
	settle   = 30 * time.Second // how long the manager's view may differ from reality after a fault
	patience = 10 * time.Minute // time limit of a command that must succeed
)

// system is the manager and the lab that all tests of a process share.
type system struct {
	bin, state string
}

var shared *system

func TestMain(m *testing.M) {
	if wholeHosts {
		useWholeHosts()
	}
	if chaosMinutes != "" {
		useThreeSites()
	}
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	if half := os.Getenv("WATARI_TEST_HALF"); half != "" {
		useHalf(half)
	}
	code := 1
	s, err := bringUp()
	switch {
	case errors.Is(err, errSkip):
		fmt.Println("SKIP: tests of the whole:", err)
		code = 0
		if os.Getenv("CI") != "" {
			code = 1 // the test environment must have everything that the tests need
		}
	case err != nil:
		fmt.Fprintln(os.Stderr, "FAIL: bring up a manager and a lab:", err)
	default:
		shared = s
		code = m.Run()
	}
	if s != nil && os.Getenv("WATARI_TEST_KEEP") == "" {
		s.takeDown()
	}
	if watching.end() {
		code = 1
	}
	os.Exit(code)
}

// useHalf gives one of two test processes a lab of its own. Make splits the tests between them.
func useHalf(half string) {
	labName += "-" + half
	if half == "2" {
		listen = "0.0.0.0:17078"
	}
}

// runs reports whether this process was asked to run a test.
func runs(name string) bool {
	pattern, _, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	matched, err := regexp.MatchString(pattern, name)
	return err != nil || matched
}

var errSkip = errors.New("missing")

func bringUp() (*system, error) {
	if os.Getuid() != 0 {
		return nil, fmt.Errorf("%w: root", errSkip)
	}
	bin, err := filepath.Abs("../build/bin")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(bin, "watari")); err != nil {
		return nil, fmt.Errorf("%w: build/bin/watari (make build)", errSkip)
	}
	s := &system{bin: bin, state: "/var/tmp/watari-" + labName}
	s.takeDown() // left behind by a run that was killed
	if err := os.MkdirAll(s.state, 0o700); err != nil {
		return nil, err
	}
	if err := observe(s); err != nil {
		return nil, err
	}
	up := []string{"up", "--no-agent", "--state", s.state, "--listen", listen}
	if runs("TestPrometheusAndTheDashboard") { // only one manager of this machine can serve metrics
		up = append(up, "--metrics")
	}
	for _, step := range [][]string{
		up,
		{"policy", "apply", "testdata/still.yaml"},
		append([]string{"lab", "up", "--name", labName}, labShape...),
		{"image", "build", imageName, "--packages", packages},
	} {
		fmt.Println("== watari", strings.Join(step, " "))
		out, err := s.watari(patience, step...)
		if err != nil {
			return s, fmt.Errorf("watari %s: %w\n%s", strings.Join(step, " "), err, out)
		}
	}
	return s, nil
}

func (s *system) takeDown() {
	for _, step := range [][]string{{"lab", "down", "--name", labName}, {"down", "--state", s.state}} {
		if out, err := s.watari(2*time.Minute, step...); err != nil && shared == s {
			fmt.Printf("watari %s: %v\n%s\n", strings.Join(step, " "), err, out)
		}
	}
	os.RemoveAll(s.state)
}

func (s *system) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(s.bin, "watari"), args...)
	c.Env = append(os.Environ(), "WATARI_CONFIG="+filepath.Join(s.state, "admin.json"))
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 10 * time.Second
	return c
}

// watari runs a command. out has both streams.
func (s *system) watari(limit time.Duration, args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var b bytes.Buffer
	c := s.command(ctx, args...)
	c.Stdout, c.Stderr = &b, &b
	err = c.Run()
	return b.String(), err
}

// must runs a command that must succeed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := shared.watari(patience, args...)
	if err != nil {
		t.Fatalf("watari %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused runs a command that must fail with a message that contains all the words.
func refused(t *testing.T, words []string, args ...string) {
	t.Helper()
	out, err := shared.watari(time.Minute, args...)
	if err == nil {
		t.Errorf("watari %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	for _, word := range words {
		if !strings.Contains(out, word) {
			t.Errorf("watari %s: the answer does not name %q:\n%s", strings.Join(args, " "), word, out)
		}
	}
}

// decoded runs a command with -o json and decodes its standard output.
func decoded[T any](t *testing.T, args ...string) T {
	t.Helper()
	v, err := decode[T](args...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// decode is decoded with an error.
func decode[T any](args ...string) (v T, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args = append([]string{"-o", "json"}, args...)
	c := shared.command(ctx, args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return v, fmt.Errorf("watari %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return v, fmt.Errorf("watari %s: %w in\n%s", strings.Join(args, " "), err, out)
	}
	return v, nil
}

type meta struct {
	Name, UID string
}

type guest struct {
	Meta    meta
	Host    string
	Address string
	Epoch   string
	State   string
	Message string
	Ready   bool
}

type migration struct {
	Meta       meta
	Guest      string
	Source     string
	Target     string
	State      string
	Message    string
	TotalMs    uint32
	DowntimeMs uint32
	Progress   struct{ ProcessedBytes string } // absent before the first bytes are sent
}

type run struct {
	Meta     meta
	State    string
	ExitCode int32
	Message  string
	Ended    time.Time
	Restores int
}

func guestsOf(t *testing.T, cluster string) []guest {
	return decoded[[]guest](t, "guest", "list", cluster)
}

func guestNamed(t *testing.T, name string) guest {
	t.Helper()
	for _, g := range decoded[[]guest](t, "guest", "list") {
		if g.Meta.Name == name {
			return g
		}
	}
	t.Fatalf("there is no guest %s", name)
	return guest{}
}

// onHost runs a command in a lab host.
func onHost(t *testing.T, host string, command ...string) (string, error) {
	t.Helper()
	return shared.watari(time.Minute, append([]string{"lab", "exec", "--name", labName, host, "--"}, command...)...)
}

// kill9 kills the processes of a host whose command lines match, and returns whether there were any.
func kill9(t *testing.T, host, pattern string) bool {
	t.Helper()
	if !wholeHosts { // directly: starting a command in the host takes a tenth of a second
		killed := signalAll(t, processesOn(host, pattern), syscall.SIGKILL)
		if !killed {
			t.Logf("no process on %s matches %s", host, pattern)
		}
		return killed
	}
	out, err := onHost(t, host, "pkill", "-9", "-f", "--", pattern)
	if err != nil {
		t.Logf("pkill -9 -f %s on %s: %v %s", pattern, host, err, out)
	}
	return err == nil
}

// mustKill is kill9 for processes that must exist.
func mustKill(t *testing.T, host, pattern string) {
	t.Helper()
	if !kill9(t, host, pattern) {
		t.Errorf("no process was killed on %s: none matches %s", host, pattern)
	}
}

// until waits for a condition, which it checks every 200 ms. If the machine stands still between two checks, that does not count.
func until(t *testing.T, limit time.Duration, what string, condition func() (bool, string)) {
	t.Helper()
	const pause = 200 * time.Millisecond
	deadline := time.Now().Add(limit)
	for {
		ok, why := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %s", limit, what, why)
		}
		begun := time.Now()
		time.Sleep(pause)
		if slept := time.Since(begun); slept > time.Second { // the machine stood still
			deadline = deadline.Add(slept - pause)
		}
	}
}

// copies counts the QEMU processes of a guest on all hosts.
func copies(uid string) int {
	if wholeHosts {
		return copiesOnWholeHosts(uid)
	}
	n := 0
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range processes {
		words, err := os.ReadFile(path)
		if err == nil && bytes.Contains(words, []byte("qemu-system")) && bytes.Contains(words, []byte("\x00-uuid\x00"+uid+"\x00")) {
			n++
		}
	}
	return n
}

// settled waits until the manager's view agrees with reality: each guest of the cluster is ready and has one copy on the
// machine.
func settled(t *testing.T, cluster string, guests int) {
	t.Helper()
	settledWithin(t, settle, cluster, guests)
}

// settledWithin is settled with another time limit.
func settledWithin(t *testing.T, limit time.Duration, cluster string, guests int) {
	t.Helper()
	defer watching.check(t)
	var list []guest
	until(t, limit, "manager and reality agree on cluster "+cluster, func() (bool, string) {
		out, err := shared.watari(20*time.Second, "-o", "json", "guest", "list", cluster)
		list = nil
		if err != nil || json.Unmarshal([]byte(out), &list) != nil {
			return false, out
		}
		if len(list) != guests {
			return false, fmt.Sprintf("%d guests, want %d", len(list), guests)
		}
		for _, g := range list {
			if n := copies(g.Meta.UID); n != 1 || !g.Ready || !strings.HasSuffix(g.State, "_RUNNING") {
				return false, fmt.Sprintf("%s on %s: %s, ready %v, %d copies: %s", g.Meta.Name, g.Host, g.State, g.Ready, n, g.Message)
			}
		}
		return true, ""
	})
	for _, g := range list {
		watching.saw(t, g.Meta.UID)
	}
}

// hostsReady waits until every host of the lab is back.
func hostsReady(t *testing.T) {
	t.Helper()
	until(t, settle, "all hosts are ready", func() (bool, string) {
		out, err := shared.watari(20*time.Second, "host", "list")
		return err == nil && strings.Count(out, " ready ") == len(hosts), out
	})
}

// newCluster makes a cluster and removes it at the end.
func newCluster(t *testing.T, name string, guests int, more ...string) {
	t.Helper()
	args := append([]string{"cluster", "create", name, "--guests", strconv.Itoa(guests), "--memory", "256M", "--image", imageName, "--wait"}, more...)
	must(t, args...)
	t.Cleanup(func() {
		defer watching.check(t)
		if t.Failed() {
			logTails(t)
		}
		if out, err := shared.watari(2*time.Minute, "cluster", "delete", name, "--wait"); err != nil {
			t.Errorf("delete cluster %s: %v\n%s", name, err, out)
		}
	})
}

// noneRestarted checks that no guest has lost its mark.
func noneRestarted(t *testing.T, unmarked func() []string) {
	t.Helper()
	if lost := unmarked(); lost != nil {
		t.Errorf("guests were restarted: %v", lost)
	}
}

// mark writes a file into each guest's memory. unmarked returns the guests that have lost theirs, and with it all their
// processes.
func mark(t *testing.T, guests ...string) (unmarked func() []string) {
	t.Helper()
	text := make([]byte, 8)
	rand.Read(text)
	word := hex.EncodeToString(text)
	for _, g := range guests {
		must(t, "guest", "exec", g, "--", "sh", "-c", "echo "+word+" > /run/mark")
	}
	return func() (lost []string) {
		for _, g := range guests {
			out, err := shared.watari(time.Minute, "guest", "exec", g, "--", "sh", "-c", "cat /run/mark || true")
			switch {
			case err != nil:
				t.Errorf("look for the mark in guest %s: %v: %s", g, err, out)
			case !strings.Contains(out, word):
				lost = append(lost, g)
			}
		}
		return lost
	}
}

// elsewhere returns the guest's host and a host of the other site.
func elsewhere(t *testing.T, name string) (from, to string) {
	t.Helper()
	from = guestNamed(t, name).Host
	if strings.HasPrefix(from, "a") {
		return from, "b1"
	}
	return from, "a1"
}

// long reports whether test-full is run.
func long() bool { return os.Getenv("WATARI_TEST_FULL") != "" }

// full skips a test that only make test-full runs.
func full(t *testing.T) {
	t.Helper()
	if !long() {
		t.Skip("one of the long ones: make test-full")
	}
}
