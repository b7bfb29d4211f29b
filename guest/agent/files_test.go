package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
)

func TestFileThatIsNoneIsRefusedAtOnce(t *testing.T) {
	guests, _ := host(t, newAgent(t))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	stream, err := guests.GetFile(ctx, connect.NewRequest(&v1.GetFileRequest{Path: pipe}))
	if err != nil {
		t.Fatal(err)
	}
	if stream.Receive(); connect.CodeOf(stream.Err()) != connect.CodeInvalidArgument {
		t.Errorf("get a pipe: %v", stream.Err())
	}
}

// Files that users of the guest leave in their directories must not lead the agent, which is root, elsewhere.
func TestAPartThatIsALinkIsNotFollowed(t *testing.T) {
	guests, _ := host(t, newAgent(t))
	directory := t.TempDir()
	other := filepath.Join(directory, "other")
	if err := os.WriteFile(other, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(directory, ".file.watari-part")); err != nil {
		t.Fatal(err)
	}
	put(t, guests, &v1.PutFileRequest{Path: filepath.Join(directory, "file"), Data: []byte("new"), Last: true})
	if b, err := os.ReadFile(other); string(b) != "kept" {
		t.Errorf("another file was written: %q, %v", b, err)
	}
}

// A part that did not fit into memory is removed.
func TestAFileForWhichThereIsNoRoomLeavesNothing(t *testing.T) {
	directory := t.TempDir()
	if err := unix.Mount("small", directory, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(directory, unix.MNT_DETACH) })
	guests, _ := host(t, newAgent(t))
	_, err := put(t, guests, &v1.PutFileRequest{Path: filepath.Join(directory, "file"), Data: make([]byte, 100<<10), Last: true})
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("put: %v", err)
	}
	if left, err := os.ReadDir(directory); len(left) > 0 || err != nil {
		t.Errorf("there is left: %v, %v", left, err)
	}
}
