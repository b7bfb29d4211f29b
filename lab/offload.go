// What a network device leaves to the next one: checksums and segmentation, switched by ethtool's calls.

package lab

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value of ethtool(8)'s system call, and ethtoolRequest the struct ifreq that holds it.
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
