package vm

// owners.go - files that libvirt counts as used by guests that no longer exist.

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"
)

// ownerAttributes begins the names of the extended attributes in which libvirt keeps a file's previous owner, and the number
// of domains that use the file.
const ownerAttributes = "trusted.libvirt.security."

// isOwnerConflict reports whether libvirt refused to give a file to QEMU's user because domains of another user use it.
func isOwnerConflict(err error) bool {
	var e libvirt.Error
	return errors.As(err, &e) && e.Domain == libvirt.FROM_SECURITY && e.Code == libvirt.ERR_OPERATION_INVALID
}

// forgetOwners removes libvirt's attributes from files if no domain runs on the host, and reports whether it has removed
// any. A daemon that is killed while a domain starts or ends leaves a use of the files counted. libvirt itself drops such
// counts only after the host's next boot.
func forgetOwners(conn *libvirt.Connect, files ...string) (removed bool) {
	running, err := conn.ListAllDomains(libvirt.CONNECT_LIST_DOMAINS_ACTIVE)
	for i := range running {
		_ = running[i].Free()
	}
	if err != nil || len(running) > 0 {
		return false
	}
	for _, file := range files {
		for _, name := range attributesOf(file) {
			if strings.HasPrefix(name, ownerAttributes) && unix.Removexattr(file, name) == nil {
				removed = true
			}
		}
	}
	return removed
}

// attributesOf returns the names of a file's extended attributes.
func attributesOf(file string) []string {
	names := make([]byte, 64<<10)
	n, err := unix.Listxattr(file, names)
	if err != nil {
		return nil
	}
	return strings.Split(strings.Trim(string(names[:n]), "\x00"), "\x00")
}
