package checkpoint

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"filippo.io/age"
)

func newKey(t *testing.T) *age.X25519Identity {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// aState returns a half empty state, like a guest's memory.
func aState(t *testing.T, size int) []byte {
	t.Helper()
	state := make([]byte, size)
	if _, err := rand.Read(state[:size/2]); err != nil {
		t.Fatal(err)
	}
	return state
}

func TestAStateIsReadAsItWasWritten(t *testing.T) {
	ctx, key, folder := t.Context(), newKey(t), t.TempDir()
	path, to := filepath.Join(folder, "a"), filepath.Join(folder, "state")
	for _, size := range []int{0, 1, 3 << 20} {
		state := aState(t, size)
		f, err := Write(ctx, path, bytes.NewReader(state), Options{Recipient: key.Recipient()})
		if err != nil {
			t.Fatal(err)
		}
		if f.State != int64(size) || f.Size > int64(size)*6/10+1000 {
			t.Errorf("%d bytes: %+v", size, f)
		}
		if err := Verify(ctx, path, f); err != nil {
			t.Error(err)
		}
		if err := Read(ctx, []Stored{{path, f}}, key, to); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(to)
		if err != nil || !bytes.Equal(got, state) {
			t.Errorf("%d bytes: another state was read: %v", size, err)
		}
		if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	only(t, folder, "a", "a.index", "state")
}

// only checks which files a folder has.
func only(t *testing.T, folder string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != len(names) {
		t.Fatalf("%v in %s, %v", entries, folder, err)
	}
	for i, e := range entries {
		if e.Name() != names[i] {
			t.Errorf("%s is in %s", e.Name(), folder)
		}
	}
}

func TestADamagedFileIsRefused(t *testing.T) {
	ctx, key, folder := t.Context(), newKey(t), t.TempDir()
	path, to := filepath.Join(folder, "a"), filepath.Join(folder, "state")
	f, err := Write(ctx, path, bytes.NewReader(aState(t, 1<<20)), Options{Recipient: key.Recipient()})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	altered := bytes.Clone(whole)
	altered[len(altered)/2] ^= 1
	for name, content := range map[string][]byte{
		"empty": {}, "truncated": whole[:len(whole)-1], "longer": append(bytes.Clone(whole), 0), "altered": altered,
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Verify(ctx, path, f); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if err := Read(ctx, []Stored{{path, f}}, key, to); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(ctx, []Stored{{path, f}}, newKey(t), to); err == nil {
		t.Error("another key opened it")
	}
	smaller := f
	smaller.State--
	if err := Read(ctx, []Stored{{path, smaller}}, key, to); !errors.Is(err, ErrDamaged) {
		t.Errorf("another size: %v", err)
	}
	only(t, folder, "a", "a.index")
}

// failing is a state whose reading fails at its end.
type failing struct {
	from io.Reader
	err  error
}

func (r failing) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err == io.EOF {
		err = r.err
	}
	return n, err
}

func TestWhatIsNotWrittenWhollyLeavesNothing(t *testing.T) {
	key, folder := newKey(t), t.TempDir()
	path := filepath.Join(folder, "a")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("QEMU has died")
	for name, try := range map[string]struct {
		ctx     context.Context
		state   io.Reader
		options Options
		want    error
	}{
		"cancelled": {cancelled, bytes.NewReader(aState(t, 1<<20)), Options{}, context.Canceled},
		"broken":    {t.Context(), failing{bytes.NewReader(aState(t, 1<<20)), broken}, Options{}, broken},
		"limit":     {t.Context(), bytes.NewReader(aState(t, 1<<20)), Options{Limit: 100 << 10}, ErrNoRoom},
		"spare":     {t.Context(), bytes.NewReader(aState(t, 1<<20)), Options{Spare: 1 << 60}, ErrNoRoom},
	} {
		try.options.Recipient = key.Recipient()
		if _, err := Write(try.ctx, path, try.state, try.options); !errors.Is(err, try.want) {
			t.Errorf("%s: %v", name, err)
		}
		only(t, folder)
	}
}

func TestAFullDiskIsNamed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small disk")
	}
	folder := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=20M", "tmpfs", folder).CombinedOutput(); err != nil {
		t.Skipf("needs to mount a small disk: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", folder).Run() })
	if _, err := Write(t.Context(), filepath.Join(folder, "a"), bytes.NewReader(aState(t, 64<<20)),
		Options{Recipient: newKey(t).Recipient(), Spare: -1 << 40}); !errors.Is(err, ErrNoRoom) {
		t.Error(err)
	}
	only(t, folder)
}
