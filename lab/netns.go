// Network namespaces that bind mounts keep alive, so that they outlive the process that made them.

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	nsfsMagic = 0x6e736673
	// ownNamespace is the calling thread's network namespace. (/proc/self would be that of the main thread.)
	ownNamespace = "/proc/thread-self/ns/net"
)

func (l *Lab) namespacePath(name string) string { return filepath.Join(l.run, "ns", name) }

// ensureNamespace makes a network namespace if it does not exist, and reports whether it did.
func (l *Lab) ensureNamespace(name string) (made bool, err error) {
	path := l.namespacePath(name)
	if heldNamespace(path) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return false, err
	}
	f.Close()
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount(ownNamespace, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount it at %s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("make network namespace %s: %w", name, err)
	}
	return true, nil
}

func heldNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == nsfsMagic
}

// onOwnThread runs f on a thread of its own, so that f may change the thread's network namespace. It restores the
// namespace afterwards. (Letting the thread end instead is not safe: it may be the main thread, whose namespace /proc
// shows for the whole process.)
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer before.Close()
		err = f()
		if back := netns.Set(before); back != nil {
			done <- errors.Join(err, fmt.Errorf("return to own network namespace: %w", back))
			return // a goroutine that returns locked to its thread ends the thread
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// inNamespace runs f on a thread in the network namespace at path. Processes that f starts are in it, too.
func inNamespace(path string, f func() error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	return onOwnThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return f()
	})
}

// handle opens a netlink connection in the network namespace at path. The caller closes it.
func handle(path string) (*netlink.Handle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink connection in %s: %w", path, err)
	}
	return h, nil
}

// setSysctl sets a variable under /proc/sys in the network namespace at path.
func setSysctl(path, key, value string) error {
	return inNamespace(path, func() error {
		if err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0); err != nil {
			return fmt.Errorf("set %s to %s: %w", key, value, err)
		}
		return nil
	})
}

// releaseNamespace unmounts the namespace's file and removes it.
func releaseNamespace(path string) error {
	for heldNamespace(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("release network namespace %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("release network namespace %s: %w", path, err)
	}
	return nil
}
