package vm

// confinement.go - QEMU's user, its security driver, and the folder in which QEMU may create the socket of an incoming
// migration.

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
)

// migrateFolder holds the sockets of migrations. The AppArmor profile that virt-aa-helper writes for a domain lets its
// QEMU create /run/libvirt/**/*.tunnelmigrate.dest.<domain>, for libvirt's own tunnelled migration (seen in libvirt
// 9.0). QEMU may not create a socket in a folder of Watari's own.
const migrateFolder = "/run/libvirt/watari"

// pathLimit is the longest path of a Unix socket, in bytes (unix(7), without the final NUL).
const pathLimit = 107

// migratePath returns the path of a socket or pipe of a guest's: "m" is that of its migration, "c" that of its checkpoint. The
// path is short enough if the guest's name has at most 59 bytes.
func migratePath(kind, name string) string {
	return filepath.Join(migrateFolder, kind+".tunnelmigrate.dest."+NamePrefix+name)
}

// MigrateSocket returns the path of the Unix socket for a guest's memory, outgoing or incoming. It makes the folder in
// which QEMU's user may create the socket. The path is the same on all hosts. It fails with ErrUnavailable before the
// first connection.
func (l *Libvirt) MigrateSocket(name string) (string, error) {
	path, err := l.qemuPath("m", name)
	if err != nil {
		return "", fmt.Errorf("prepare the migration socket of guest %s: %w", name, err)
	}
	return path, nil
}

func (l *Libvirt) qemuPath(kind, name string) (string, error) {
	host := l.hostFacts()
	if host == nil {
		return "", ErrUnavailable
	}
	path := migratePath(kind, name)
	if len(path) > pathLimit {
		return "", fmt.Errorf("its path has %d bytes, a socket's may have %d", len(path), pathLimit)
	}
	return path, ownedFolder(migrateFolder, host.owner)
}

// ownedFolder makes a folder that only its owner and root can enter.
func ownedFolder(path string, o owner) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.Chown(path, o.uid, o.gid); err != nil {
		return err
	}
	return os.Chmod(path, 0o700)
}

// owner is a user and a group. The zero value is root.
type owner struct{ uid, gid int }

// Confinement says how this host's QEMU is confined, as of the last connection; nil before the first.
func (l *Libvirt) Confinement() *v1.Confinement {
	host := l.hostFacts()
	if host == nil {
		return nil
	}
	return &v1.Confinement{User: userName(host.owner), SecurityModel: host.securityModel}
}

// readConfinement finds QEMU's user and the security driver in libvirt's capabilities: libvirt names each driver with
// the label that domains get. The "dac" driver's is "+uid:+gid"; without that driver QEMU runs as libvirt's own user.
func readConfinement(caps *libvirtxml.Caps, virtType string) (qemu owner, securityModel string) {
	for _, model := range caps.Host.SecModel {
		switch model.Name {
		case "dac":
			for _, label := range model.Labels {
				if label.Type == virtType {
					qemu = parseOwner(label.Value)
				}
			}
		case "none":
		default:
			securityModel = model.Name
		}
	}
	return qemu, securityModel
}

// parseOwner reads "+64055:+994". It returns root for any other label, so that an unknown label never counts as
// confined.
func parseOwner(label string) owner {
	first, second, found := strings.Cut(label, ":")
	uid, errUID := strconv.Atoi(strings.TrimPrefix(first, "+"))
	gid, errGID := strconv.Atoi(strings.TrimPrefix(second, "+"))
	if !found || errUID != nil || errGID != nil {
		return owner{}
	}
	return owner{uid, gid}
}

func userName(o owner) string {
	id := strconv.Itoa(o.uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}
