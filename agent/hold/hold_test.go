package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asHolder is set in the environment of a holder, which runs this test's program. Its hypervisor is a folder with a file for
// each stopped guest.
const asHolder = "WATARI_TEST_HOLDER"

func TestMain(m *testing.M) {
	if folder := os.Getenv(asHolder); folder != "" {
		silenceTime = 3 * aliveTime
		if err := Serve(os.Stdin, os.Stdout, guests, within, folderOfGuests(folder)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

var (
	guests = []Guest{{"one", "pipe-1"}, {"two", "pipe-2"}}
	errNo  = errors.New("no such guest")
)

const within = 500 * time.Millisecond

type folderOfGuests string

func (f folderOfGuests) Stop(_ context.Context, uid string) error {
	if f.has("dead-" + uid) {
		return errNo
	}
	return os.WriteFile(filepath.Join(string(f), "stands-"+uid), nil, 0o600)
}

func (f folderOfGuests) Resume(_ context.Context, uid string) error {
	if f.has("dead-" + uid) {
		return errNo
	}
	if f.has("silent") {
		return errors.New("libvirt does not answer")
	}
	_ = os.Remove(filepath.Join(string(f), "stands-"+uid))
	return nil
}

func (f folderOfGuests) EndSnapshot(_ context.Context, uid, fifo string) error {
	return os.WriteFile(filepath.Join(string(f), "read-"+fifo), nil, 0o600)
}

func (f folderOfGuests) Gone(err error) bool { return errors.Is(err, errNo) }

func (f folderOfGuests) has(name string) bool {
	_, err := os.Stat(filepath.Join(string(f), name))
	return err == nil
}

// sees waits until the folder's files are the wanted ones.
func (f folderOfGuests) sees(t *testing.T, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var names []string
		entries, _ := os.ReadDir(string(f))
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if got = strings.Join(names, " "); got == want {
			return
		}
	}
	t.Fatalf("%q is there, and should be %q", got, want)
}

func start(t *testing.T) (*Process, folderOfGuests) {
	t.Helper()
	folder := folderOfGuests(t.TempDir())
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), asHolder+"="+string(folder))
	p, err := Start(command, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Done() })
	return p, folder
}

const (
	standing = "stands-one stands-two"
	released = "read-pipe-1 read-pipe-2"
)

func TestGuestsStandUntilTheirSnapshotsHaveBegun(t *testing.T) {
	p, folder := start(t)
	if err := p.Stop(time.Second); err != nil {
		t.Fatal(err)
	}
	folder.sees(t, standing)
	if err := p.Kept(time.Second); err != nil {
		t.Error(err)
	}
	time.Sleep(2 * within)
	folder.sees(t, standing) // the snapshots resume them
	if err := p.Whole(time.Second); err != nil {
		t.Error(err)
	}
	if line, more := <-p.lines; more {
		t.Errorf("it said %q", line)
	}
	folder.sees(t, standing)
}

func TestGuestsGoOnWhenTheirTimeIsOver(t *testing.T) {
	p, folder := start(t)
	if err := p.Stop(time.Second); err != nil {
		t.Fatal(err)
	}
	folder.sees(t, released)
	if err := p.Kept(time.Second); !errors.Is(err, ErrLate) {
		t.Error(err)
	}
}

func TestGuestsGoOnWhenTheAgentDies(t *testing.T) {
	for _, when := range []string{"stopped", "kept"} {
		p, folder := start(t)
		if err := p.Stop(time.Second); err != nil {
			t.Fatal(err)
		}
		if when == "kept" {
			if err := p.Kept(time.Second); err != nil {
				t.Fatal(err)
			}
		}
		p.in.Close() // as the kernel does when the agent dies
		folder.sees(t, released)
	}
}

func TestAnAgentThatHangsLosesItsSnapshots(t *testing.T) {
	p, folder := start(t)
	if err := p.Stop(time.Second); err != nil {
		t.Fatal(err)
	}
	if err := p.Kept(time.Second); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * (3 * aliveTime)) // meanwhile the agent's process sends "alive"
	folder.sees(t, standing)
	p.lock.Lock()
	folder.sees(t, released)
	p.lock.Unlock()
	if err := p.Whole(time.Second); !errors.Is(err, ErrLate) {
		t.Error(err)
	}
}

func TestNothingHappensIfTheAgentDiesBefore(t *testing.T) {
	p, folder := start(t)
	p.in.Close()
	if line, more := <-p.lines; more {
		t.Errorf("it said %q", line)
	}
	folder.sees(t, "")
}

func TestOneGuestThatCannotBeStoppedLetsTheOthersGoOn(t *testing.T) {
	p, folder := start(t)
	if err := os.WriteFile(filepath.Join(string(folder), "dead-two"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(time.Second); err == nil || !strings.Contains(err.Error(), errNo.Error()) {
		t.Error(err)
	}
	folder.sees(t, "dead-two "+released)
}

func TestAHypervisorThatIsSilentIsAskedUntilItAnswers(t *testing.T) {
	p, folder := start(t)
	if err := p.Stop(time.Second); err != nil {
		t.Fatal(err)
	}
	silent := filepath.Join(string(folder), "silent")
	if err := os.WriteFile(silent, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.in.Close()
	folder.sees(t, released+" silent "+standing)
	if err := os.Remove(silent); err != nil {
		t.Fatal(err)
	}
	folder.sees(t, released)
}

func TestAHolderThatDiesIsNoticed(t *testing.T) {
	p, _ := start(t)
	if err := p.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(5 * time.Second); err == nil {
		t.Error("a dead holder stopped guests")
	}
}
