package lab

// userfault.go - lets all QEMUs of this machine use userfaultfd(2) while a lab is up. An agent allows it only while its own
// QEMU needs it; agents of a lab share one kernel, and would revoke it from each other.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"watari/internal/durable"
)

var userfaultSetting = "/proc/sys/vm/unprivileged_userfaultfd"

// userfaultMark is a file of each lab that needs the setting to be 1, if it was 0 before the first of these labs came up.
func (l *Lab) userfaultMark() string { return filepath.Join(l.dir, "userfaultfd") }

// othersAllowUserfaults reports whether another lab has the mark.
func (l *Lab) othersAllowUserfaults() bool {
	marks, _ := filepath.Glob(filepath.Join(filepath.Dir(l.dir), "*", filepath.Base(l.userfaultMark())))
	return slices.ContainsFunc(marks, func(mark string) bool { return mark != l.userfaultMark() })
}

func (l *Lab) allowUserfaults(ctx context.Context) error {
	unlock, err := lockDirectory(ctx, filepath.Dir(l.dir), l.progress)
	if err != nil {
		return err
	}
	defer unlock()
	value, err := os.ReadFile(userfaultSetting)
	if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(value)) != "0" && !l.othersAllowUserfaults() {
		return nil
	}
	if err == nil {
		err = durable.WriteFile(l.userfaultMark(), []byte("0\n"), 0o600)
	}
	if err == nil {
		err = os.WriteFile(userfaultSetting, []byte("1\n"), 0)
	}
	if err != nil {
		return fmt.Errorf("allow QEMU to use userfaultfd: %w", err)
	}
	return nil
}

// forbidUserfaults sets the setting to 0 again with the last of the labs that need it.
func (l *Lab) forbidUserfaults(ctx context.Context) error {
	unlock, err := lockDirectory(ctx, filepath.Dir(l.dir), l.progress)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(l.userfaultMark()); err != nil {
		return nil
	}
	if !l.othersAllowUserfaults() {
		if err := os.WriteFile(userfaultSetting, []byte("0\n"), 0); err != nil {
			return fmt.Errorf("forbid userfaultfd again: %w", err)
		}
	}
	return os.Remove(l.userfaultMark())
}
