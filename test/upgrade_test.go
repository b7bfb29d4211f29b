package test

// upgrade_test.go - a newer version takes over a running system of an older version, with its guests and their program.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// versionBefore is the commit from which the older programs are built: the last one that spoke version 2 of the protocol
// between manager and agent.
const versionBefore = "29b8822"

// programs are the programs of a version. In older versions, watari-guest is also named watari-guest-rsh.
var programs = []string{"watari-guest", "watari-guest-rsh", "watari-agent", "watari"}

// The machines are upgraded one after the other, the manager first, as docs/guide/hosts.md describes. Meanwhile a program
// computes. Its guests keep the guest agent of the older version until the end.
func TestUpgradeFromTheVersionBefore(t *testing.T) {
	full(t)
	if wholeHosts {
		t.Skip("needs hosts made of namespaces, whose programs it replaces: make test-full-lab")
	}
	newer, older := shared.bin, programsOf(t, versionBefore)
	useOwnLab(t, older, "upgrade", "0.0.0.0:17072", []string{"a1", "b1"})
	for _, step := range [][]string{
		{"up", "--no-agent", "--state", shared.state, "--listen", listen},
		{"lab", "up", "--name", labName, "--sites", "2", "--hosts", "1", "--wan", "10ms,400mbit"},
		{"image", "build", imageName, "--packages", packages},
	} {
		must(t, step...)
	}
	newCluster(t, "kept", 2, "--spread", "site")
	settled(t, "kept", 2)
	unmarked := mark(t, "kept-0", "kept-1")
	first, second := guestNamed(t, "kept-0"), guestNamed(t, "kept-1")
	for _, host := range hosts {
		if text := termFile(t, host); strings.Contains(text, "{") {
			t.Fatalf("the older agent of %s has the newer form of the term file, so this test shows nothing: %s", host, text)
		}
	}
	startMelt(t, "kept-run", 10000) // for longer than the upgrade takes

	// The manager is new, and the agents of both hosts are old.
	install(t, newer, shared.bin)
	restartManager(t)
	hostsReady(t)
	versions(t, map[string]bool{"manager": true, first.Host: false, second.Host: false})
	settled(t, "kept", 2)

	// The agent of one host is new, and that of the other is old.
	restartAgent(t, first.Host)
	versions(t, map[string]bool{"manager": true, first.Host: true, second.Host: false})
	settled(t, "kept", 2)
	moveAway(t, "kept-0") // from the new agent to the old one
	moveAway(t, "kept-0") // and back
	settled(t, "kept", 2)

	// Everything is new, except the guests.
	restartAgent(t, second.Host)
	versions(t, map[string]bool{"manager": true, first.Host: true, second.Host: true})
	settled(t, "kept", 2)
	moveAway(t, "kept-1")
	settled(t, "kept", 2)
	before := meltSoFar(t, "kept-run")
	must(t, "run", "cancel", "kept-run")
	termFiles(t)
	wellStatus(t)

	// A manager of the newer version takes over its own state, which began with terms of the older one.
	restartManager(t)
	hostsReady(t)
	settled(t, "kept", 2)
	if lost := unmarked(); lost != nil {
		t.Errorf("guests were started anew: %v", lost)
	}
	t.Run("a drained host's guests move away", func(t *testing.T) { drainFirst(t, "kept") })
	startMelt(t, "after-run", lastStep(t, before))
	if after := meltAnswer(t, "after-run"); after != before {
		t.Errorf("the program's answers differ, during the upgrade and after it:\n%s\n---\n%s", before, after)
	}
	out := must(t, "run", "kept", "--", "hostname")
	if !strings.Contains(out, "kept-0") || !strings.Contains(out, "kept-1") {
		t.Errorf("a run over guests of the older version: %s", out)
	}
	wellStatus(t)

	// New guests start from the image and the templates of the older version.
	newCluster(t, "fresh", 2, "--spread", "site")
	settled(t, "fresh", 2)
	if out := must(t, "run", "fresh", "--", "hostname"); !strings.Contains(out, "fresh-0") || !strings.Contains(out, "fresh-1") {
		t.Errorf("a run over new guests of the older version's image: %s", out)
	}
}

