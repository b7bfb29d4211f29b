package image

// vmlinux.go - extracts the kernel from a bzImage.

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/pierrec/lz4/v4"
)

// Offsets in the header of a bzImage (Linux, Documentation/arch/x86/boot.rst).
const (
	setupSectorsAt  = 0x1f1
	headerMagicAt   = 0x202
	protocolAt      = 0x206
	payloadOffsetAt = 0x248
	payloadLengthAt = 0x24c
	bzImageHeader   = 0x250
)

// unpackKernel returns the kernel inside a bzImage if QEMU can start it directly (PVH): an emulated CPU would spend
// seconds on unpacking it. It returns any other kernel unchanged.
func unpackKernel(ctx context.Context, packed []byte) []byte {
	payload := kernelPayload(packed)
	if payload == nil {
		return packed
	}
	content, err := unpackPayload(ctx, payload)
	if err != nil || !startsAsPVH(content) {
		return packed
	}
	return content
}

// kernelPayload returns the compressed kernel in a bzImage; nil if the image is not a bzImage.
func kernelPayload(image []byte) []byte {
	if len(image) < bzImageHeader || string(image[headerMagicAt:headerMagicAt+4]) != "HdrS" ||
		binary.LittleEndian.Uint16(image[protocolAt:]) < 0x208 {
		return nil
	}
	sectors := int64(image[setupSectorsAt])
	if sectors == 0 {
		sectors = 4
	}
	start := (sectors+1)*512 + int64(binary.LittleEndian.Uint32(image[payloadOffsetAt:]))
	end := start + int64(binary.LittleEndian.Uint32(image[payloadLengthAt:]))
	if end > int64(len(image)) || end-start < 16 {
		return nil
	}
	return image[start:end]
}

// unpackPayload uncompresses the payload by the format that its first bytes show. After all formats but gzip, the
// kernel has four bytes with the size; gzip contains the size itself.
func unpackPayload(ctx context.Context, payload []byte) ([]byte, error) {
	body := payload[:len(payload)-4]
	switch {
	case bytes.HasPrefix(payload, []byte{0x1f, 0x8b}):
		return unpackGzip(payload)
	case bytes.HasPrefix(payload, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return unpackZstd(body)
	case bytes.HasPrefix(payload, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return unpackXZ(ctx, body)
	case bytes.HasPrefix(payload, []byte{0x02, 0x21, 0x4c, 0x18}):
		return io.ReadAll(lz4.NewReader(bytes.NewReader(body)))
	}
	return nil, fmt.Errorf("kernel payload begins with % x: no known compression", payload[:6])
}

// physicalEntry is the type of the ELF note (XEN_ELFNOTE_PHYS32_ENTRY, owner "Xen") with a kernel's PVH entry point.
const physicalEntry = 18

// startsAsPVH reports whether a kernel has a PVH entry point.
func startsAsPVH(kernel []byte) bool {
	file, err := elf.NewFile(bytes.NewReader(kernel))
	if err != nil {
		return false
	}
	for _, segment := range file.Progs {
		if segment.Type != elf.PT_NOTE {
			continue
		}
		notes, err := io.ReadAll(segment.Open())
		if err != nil {
			return false
		}
		for len(notes) >= 12 {
			order := file.ByteOrder
			nameSize, dataSize, kind := order.Uint32(notes), order.Uint32(notes[4:]), order.Uint32(notes[8:])
			size := 12 + int64(nameSize+3)&^3 + int64(dataSize+3)&^3
			if size > int64(len(notes)) {
				break
			}
			if kind == physicalEntry && bytes.HasPrefix(notes[12:], []byte("Xen\x00")) {
				return true
			}
			notes = notes[size:]
		}
	}
	return false
}
