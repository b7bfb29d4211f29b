package image

// modules_test.go - artificial modules and kernels.

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// moduleELF returns a file with the .modinfo section of a kernel module.
func moduleELF(info ...string) []byte {
	modinfo := []byte(strings.Join(info, "\x00") + "\x00")
	names := []byte("\x00.modinfo\x00.shstrtab\x00")
	const header, section = 64, 64
	var file bytes.Buffer
	at := uint64(header)
	write := func(v any) { binary.Write(&file, binary.LittleEndian, v) }
	write(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: header,
		Shoff: at + uint64(len(modinfo)+len(names)), Shentsize: section, Shnum: 3, Shstrndx: 2,
	})
	file.Write(modinfo)
	file.Write(names)
	write(elf.Section64{})
	write(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: at, Size: uint64(len(modinfo))})
	write(elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: at + uint64(len(modinfo)), Size: uint64(len(names))})
	return file.Bytes()
}

func gzipped(content []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(content)
	w.Close()
	return out.Bytes()
}

func testKernel() fstest.MapFS {
	file := func(content []byte) *fstest.MapFile { return &fstest.MapFile{Data: content} }
	return fstest.MapFS{
		"modules.builtin":                        file([]byte("kernel/drivers/virt/vmgenid.ko\nkernel/lib/crc-ccitt.ko\n")),
		"kernel/fs/erofs/erofs.ko":               file(moduleELF("license=GPL", "depends=libcrc32c")),
		"kernel/lib/libcrc32c.ko":                file(moduleELF("softdep=pre: crc32c", "depends=")),
		"kernel/crypto/crc32c_generic.ko":        file(moduleELF("alias=crc32c", "depends=")),
		"kernel/arch/x86/crypto/crc32c-intel.ko": file(moduleELF("alias=crc32c", "depends=")),
		"kernel/drivers/net/virtio_net.ko.gz":    file(gzipped(moduleELF("depends=virtio,virtio-ring,crc_ccitt"))),
		"kernel/drivers/virtio/virtio.ko":        file(moduleELF("depends=")),
		"kernel/drivers/virtio/virtio_ring.ko":   file(moduleELF("depends=virtio", "softdep=post: erofs pre: nonesuch")),
	}
}

func TestModulesComeAfterWhatTheyNeed(t *testing.T) {
	found, err := resolveModules(t.Context(), testKernel(), []string{"virtio-net", "vmgenid"}, []string{"erofs", "absent"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, module := range found {
		got = append(got, module.path)
		if !bytes.HasPrefix(module.content, []byte("\x7fELF")) {
			t.Errorf("%s is still compressed", module.path)
		}
	}
	want := []string{
		"kernel/drivers/virtio/virtio.ko", "kernel/drivers/virtio/virtio_ring.ko", "kernel/drivers/net/virtio_net.ko",
		"kernel/crypto/crc32c_generic.ko", "kernel/lib/libcrc32c.ko", "kernel/fs/erofs/erofs.ko",
	}
	if !slices.Equal(got, want) {
		t.Errorf("order\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMissingModuleIsNamed(t *testing.T) {
	_, err := resolveModules(t.Context(), testKernel(), []string{"virtio_net", "9p", "squashfs"}, nil)
	if !errors.Is(err, errNoModule) || !strings.Contains(err.Error(), "9p, squashfs") {
		t.Errorf("error %v", err)
	}
}

func TestBrokenModuleIsRefused(t *testing.T) {
	kernel := testKernel()
	kernel["kernel/drivers/virtio/virtio.ko"].Data = []byte("\x7fELF cut")
	if _, err := resolveModules(t.Context(), kernel, []string{"virtio"}, nil); err == nil || !strings.Contains(err.Error(), "virtio.ko") {
		t.Errorf("error %v", err)
	}
}

func TestKernelThatQEMUCannotStartDirectlyStaysPacked(t *testing.T) {
	for name, packed := range map[string][]byte{
		"empty": nil, "short": []byte("HdrS"), "no kernel": bytes.Repeat([]byte{1}, 4096), "no PVH": bzImage(gzipped(moduleELF("depends="))),
		"payload cut off": bzImage(gzipped(moduleELF("depends=")))[:1200],
	} {
		if got := unpackKernel(t.Context(), packed); !bytes.Equal(got, packed) {
			t.Errorf("%s: was unpacked", name)
		}
	}
}

func TestKernelWithPVHEntryIsUnpacked(t *testing.T) {
	kernel := pvhELF()
	if got := unpackKernel(t.Context(), bzImage(gzipped(kernel))); !bytes.Equal(got, kernel) {
		t.Errorf("got %d bytes, want the kernel's %d", len(got), len(kernel))
	}
}

// bzImage returns a kernel file with a payload.
func bzImage(payload []byte) []byte {
	image := make([]byte, 1024)
	image[setupSectorsAt] = 1
	copy(image[headerMagicAt:], "HdrS")
	binary.LittleEndian.PutUint16(image[protocolAt:], 0x20f)
	binary.LittleEndian.PutUint32(image[payloadLengthAt:], uint32(len(payload)))
	return append(image, payload...)
}

// pvhELF returns an ELF file with the note of a PVH entry point.
func pvhELF() []byte {
	var file bytes.Buffer
	note := append([]byte{4, 0, 0, 0, 4, 0, 0, 0, physicalEntry, 0, 0, 0}, "Xen\x00\x00\x00\x00\x01"...)
	binary.Write(&file, binary.LittleEndian, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: 64, Phoff: 64, Phentsize: 56, Phnum: 1,
	})
	binary.Write(&file, binary.LittleEndian, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 120, Filesz: uint64(len(note)), Memsz: uint64(len(note))})
	file.Write(note)
	return file.Bytes()
}
