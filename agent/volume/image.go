package volume

// image.go - checks a disk that comes from another host.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// header is the beginning of a qcow2 file of version 3 (QEMU's docs/interop/qcow2.txt).
type header struct {
	Magic, Version       uint32
	BackingOffset        uint64 // where the name of a backing file is; 0: there is none
	BackingLength        uint32
	ClusterBits          uint32
	SizeBytes            uint64
	Encryption           uint32 // 0: none
	L1Entries            uint32
	L1Offset             uint64
	RefcountsOffset      uint64
	RefcountsClusters    uint32
	Snapshots            uint32
	SnapshotsOffset      uint64
	IncompatibleFeatures uint64
}

const (
	qcow2Magic   = 0x514649fb
	qcow2Version = 3
	// harmless are the incompatible features of a file that was not closed: "dirty" and "corrupt". One of the others means that
	// the data are in another file.
	harmless = 1<<0 | 1<<1
)

// checkImage refuses a disk that is no qcow2 file of this size, or that names another file: the daemon would open that file,
// and a guest could read it or write to it.
func checkImage(path string, sizeBytes uint64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var h header
	if err := binary.Read(file, binary.BigEndian, &h); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	switch {
	case h.Magic != qcow2Magic || h.Version != qcow2Version:
		return errors.New("the disk is no qcow2 file of version 3")
	case h.BackingOffset != 0 || h.BackingLength != 0:
		return errors.New("the disk names a backing file")
	case h.IncompatibleFeatures&^harmless != 0:
		return fmt.Errorf("the disk has features that volumes do not use, such as data in another file (%#x)", h.IncompatibleFeatures)
	case h.Encryption != 0:
		return errors.New("the disk is encrypted")
	case h.SizeBytes != sizeBytes:
		return fmt.Errorf("the disk is one of %d bytes, and the volume has %d", h.SizeBytes, sizeBytes)
	}
	return nil
}
