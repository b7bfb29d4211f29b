package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"
)

// TestMain makes this program a writer if the environment asks for it.
func TestMain(m *testing.M) {
	if os.Getenv("WATARI_WRITER") != "" {
		if err := Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func startWriter(t *testing.T, job Job) *Writer {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), "WATARI_WRITER=1")
	a, err := StartWriter(command, job)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func TestAStateIsWrittenByAnotherProcess(t *testing.T) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	state := bytes.Repeat([]byte("a guest's memory "), 100_000)
	job := Job{Path: filepath.Join(dir, "one"), Recipient: key.Recipient().String(), Layout: Disk}
	first, err := startWriter(t, job).Write(t.Context(), bytes.NewReader(state))
	if err != nil || first.State != int64(len(state)) {
		t.Fatalf("%+v, %v", first, err)
	}
	earlier := Stored{Path: job.Path, File: first}
	job.Path, job.Base = filepath.Join(dir, "two"), &earlier
	later := startWriter(t, job)
	later.Hurry()
	state[5] = 'X'
	second, err := later.Write(t.Context(), bytes.NewReader(state))
	if err != nil || second.Base != first.Digest || second.Size >= first.Size {
		t.Fatalf("%+v after %+v, %v", second, first, err)
	}
	plain := filepath.Join(dir, "plain")
	if err := Read(t.Context(), []Stored{earlier, {Path: job.Path, File: second}}, key, plain); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(plain); err != nil || !bytes.Equal(got, state) {
		t.Errorf("another state was written, %v", err)
	}
}

// broken is a state that fails with an error before its end.
type broken struct{ io.Reader }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = errors.New("QEMU has ended")
	}
	return n, err
}

func TestAStateThatIsNotWholeIsNotAFile(t *testing.T) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	job := Job{Path: filepath.Join(dir, "file"), Recipient: key.Recipient().String(), Layout: Disk}
	nothing := func(when string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			left, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil {
				t.Fatal(err)
			}
			if len(left) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v is left", when, left)
			}
		}
	}
	state := bytes.Repeat([]byte("x"), 1<<20)
	if _, err := startWriter(t, job).Write(t.Context(), broken{bytes.NewReader(state)}); err == nil || err.Error() != "QEMU has ended" {
		t.Errorf("the state breaks off: %v", err)
	}
	nothing("the state breaks off")
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(state)
		cancel()
		w.CloseWithError(context.Canceled)
	}()
	if _, err := startWriter(t, job).Write(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("it is given up: %v", err)
	}
	nothing("it is given up")
	job.Limit = 10
	if _, err := startWriter(t, job).Write(t.Context(), bytes.NewReader(state)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("it is too large: %v", err)
	}
	nothing("it is too large")
	dead := startWriter(t, Job{Path: filepath.Join(dir, "file"), Recipient: key.Recipient().String()})
	_ = dead.command.Process.Kill()
	if _, err := dead.Write(t.Context(), bytes.NewReader(state)); err == nil {
		t.Error("the process was killed, and nobody says so")
	}
	a := startWriter(t, Job{Path: filepath.Join(dir, "file"), Recipient: key.Recipient().String()})
	_, _ = a.in.Write([]byte{0, 0, 0, 2, 'a'}) // then the agent dies
	a.Close()
	nothing("the agent dies")
}