// programsOf builds the programs of a commit, once, and returns their folder. Without the commit it skips the test.
func programsOf(t *testing.T, commit string) string {
	t.Helper()
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("git", "-C", repository, "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("needs commit %s in the history of the repository, to build the version before: %v: %s", commit, err, out)
	}
	folder := filepath.Join(repository, "build", "before", commit)
	bin, built := filepath.Join(folder, "build", "bin"), filepath.Join(folder, "built")
	if _, err := os.Stat(built); err == nil {
		return bin // built before
	}
	begun := time.Now()
	if err := os.RemoveAll(folder); err != nil { // from an interrupted build
		t.Fatal(err)
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	compiler := filepath.Join(shared.bin, "go")
	if path, err := filepath.EvalSymlinks(compiler); err == nil {
		compiler = path
	}
	for _, command := range [][]string{
		{"git", "-C", repository, "archive", "--output", filepath.Join(folder, "source.tar"), commit},
		{"tar", "-C", folder, "-x", "-f", filepath.Join(folder, "source.tar")},
		{"make", "-C", folder, "programs", "GO=" + compiler, "VERSION=" + commit},
	} {
		c := exec.Command(command[0], command[1:]...)
		c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("build the version before: %s: %v\n%s", strings.Join(command, " "), err, out)
		}
	}
	if err := os.WriteFile(built, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("built commit %s in %s", commit, time.Since(begun).Round(time.Second))
	return bin
}

// useOwnLab makes the helpers of this package use a separate system until the test ends, with a copy of the programs in a
// folder. The shared lab does not change, and is still watched.
func useOwnLab(t *testing.T, from, lab, address string, names []string) {
	t.Helper()
	s0, lab0, listen0, hosts0, watching0 := shared, labName, listen, hosts, watching
	t.Cleanup(func() { shared, labName, listen, hosts, watching = s0, lab0, listen0, hosts0, watching0 })
	state := "/var/tmp/watari-" + lab
	labName, listen, hosts = lab, address, names
	shared = &system{bin: filepath.Join(state, "bin"), state: state}
	(&system{bin: s0.bin, state: state}).takeDown() // left behind by a run that was killed
	if err := os.MkdirAll(shared.bin, 0o700); err != nil {
		t.Fatal(err)
	}
	install(t, from, shared.bin)
	if err := observe(shared); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logTails(t)
		}
		if os.Getenv("WATARI_TEST_KEEP") == "" {
			shared.takeDown()
		}
		if watching.end() {
			t.Error("a guest of this test ran twice")
		}
	})
}

// logTails logs the ends of the logs that disappear with the lab.
func logTails(t *testing.T) {
	events, _ := shared.watari(time.Minute, "events", "--last", "40")
	t.Logf("the last events:\n%s", events)
	paths := []string{filepath.Join(shared.state, "manager", "manager.log")}
	for _, host := range hosts {
		paths = append(paths, filepath.Join("/var/lib/watari/lab", labName, "hosts", host, "log", "agent.log"))
	}
	for _, path := range paths {
		out, _ := exec.Command("tail", "-n", "60", path).CombinedOutput()
		t.Logf("the end of %s:\n%s", path, out)
	}
}

