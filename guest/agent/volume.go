package agent

// volume.go - the guest's volume, which has the home.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
)

// volumeSerial is the serial number by which the guest finds its volume among its disks.
const volumeSerial = "watari-volume"

// volumeDevice returns the device file of the guest's volume.
func volumeDevice(blocks string) (string, error) {
	serials, err := filepath.Glob(filepath.Join(blocks, "*/serial"))
	if err != nil {
		return "", err
	}
	for _, file := range serials {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == volumeSerial {
			return "/dev/" + filepath.Base(filepath.Dir(file)), nil
		}
	}
	return "", errors.New("the guest has no disk with the serial number " + volumeSerial)
}

// mountVolume mounts the volume as the home.
func mountVolume(w homeWanted) error {
	device, err := volumeDevice("/sys/block")
	if err != nil {
		return fmt.Errorf("mount the volume on %s: %w", w.path, err)
	}
	if err := unix.Mount(device, w.path, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "noinit_itable,errors=remount-ro"); err != nil {
		if !knows("ext4") {
			return errors.New("mount the volume: the guest's kernel has no ext4 (module ext4, which the image ought to hold; build the image again)")
		}
		return fmt.Errorf("mount the volume on %s: %w", w.path, err)
	}
	return os.Chown(w.path, int(w.uid), int(w.uid))
}

// Sync implements the service. When it returns, everything written to the home's files is on the volume.
func (s *guestService) Sync(_ context.Context, _ *connect.Request[v1.SyncRequest]) (*connect.Response[v1.SyncResponse], error) {
	s.agent.home.mu.Lock()
	w := s.agent.home.wanted
	s.agent.home.mu.Unlock()
	if !w.volume {
		return connect.NewResponse(&v1.SyncResponse{}), nil
	}
	dir, err := os.Open(w.path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return nil, fmt.Errorf("write the home to its volume: %w", err)
	}
	return connect.NewResponse(&v1.SyncResponse{}), nil
}
