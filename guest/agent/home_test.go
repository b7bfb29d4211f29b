package agent

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAUserIsMadeThoughTheHomeDoesNotAnswer(t *testing.T) {
	root := t.TempDir()
	home := filepath.Join(root, "home", "w")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	Hang(t, home)
	made := make(chan error, 1)
	go func() { made <- makeUser(root, "w", 1000) }()
	select {
	case err := <-made:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits for the home")
	}
}

func TestALostHomeThatDoesNotAnswerIsNotTakenForTheNext(t *testing.T) {
	h := newHome(slog.New(slog.NewTextHandler(io.Discard, nil)))
	old := homeWanted{path: filepath.Join(t.TempDir(), "home"), server: "192.0.2.1"}
	h.mu.Lock()
	h.wanted, h.looking = old, time.Now().Add(-time.Hour) // its look hangs
	h.begin(homeWanted{path: old.path})
	ready := h.ready
	h.mu.Unlock()
	select {
	case <-ready:
	case <-time.After(5 * time.Second):
		t.Fatal("the next home does not get ready")
	}
	if state := h.status(); state != homeReady {
		t.Errorf("the home is %q", state)
	}
}

// An agent may be killed between any two of these steps. Versions and records can be set only before the first listener.
func TestAHalfStartedServerOfTheHomeIsStarted(t *testing.T) {
	control := t.TempDir()
	defer func(before string) { nfsControl = before }(nfsControl)
	nfsControl = control
	for name, text := range map[string]string{"portlist": "tcp 2049\n", "threads": "0\n", "v4_end_grace": "N\n"} {
		if err := os.WriteFile(filepath.Join(control, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(control, "versions"), 0o700); err != nil { // a directory, so it cannot be written
		t.Fatal(err)
	}
	for _, threads := range []string{"0", nfsThreads} {
		os.WriteFile(filepath.Join(control, "threads"), []byte(threads+"\n"), 0o600)
		os.WriteFile(filepath.Join(control, "v4_end_grace"), []byte("N\n"), 0o600)
		if err := raiseNFS("records"); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"threads": nfsThreads, "v4_end_grace": "Y"} {
			if b, err := os.ReadFile(filepath.Join(control, name)); strings.TrimSpace(string(b)) != want {
				t.Errorf("%s of a server with %s threads: %q, %v", name, threads, b, err)
			}
		}
	}
}

func TestWhoWaitsForAHomeGetsTheNextOne(t *testing.T) {
	h := newHome(slog.New(slog.NewTextHandler(io.Discard, nil)))
	path := filepath.Join(t.TempDir(), "home")
	h.mu.Lock()
	h.begin(homeWanted{path: path, server: "192.0.2.1"}) // never becomes ready
	ready := h.ready
	h.cancel()
	h.begin(homeWanted{path: path})
	h.mu.Unlock()
	select {
	case <-ready:
	case <-time.After(5 * time.Second):
		t.Error("it waits for the first")
	}
}

// A file that is written below the home's mount point would be hidden by the home and lost.
func TestNothingCanBeWrittenInThePlaceOfAHomeThatIsNotMountedYet(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	path := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmountAll(path) })
	if err := prepare(homeWanted{path: path, server: "192.0.2.1", own: "192.0.2.2"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v", err)
	}
	if kind := mounted(path); kind == nfsType || kind == "" {
		t.Errorf("mounted: %q", kind)
	}
	if err := prepare(homeWanted{path: path, server: "192.0.2.2", own: "192.0.2.2"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); err != nil {
		t.Error(err)
	}
}

// A user's program would run in an empty folder.
func TestAUsersProgramsAwaitAHomeThatIsLate(t *testing.T) {
	h := newHome(slog.New(slog.NewTextHandler(io.Discard, nil)))
	path := filepath.Join(t.TempDir(), "home")
	h.mu.Lock()
	h.begin(homeWanted{path: path, server: "192.0.2.1"}) // never becomes ready
	h.since = time.Now().Add(-homePatience)
	h.mu.Unlock()
	begun := time.Now()
	if err := h.await(t.Context(), true); err == nil || !strings.Contains(err.Error(), "the shared home is not ready") {
		t.Errorf("root: %v", err)
	}
	if took := time.Since(begun); took > homePatience/2 {
		t.Errorf("root waited for %v", took)
	}
	awaited := make(chan error)
	go func() { awaited <- h.await(t.Context(), false) }()
	select {
	case err := <-awaited:
		t.Fatalf("a user does not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	h.mu.Lock()
	h.cancel()
	h.begin(homeWanted{path: path})
	h.mu.Unlock()
	if err := <-awaited; err != nil {
		t.Error(err)
	}
}