// install puts programs in place as dpkg does: a running program keeps its file.
func install(t *testing.T, from, to string) {
	t.Helper()
	for _, name := range programs {
		content, err := os.ReadFile(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue // the older version has fewer programs
		}
		fresh := filepath.Join(to, name+".new")
		if err == nil {
			err = os.WriteFile(fresh, content, 0o755)
		}
		if err == nil {
			err = os.Rename(fresh, filepath.Join(to, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// restartManager ends the manager by `watari down`, and starts another, which may be a newly installed one.
func restartManager(t *testing.T) {
	t.Helper()
	must(t, "down", "--state", shared.state)
	startManager(t)
}

// restartAgent ends a host's agent. The lab starts the installed one.
func restartAgent(t *testing.T, host string) {
	t.Helper()
	const pattern = "watari-agent --manager"
	before := processesOn(host, pattern)
	if !signalAll(t, before, syscall.SIGTERM) {
		t.Fatalf("there is no agent on %s", host)
	}
	until(t, settle, "host "+host+" has another agent", func() (bool, string) {
		now := processesOn(host, pattern)
		return len(now) == 1 && !slices.Contains(before, now[0]), fmt.Sprint(before, now)
	})
	until(t, settle, "the agent of "+host+" reports its version", func() (bool, string) {
		out, err := shared.watari(20*time.Second, "host", "show", host)
		return err == nil && !strings.Contains(out, versionBefore), out
	})
	hostsReady(t)
}

// versions checks which of the manager and the hosts run the newer version.
func versions(t *testing.T, newer map[string]bool) {
	t.Helper()
	for who, is := range newer {
		words := []string{"host", "show", who}
		if who == "manager" {
			words = []string{"status"}
		}
		if out := must(t, words...); strings.Contains(out, versionBefore) == is {
			t.Errorf("%s has the newer version: want %v:\n%s", who, is, out)
		}
	}
}

// startMelt starts LAMMPS on the cluster, and waits until it computes.
func startMelt(t *testing.T, name string, steps int) {
	t.Helper()
	must(t, meltOf("kept", name, strconv.Itoa(steps), "--detach")...)
	computing(t, time.Minute, name)
}

// meltSoFar waits until LAMMPS has written two more lines of its table, and returns the complete lines.
func meltSoFar(t *testing.T, name string) (lines string) {
	t.Helper()
	read := func() string {
		out := must(t, "run", "logs", name)
		_, rest, _ := strings.Cut(out, "Step ")
		return rest[:strings.LastIndex(rest, "\n")+1]
	}
	before := strings.Count(read(), "\n")
	until(t, time.Minute, "the program writes two more lines", func() (bool, string) {
		lines = read()
		return strings.Count(lines, "\n") >= before+2, lines
	})
	if state := decoded[run](t, "run", "show", name).State; !strings.HasSuffix(state, "_RUNNING") {
		t.Errorf("the program was %s before all daemons were replaced", state)
	}
	return lines
}

// meltAnswer waits for the end of LAMMPS and returns its table.
func meltAnswer(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(must(t, "run", "logs", "--follow", name)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := decoded[run](t, "run", "show", name); !strings.HasSuffix(r.State, "_EXITED") || r.ExitCode != 0 {
		t.Errorf("run %s: %s, status %d: %s", name, r.State, r.ExitCode, r.Message)
	}
	return table(t, path)
}

// wellStatus waits until `watari status` reports no problem.
func wellStatus(t *testing.T) {
	t.Helper()
	until(t, settle, "all is well", func() (bool, string) {
		out, err := shared.watari(20*time.Second, "status")
		return err == nil && strings.Contains(out, "All is well."), out
	})
	if r := decoded[recovery](t, "recover"); r.Held {
		t.Errorf("the manager holds: %+v", r)
	}
}

// termFile reads the last term whose orders a host's agent has followed.
func termFile(t *testing.T, host string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/var/lib/watari/lab", labName, "hosts", host, "var-lib-watari/agent/term"))
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(text))
}

// termFiles checks that the newer agents have the stamp of a term with an id, and the facts of the older version's guests.
func termFiles(t *testing.T) {
	t.Helper()
	for _, host := range hosts {
		var stamp struct{ Term, ID string }
		until(t, settle, "the agent of "+host+" keeps a stamp", func() (bool, string) {
			text := termFile(t, host)
			return json.Unmarshal([]byte(text), &stamp) == nil && stamp.Term != "" && stamp.ID != "", text
		})
	}
	for _, g := range guestsOf(t, "kept") {
		until(t, settle, "the host of "+g.Meta.Name+" keeps its facts", func() (bool, string) {
			text, err := os.ReadFile(filepath.Join("/var/lib/watari/lab", labName, "hosts", g.Host, "var-lib-watari/agent/guests", g.Meta.UID, "record.json"))
			return err == nil && strings.Contains(strings.ToLower(string(text)), `"facts"`), fmt.Sprint(string(text), err)
		})
	}
}
