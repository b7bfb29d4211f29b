package lab

// userfault.go - lets all QEMUs of this machine use userfaultfd(2) while a lab is up. An agent allows it only while its own
// QEMU needs it; agents of a lab share one kernel, and would revoke it from each other.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"watari/internal/durable"
)

const userfaultSetting = "/proc/sys/vm/unprivileged_userfaultfd"

// userfaultMark is a file whose existence means that the setting was 0 before the lab came up.
func (l *Lab) userfaultMark() string { return filepath.Join(l.dir, "userfaultfd") }

func (l *Lab) allowUserfaults() error {
	value, err := os.ReadFile(userfaultSetting)
	if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(value)) != "0" {
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

func (l *Lab) forbidUserfaults(context.Context) error {
	if _, err := os.Stat(l.userfaultMark()); err != nil {
		return nil
	}
	if err := os.WriteFile(userfaultSetting, []byte("0\n"), 0); err != nil {
		return fmt.Errorf("forbid userfaultfd again: %w", err)
	}
	return nil // removeFiles removes the mark
}
