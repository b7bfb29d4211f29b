package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/daemon"
)

func TestHostNameIsALabel(t *testing.T) {
	for machine, want := range map[string]string{"node7.example.org": "node7", "Node_7": "node-7", "7up": "host-7up", "": "host",
		strings.Repeat("x", 60): strings.Repeat("x", 40), "a-.b": "a"} {
		got := hostName(machine)
		if got != want || cli.CheckName("host", got) != nil {
			t.Errorf("%q: %q, not %q", machine, got, want)
		}
	}
}

func TestOptionsAreKeptForTheNextTime(t *testing.T) {
	state := t.TempDir()
	given := func(names ...string) func(string) bool {
		return func(name string) bool { return slices.Contains(names, name) }
	}
	first := &up{layout: layout{state}}
	asked := options{Site: "kyoto", Name: "k1", Outside: store{Endpoints: []string{"http://127.0.0.1:2379"}, Blobs: "/srv"}}
	if err := first.settle(asked, given("site", "name", "etcd-endpoints", "blobs")); err != nil {
		t.Fatal(err)
	}
	if err := first.save(first.options); err != nil {
		t.Fatal(err)
	}
	second := &up{layout: layout{state}}
	if err := second.settle(options{Site: "nara"}, given("site")); err != nil {
		t.Fatal(err)
	}
	want := first.options
	want.Site = "nara"
	if fmt.Sprint(second.options) != fmt.Sprint(want) || second.Listen != defaultListen {
		t.Errorf("%+v", second.options)
	}
	if got := strings.Join(second.Outside.arguments(), " "); got != "--blobs /srv --etcd-endpoints http://127.0.0.1:2379" {
		t.Errorf("the manager's arguments: %s", got)
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, one := range []struct {
		options
		token, said string
	}{
		{options{Name: "K_1"}, "", "host name"},
		{options{Name: "k1", Site: "a b"}, "", "site name"},
		{options{Name: "k1", LANAddress: "::1"}, "", "IPv4"},
		{options{Name: "k1", Listen: "7070"}, "", "address:port"},
		{options{Name: "k1", Memory: "8"}, "", "--memory"},
		{options{Name: "k1", Memory: "1K"}, "", "less than 1M"},
		{options{Name: "k1", OwnerGuest: "win 11"}, "", "--owner-guest"},
		{options{Name: "k1", OwnerGuest: "watari-md-0"}, "", "guest of Watari"},
		{options{Name: "k1", Manager: "https://m:1", NoAgent: true}, "", "nothing to start"},
		{options{Name: "k1"}, "watari1.x.y", "needs --manager"},
		{options{Name: "k1", Prefix: "10.78.0.0/30"}, "", "is not an IPv4 prefix"},
		{options{Name: "k1", Manager: "https://m:1"}, "junk", "not a token"},
		{options{Name: "k1", NoAgent: true}, "", "omit one of them"},
		{options{Name: "k1", Manager: "https://m:1"}, "", "--listen is for a manager"},
	} {
		u := &up{layout: layout{t.TempDir()}, token: one.token}
		err := u.settle(one.options, func(string) bool { return true })
		if one.Listen == "" && err == nil || err == nil || !strings.Contains(err.Error(), one.said) {
			t.Errorf("%+v: %v", one.options, err)
		}
	}
}

func TestStoredOptionsDoNotWinSilently(t *testing.T) {
	for name, one := range map[string]struct {
		before, asked options
		given         []string
		said          string // "": it is accepted
	}{
		"an option of the agent":              {options{NoAgent: true}, options{Lent: true}, []string{"lent"}, "--lent is for the agent, and this machine runs none, because of an earlier --no-agent"},
		"with the agent":                      {options{NoAgent: true}, options{Lent: true}, []string{"lent", "no-agent"}, ""},
		"an option of the manager":            {options{NoAgent: true}, options{NoSharing: true}, []string{"no-sharing"}, ""},
		"to another manager":                  {options{NoAgent: true}, options{Manager: "https://m:1"}, []string{"manager"}, "--no-agent=false"},
		"to another manager, with the agent":  {options{NoAgent: true}, options{Manager: "https://m:1"}, []string{"manager", "no-agent"}, ""},
		"a manager's option on a mere host":   {options{Manager: "https://m:1"}, options{Fence: "/f"}, []string{"fence"}, "--fence is for a manager"},
		"no agent on a mere host":             {options{Manager: "https://m:1"}, options{NoAgent: true}, []string{"no-agent"}, "https://m:1; for a manager"},
		"a manager where there was none":      {options{Manager: "https://m:1"}, options{Listen: "0.0.0.0:1"}, []string{"manager", "listen"}, ""},
		"nothing":                             {options{NoAgent: true}, options{}, nil, ""},
		"an option of the agent and no agent": {options{}, options{NoAgent: true, Site: "kyoto"}, []string{"no-agent", "site"}, "--site is for the agent, and --no-agent starts none"},
	} {
		u := &up{layout: layout{t.TempDir()}}
		if err := u.save(one.before); err != nil {
			t.Fatal(err)
		}
		err := u.settle(one.asked, func(name string) bool { return slices.Contains(one.given, name) })
		if one.said == "" && err != nil || one.said != "" && (err == nil || !strings.Contains(err.Error(), one.said)) {
			t.Errorf("%s: %v", name, err)
		}
		if exit := (*cli.Exit)(nil); err != nil && (!errors.As(err, &exit) || exit.Code != cli.StatusUsage) {
			t.Errorf("%s is no mistake in the command line: %v", name, err)
		}
	}
}

func TestADaemonThatRunsIsNotGivenOtherOptions(t *testing.T) {
	u := &up{layout: layout{t.TempDir()}, before: options{Listen: defaultListen, Name: "k1"}}
	u.options = u.before
	spec := u.agent()
	spec.Command = []string{"sleep", "60"}
	process, err := daemon.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer process.Stop(time.Second)
	if err := u.checkRunning(); err != nil {
		t.Errorf("the same options: %v", err)
	}
	u.Listen = "0.0.0.0:1" // the manager's port; the manager is not running
	if err := u.checkRunning(); err != nil {
		t.Errorf("options of another daemon: %v", err)
	}
	u.Name = "k2"
	if err := u.checkRunning(); err == nil || !strings.Contains(err.Error(), "watari down") {
		t.Errorf("another name: %v", err)
	}
	u.options, u.token = u.before, "watari1.x.y"
	if err := u.checkRunning(); err == nil {
		t.Error("an agent that waits with another token is taken for one that has joined")
	}
	u.token, u.NoAgent, u.given = "", true, func(string) bool { return true }
	if err := u.checkRunning(); err == nil || !strings.Contains(err.Error(), "watari down") {
		t.Errorf("no agent is wanted: %v", err)
	}
}

// TestAKeyAloneIsNoCertificate: the agent makes its key before it joins.
func TestAKeyAloneIsNoCertificate(t *testing.T) {
	l := layout{t.TempDir()}
	for _, name := range []string{"key.pem", "certificate.pem"} {
		if l.hasCertificate() {
			t.Errorf("joined before there is a %s", name)
		}
		if err := os.MkdirAll(l.agentPKI(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(l.agentPKI(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !l.hasCertificate() {
		t.Error("not joined with a certificate")
	}
}

// TestGuestsAreFoundByRecordAndNamespace starts a process that looks like a guest.
func TestGuestsAreFoundByRecordAndNamespace(t *testing.T) {
	const uid = "11111111-2222-4333-8444-555555555555"
	state := t.TempDir()
	guest := pretend(t, uid)
	if found, err := findGuests(state); err != nil || len(found) != 0 {
		t.Errorf("a guest that this machine's agent has no record of: %v, %v", found, err)
	}
	if err := os.MkdirAll(filepath.Join(state, "guests", uid), 0o755); err != nil {
		t.Fatal(err)
	}
	found, err := findGuests(state)
	if err != nil || len(found) != 1 || found[0].name != "md-0" || found[0].pid != guest {
		t.Errorf("%v, %v", found, err)
	}
}

// TestGuestsEndWithoutACertificate: it may have been removed to join anew, while guests run.
func TestGuestsEndWithoutACertificate(t *testing.T) {
	const uid = "11111111-2222-4333-8444-666666666666"
	l := layout{t.TempDir()}
	programs := t.TempDir()
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	script := fmt.Sprintf("#!/bin/sh\nkill %d\nwhile [ -e /proc/%[1]d/exe ]; do sleep 0.01; done\n", pretend(t, uid))
	if err := os.WriteFile(filepath.Join(programs, "watari-agent"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, guests := range []bool{false, true} {
		if err := os.MkdirAll(filepath.Join(l.agentState(), "guests", uid), 0o755); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		if err := down(t.Context(), &cli.Env{Err: &said}, l, guests); err != nil {
			t.Fatal(err)
		}
		if ended, left := strings.Contains(said.String(), "guests have ended"), strings.Contains(said.String(), "keeps running"); ended != guests || left == guests {
			t.Errorf("said:\n%s", &said)
		}
	}
}

// pretend starts a process that looks like guest md-0, until the test ends. It returns the process's id.
func pretend(t *testing.T, uid string) int {
	guest := exec.Command("sh", "-c", "read x", "qemu", "-name", "guest=watari-md-0,debug-threads=on", "-uuid", uid)
	input, err := guest.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := guest.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		_ = guest.Wait()
	})
	await(t, func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", guest.Process.Pid))
		return bytes.Contains(text, []byte(uid))
	})
	return guest.Process.Pid
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time")
		}
	}
}

func TestDownEndsWhatUpBeganAndNothingElse(t *testing.T) {
	l := layout{t.TempDir()}
	spec := l.manager()
	spec.Command = []string{"sleep", "60"}
	mine, err := daemon.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	// A pid file of an earlier boot with the id of another process.
	if err := os.WriteFile(l.agent().PIDFile, fmt.Appendf(nil, "%d\n1 00000000-0000-0000-0000-000000000000\n", other.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := down(t.Context(), &cli.Env{Err: &said}, l, false); err != nil {
		t.Fatal(err)
	}
	await(t, mine.Ended)
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", other.Process.Pid)); err != nil || strings.Contains(string(text), ") Z ") {
		t.Errorf("another's process was ended: %s, %v", text, err)
	}
	if !strings.Contains(said.String(), "manager has ended") || strings.Contains(said.String(), "agent has ended") {
		t.Errorf("said:\n%s", &said)
	}
}

func TestADamagedPIDFileDoesNotPreventTheEnd(t *testing.T) {
	l := layout{t.TempDir()}
	if err := os.MkdirAll(filepath.Dir(l.manager().PIDFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.manager().PIDFile, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := down(t.Context(), &cli.Env{Err: &said}, l, false); err != nil || !strings.Contains(said.String(), "as if the manager did not run") {
		t.Errorf("%v, said:\n%s", err, &said)
	}
}
