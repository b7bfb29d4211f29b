package link

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// PortName is the name of the virtio-serial port between host and guest agent.
const PortName = "org.watari.guest.0"

// Port is the guest's end of a virtio-serial port. While no host is connected, a read of the device returns no bytes
// immediately, and poll reports a hang-up all the time. The runtime's poller is edge-triggered and wakes only on a
// change, so waiting for a host costs nothing.
type Port struct {
	file *os.File
	raw  syscall.RawConn
	had  bool // a host was connected since the last ErrNoHost
}

// OpenPort opens the virtio-serial port of that name. A host need not be connected.
func OpenPort(name string) (*Port, error) {
	path := filepath.Join("/dev/virtio-ports", name)
	if _, err := os.Stat(path); err != nil { // without udev there are no names in /dev
		if path, err = findPort(name); err != nil {
			return nil, err
		}
	}
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("poll %s: %w", path, err), file.Close())
	}
	return &Port{file: file, raw: raw, had: true}, nil
}

// findPort finds a port's device by its name in sysfs.
func findPort(name string) (string, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, file := range names {
		if b, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(b)) == name {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", fmt.Errorf("no virtio-serial port %s among %d ports", name, len(names))
}

// Read waits for bytes. It returns ErrNoHost once when the host has disconnected; the next Read waits for a new host.
func (p *Port) Read(b []byte) (n int, err error) {
	waitErr := p.raw.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), b)
			switch {
			case err == unix.EINTR:
				continue
			case err == unix.EAGAIN: // a host is connected but has sent no bytes
				p.had = true
				return false
			case err == nil && n == 0 && !p.had:
				return false
			}
			return true
		}
	})
	switch {
	case waitErr != nil:
		return 0, waitErr
	case err == nil && n == 0:
		p.had = false
		return 0, ErrNoHost
	case err == unix.ENODEV || err == unix.ENXIO || err == unix.EPIPE:
		return 0, io.EOF
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	}
	p.had = true
	return n, nil
}

// Write writes all of b. It waits while no host is connected or the host does not read.
func (p *Port) Write(b []byte) (int, error) { return p.file.Write(b) }

// Close closes the port. Pending reads and writes return.
func (p *Port) Close() error { return p.file.Close() }
