// Offloads: checksums and segmentation that a network device leaves to the next one. They are set by ethtool ioctls.

package lab

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is the kernel's struct ethtool_value. ethtoolRequest is the struct ifreq that points to it.
type ethtoolValue struct{ command, value uint32 }

type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data *ethtoolValue
	_    [16]byte
}

func setOffload(fd int, link string, command, value uint32) error {
	v := &ethtoolValue{command, value}
	r := ethtoolRequest{data: v}
	copy(r.name[:unix.IFNAMSIZ-1], link)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}
