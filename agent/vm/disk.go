package vm

// disk.go - a guest's volume: a disk that QEMU reaches through a socket, on whichever host the disk is. To QEMU it is a
// network block device (NBD). So it is the same disk after a move, and a move copies none of it.
//
// QEMU gets the disk by arguments of its own, because libvirt 9 has no setting for requests while the socket does not
// answer. A template has no such disk, so a guest with a volume is booted.

import (
	"encoding/json"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"watari/agent/domain"
)

const (
	// VolumeExport is the name under which a volume is exported at its socket.
	VolumeExport = "volume"
	// VolumeSerial is the serial number by which the guest recognizes the disk.
	VolumeSerial = "watari-volume"
	// volumeSlot is the disk's slot on the guest's PCI bus: the last one that libvirt would use.
	volumeSlot = "0x1e"
	// volumePatience is for how many seconds QEMU keeps the guest's requests while the socket does not answer: the agent or
	// the volume's host may be away. It is long because a guest that gets errors instead cannot go on.
	volumePatience = 7 * 24 * 60 * 60
	// volumeOpening is for how many seconds QEMU tries to open the disk when it starts. A move to a host that cannot reach
	// the disk fails after that.
	volumeOpening = 3
)

// VolumeSocket returns the path of the socket at which a guest's volume is served. It is the same on all hosts. It fails with
// ErrUnavailable before the first connection.
func (l *Libvirt) VolumeSocket(name string) (string, error) {
	path, err := l.qemuPath("v", name)
	if err != nil {
		return "", fmt.Errorf("prepare the socket of the volume of guest %s: %w", name, err)
	}
	return path, nil
}

// QEMUUser returns the user that QEMU runs as; known is false before the first connection.
func (l *Libvirt) QEMUUser() (uid, gid int, known bool) {
	host := l.hostFacts()
	if host == nil {
		return 0, 0, false
	}
	return host.owner.uid, host.owner.gid, true
}

// volumeArguments returns QEMU's arguments for a volume, or for an empty disk in its place.
func volumeArguments(spec domain.Spec) ([]libvirtxml.DomainQEMUCommandlineArg, error) {
	disk := map[string]any{"driver": "nbd", "node-name": "volume", "export": VolumeExport, "server": map[string]string{"type": "unix", "path": spec.Volume},
		"reconnect-delay": volumePatience, "open-timeout": volumeOpening, "discard": "unmap", "cache": map[string]bool{"direct": true, "no-flush": false}}
	if spec.Volume == "" {
		disk = map[string]any{"driver": "null-co", "node-name": "volume", "size": spec.EmptyVolume, "read-zeroes": true}
	}
	node, err := json.Marshal(disk)
	if err != nil {
		return nil, err
	}
	device, err := json.Marshal(map[string]any{"driver": "virtio-blk-pci", "id": "volume0", "drive": "volume", "serial": VolumeSerial, "bus": "pci.0", "addr": volumeSlot,
		"werror": "report", "rerror": "report"})
	if err != nil {
		return nil, err
	}
	var args []libvirtxml.DomainQEMUCommandlineArg
	for _, value := range []string{"-blockdev", string(node), "-device", string(device)} {
		args = append(args, libvirtxml.DomainQEMUCommandlineArg{Value: value})
	}
	return args, nil
}
