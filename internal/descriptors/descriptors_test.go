package descriptors_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"watari/internal/descriptors"
)

// child starts a program and reports whether it has that descriptor.
func child(t *testing.T, descriptor int, extra ...*os.File) bool {
	t.Helper()
	command := exec.Command("/bin/sh", "-c", fmt.Sprintf("test -e /proc/$$/fd/%d", descriptor))
	command.ExtraFiles = extra
	err := command.Run()
	if _, refused := err.(*exec.ExitError); err != nil && !refused {
		t.Fatal(err)
	}
	return err == nil
}

func TestChildrenGetOnlyWhatTheyAreGiven(t *testing.T) {
	// Open the file as a shell does for its children, that is, without close-on-exec.
	lock, err := unix.Open(filepath.Join(t.TempDir(), "lock"), unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(lock)
	inherited, err := unix.FcntlInt(uintptr(lock), unix.F_DUPFD, 50) // above the descriptors that children get
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	if !child(t, inherited) {
		t.Fatal("the test does not hand a file down as a shell does")
	}
	descriptors.KeepToSelf()
	if child(t, inherited) {
		t.Error("a file that this process was started with went on to its child")
	}
	if _, err := unix.FcntlInt(uintptr(inherited), unix.F_GETFD, 0); err != nil {
		t.Errorf("this process has lost it itself: %v", err)
	}
	given, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	if !child(t, 3, given) {
		t.Error("what a child is given on purpose did not reach it")
	}
}
