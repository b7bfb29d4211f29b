package vm

// userfault.go - lets QEMU use userfaultfd(2) for the moment in which QEMU opens it. QEMU needs it to notice the first write
// to each page of a guest.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"watari/internal/durable"
)

// userfaults is the kernel's setting that permits userfaultfd also for faults inside the kernel. Linux's default is 0: only
// processes with CAP_SYS_PTRACE may do that, and libvirt's QEMU never has it, even as root.
type userfaults struct {
	setting string // "/proc/sys/vm/unprivileged_userfaultfd"
	mark    string // a file that marks that the setting must become 0 again

	lock  sync.Mutex
	users int // calls of allow that have not ended
	ours  bool
}

// hostUserfaults is this host's setting.
var hostUserfaults = &userfaults{setting: "/proc/sys/vm/unprivileged_userfaultfd", mark: "/run/watari/userfaultfd"}

// RecoverUserfaults forbids QEMU userfaultfd again if an agent was killed while it allowed it. The agent calls it when it
// starts.
func RecoverUserfaults() error { return hostUserfaults.recover() }

// allow sets the setting to 1 until the returned function is called. Several callers may overlap. A QEMU that has
// opened its userfaultfd keeps it after that.
func (u *userfaults) allow() (end func() error, err error) {
	u.lock.Lock()
	defer u.lock.Unlock()
	if u.users == 0 {
		if err := u.settle(); err != nil {
			return nil, err
		}
		value, err := os.ReadFile(u.setting)
		if err != nil {
			return nil, fmt.Errorf("this kernel has no userfaultfd: %w", err)
		}
		if u.ours = strings.TrimSpace(string(value)) == "0"; u.ours {
			if err := u.open(); err != nil {
				return nil, err
			}
		}
	}
	u.users++
	return sync.OnceValue(u.end), nil
}

// open first writes the mark, so that recover finds an open setting after a crash.
func (u *userfaults) open() error {
	if err := os.MkdirAll(filepath.Dir(u.mark), 0o755); err != nil {
		return err
	}
	if err := durable.WriteFile(u.mark, []byte("0\n"), 0o600); err != nil {
		return fmt.Errorf("note that userfaultfd is allowed for a moment: %w", err)
	}
	if err := os.WriteFile(u.setting, []byte("1\n"), 0); err != nil {
		return errors.Join(fmt.Errorf("allow QEMU to use userfaultfd: %w; `sysctl vm.unprivileged_userfaultfd=1` allows it "+
			"to all processes", err), os.Remove(u.mark))
	}
	return nil
}

func (u *userfaults) end() error {
	u.lock.Lock()
	defer u.lock.Unlock()
	if u.users--; u.users > 0 || !u.ours {
		return nil
	}
	return u.close()
}

func (u *userfaults) close() error {
	if err := os.WriteFile(u.setting, []byte("0\n"), 0); err != nil {
		return fmt.Errorf("forbid userfaultfd again: %w", err)
	}
	return os.Remove(u.mark)
}

// recover forbids userfaultfd again if a process was killed while it allowed it.
func (u *userfaults) recover() error {
	u.lock.Lock()
	defer u.lock.Unlock()
	if u.users > 0 {
		return nil
	}
	return u.settle()
}

func (u *userfaults) settle() error {
	if _, err := os.Stat(u.mark); err != nil {
		return nil
	}
	return u.close()
}
