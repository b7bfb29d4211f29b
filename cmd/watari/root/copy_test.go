package root_test

// copy_test.go - watari guest cp.

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/stub"
)

// oneFile is a manager whose guests have one file.
func oneFile(t *testing.T) *stub.Manager {
	return (&stub.Manager{OnGetFile: func(_ context.Context, _ *v1.ControlGetFileRequest, send func(*v1.ControlGetFileResponse) error) error {
		return send(&v1.ControlGetFileResponse{File: &v1.GetFileResponse{Data: []byte("text"), Size: 4, Mode: 0o600}})
	}}).Start(t)
}

func TestACopyReplacesFilesAndNothingElse(t *testing.T) {
	manager := oneFile(t)
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	if err := os.WriteFile(at("old"), []byte("longer than text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "old", "dangling": "nothing"} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	kind := func(name string) os.FileMode {
		info, err := os.Lstat(at(name))
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Type()
	}

	if result := manager.Run(t, "guest", "cp", "md-0:/f", at("link")); result.Status != 0 {
		t.Errorf("%+v", result)
	}
	if text, _ := os.ReadFile(at("old")); string(text) != "text" || kind("link") != os.ModeSymlink {
		t.Errorf("the link's file has %q, and the link is %s", text, kind("link"))
	}
	if result := manager.Run(t, "guest", "cp", "md-0:/f", at("dangling")); result.Status != 1 || kind("dangling") != os.ModeSymlink {
		t.Errorf("a link to nothing: %+v", result)
	}
	command := manager.Begin(t, "guest", "cp", "md-0:/f", at("pipe"))
	text, err := os.ReadFile(at("pipe"))
	if result := command.Wait(t); result.Status != 0 || err != nil || string(text) != "text" || kind("pipe") != os.ModeNamedPipe {
		t.Errorf("a pipe gets %q (%v), and is %s: %+v", text, err, kind("pipe"), result)
	}
	if err := os.Mkdir(at("f"), 0o755); err != nil {
		t.Fatal(err)
	}
	if result := manager.Run(t, "guest", "cp", "md-0:/f", folder); result.Status != 1 || !strings.Contains(result.Err, "is a directory") {
		t.Errorf("a directory of the file's name: %+v", result)
	}
}

func TestCtrlCEndsACopyToAPipeThatNobodyReads(t *testing.T) {
	manager := oneFile(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	command := manager.Begin(t, "guest", "cp", "md-0:/f", pipe)
	command.Signals <- os.Interrupt
	if result := command.Wait(t); result.Status != 130 {
		t.Errorf("%+v", result)
	}
}

func TestACopySaysThatItWaitsForTheManager(t *testing.T) {
	begun := make(chan struct{}, 1)
	manager := &stub.Manager{OnGetFile: func(ctx context.Context, r *v1.ControlGetFileRequest, send func(*v1.ControlGetFileResponse) error) error {
		if r.Offset > 0 {
			return send(&v1.ControlGetFileResponse{File: &v1.GetFileResponse{Data: []byte("xt"), Size: 4}})
		}
		if err := send(&v1.ControlGetFileResponse{File: &v1.GetFileResponse{Data: []byte("te"), Size: 4, Mode: 0o600}}); err != nil {
			return err
		}
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	manager.Start(t)
	path := filepath.Join(t.TempDir(), "f")
	command := manager.Begin(t, "guest", "cp", "md-0:/f", path)
	<-begun
	manager.Stop()
	command.AwaitText(t, "waiting for the manager: no manager answers at")
	manager.Resume(t)
	result := command.Wait(t)
	if text, err := os.ReadFile(path); result.Status != 0 || err != nil || string(text) != "text" {
		t.Errorf("copied %q, %v: %+v", text, err, result)
	}
}
