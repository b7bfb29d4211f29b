package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"watari/cmd/internal/daemon"
)

// systemd installs substitutes for systemctl and journalctl. `show` prints the file state, which enable and disable
// write.
func systemd(t *testing.T) (folder string) {
	folder = t.TempDir()
	script := `#!/bin/sh
cd "` + folder + `"
case "$1" in
show) cat state ;;
enable) echo "$*" >> calls; cat program > state; printf 'ActiveState=active\nSubState=running\nMainPID=4711\nNRestarts=3\n' >> state ;;
disable) echo "$*" >> calls; cat program > state; printf 'ActiveState=inactive\nSubState=dead\nMainPID=0\nNRestarts=0\n' >> state ;;
--no-pager) echo "no such manager" ;;
esac
`
	for _, name := range []string{"systemctl", "journalctl"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	say(t, folder, "program", "LoadState=loaded\nExecStart={ path=/bin/sh ; argv[]=/bin/sh $ARGUMENTS ; ignore_errors=no }\n")
	say(t, folder, "state", "LoadState=loaded\nActiveState=inactive\nSubState=dead\nMainPID=0\nNRestarts=0\nExecStart={ path=/bin/sh ; argv[]=/bin/sh }\n")
	return folder
}

func say(t *testing.T, folder, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestAUnitRunsTheDaemonItIsFor(t *testing.T) {
	folder := systemd(t)
	s := spec(t, "a script with blanks")
	s.Unit = "sleeper.service"
	if found, err := daemon.Running(s); found != nil || err != nil {
		t.Fatalf("before the start: %v, %v", found, err)
	}
	started, err := daemon.Start(s)
	if err != nil || started.PID != 4711 || started.Log() != "journalctl -u sleeper.service" {
		t.Fatalf("started %+v, %v", started, err)
	}
	arguments := strings.TrimSuffix(s.PIDFile, ".pid") + ".env"
	if text, _ := os.ReadFile(arguments); !strings.Contains(string(text), `ARGUMENTS='"-c" "a script with blanks"'`) {
		t.Errorf("the unit's arguments: %s", text)
	}
	found, err := daemon.Running(s)
	if err != nil || found == nil || found.Ended() {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := found.Stop(time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(arguments); err == nil {
		t.Error("the arguments are still there, so that the unit could be started by itself")
	}
	calls, _ := os.ReadFile(filepath.Join(folder, "calls"))
	if want := "enable --quiet --now sleeper.service\ndisable --quiet --now sleeper.service\n"; string(calls) != want {
		t.Errorf("systemctl was called: %s", calls)
	}
}

func TestAUnitThatWasStoppedIsNotStartedAtBoot(t *testing.T) {
	folder := systemd(t)
	s := spec(t, "")
	s.Unit = "sleeper.service"
	if was, err := daemon.Disarm(s); was || err != nil {
		t.Fatalf("before the start: %v, %v", was, err)
	}
	if _, err := daemon.Start(s); err != nil {
		t.Fatal(err)
	}
	say(t, folder, "state", "LoadState=loaded\nActiveState=inactive\nSubState=dead\nMainPID=0\nNRestarts=0\n") // systemctl stop
	if was, err := daemon.Disarm(s); !was || err != nil {
		t.Errorf("after systemctl stop: %v, %v", was, err)
	}
	calls, _ := os.ReadFile(filepath.Join(folder, "calls"))
	if !strings.HasSuffix(string(calls), "disable --quiet --now sleeper.service\n") {
		t.Errorf("systemctl was called: %s", calls)
	}
}

func TestAUnitThatSystemdStartsAgainHasEnded(t *testing.T) {
	folder := systemd(t)
	s := spec(t, "")
	s.Unit = "sleeper.service"
	started, err := daemon.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	for what, state := range map[string]string{
		"waits for its next start": "ActiveState=activating\nSubState=auto-restart\nNRestarts=3\n",
		"was started again":        "ActiveState=active\nSubState=running\nNRestarts=4\n",
		"has failed for good":      "ActiveState=failed\nSubState=failed\nNRestarts=3\n",
	} {
		say(t, folder, "state", state)
		if !started.Ended() {
			t.Errorf("a daemon that %s is taken for one that runs", what)
		}
	}
	if err := started.Died(); !strings.Contains(err.Error(), "no such manager") {
		t.Error(err)
	}
}

func TestAUnitOfAnotherProgramIsLeftAlone(t *testing.T) {
	folder := systemd(t)
	say(t, folder, "state", "LoadState=loaded\nActiveState=inactive\nExecStart={ path=/usr/bin/env ; argv[]=/usr/bin/env }\n")
	s := spec(t, "exec sleep 60")
	s.Unit = "sleeper.service"
	started, err := daemon.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	if started.Log() != s.Log {
		t.Errorf("its log is %s", started.Log())
	}
	found, err := daemon.Running(s)
	if err != nil || found == nil || found.PID != started.PID {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := found.Stop(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if calls, err := os.ReadFile(filepath.Join(folder, "calls")); err == nil {
		t.Errorf("systemctl was called: %s", calls)
	}
}

func TestArgumentsThatAUnitCannotHaveAreRefused(t *testing.T) {
	systemd(t)
	s := spec(t, `echo "quoted"`)
	s.Unit = "sleeper.service"
	if _, err := daemon.Start(s); err == nil || !strings.Contains(err.Error(), "a quote") {
		t.Errorf("%v", err)
	}
}
