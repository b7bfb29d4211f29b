package vm

// template.go - templates: a booted guest's saved state, from which other guests are forked.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// SaveTemplate saves the domain's state to path and ends it. The file appears there whole, on disk, or not at all.
// When it fails, the domain may still be there, running or paused: end it.
func (l *Libvirt) SaveTemplate(ctx context.Context, uid, path string) error {
	part := path + ".part"
	err := l.callAlone(ctx, saveTime, onDomain(uid, func(domain *libvirt.Domain) error { return domain.Save(part) }))
	if err == nil {
		err = putInPlace(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("save domain %s as template: %w", uid, err)
	}
	return nil
}

// putInPlace checks that the file is a save file of the known form and gives it its name, durably.
func putInPlace(part, path string) error {
	file, err := os.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	head, err := readSaveHead(file)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTemplateUnusable, err)
	}
	if info, err := file.Stat(); err != nil {
		return err
	} else if info.Size() <= head.streamOffset() {
		return fmt.Errorf("%w: no memory was saved", ErrTemplateUnusable)
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("write it to disk: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Fork makes the guest's domain from a template with the guest's key, and lets it run where the template stood. The
// tap must exist. It has the template's memory and MAC address, and a new generation ID: the guest agent is to
// give it its own identity and new entropy. It fails with ErrTemplateUnusable if the template is to blame, or may be:
// then Boot the guest, and make the template anew. After ErrUnavailable the domain may come to be, as with Boot.
func (l *Libvirt) Fork(ctx context.Context, spec Spec, template string) error {
	if err := l.fork(ctx, spec, template); err != nil {
		return fmt.Errorf("fork guest %s from %s: %w", spec.Name, template, err)
	}
	return nil
}

func (l *Libvirt) fork(ctx context.Context, spec Spec, template string) error {
	if err := checkSpec(spec); err != nil {
		return err
	}
	file, err := os.Open(template)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTemplateUnusable, err)
	}
	defer file.Close()
	head, err := readSaveHead(file)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTemplateUnusable, err)
	}
	text, err := forkedXML(head.xml, spec)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTemplateUnusable, err)
	}
	start, err := head.withXML(text)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTemplateUnusable, err)
	}
	own := template + "." + spec.UID
	defer os.Remove(own)
	if err := copyWithStart(own, file, start); err != nil {
		return fmt.Errorf("copy the template: %w", err)
	}
	err = l.callAlone(ctx, restoreTime, func(conn *libvirt.Connect) error {
		return conn.DomainRestoreFlags(own, "", libvirt.DOMAIN_SAVE_RUNNING)
	})
	var e libvirt.Error
	if errors.As(err, &e) && !errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: %v", ErrTemplateUnusable, err)
	}
	return err
}

// copyWithStart writes a copy of a file that begins with start instead. The kernel copies (copy_file_range), or only
// shares the blocks, where the file system can.
func copyWithStart(path string, from *os.File, start []byte) error {
	to, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if _, err := to.WriteAt(start, 0); err != nil {
		return err
	}
	return to.Close()
}

// forkedXML is a template's domain as another guest's. The template must be of the guest's shape.
func forkedXML(template string, spec Spec) (string, error) {
	var domain libvirtxml.Domain
	if err := domain.Unmarshal(template); err != nil {
		return "", fmt.Errorf("read the template's domain: %w", err)
	}
	switch {
	case domain.OS == nil || domain.Devices == nil || domain.VCPU == nil || domain.Memory == nil:
		return "", errors.New("the template's domain lacks parts")
	case domain.VCPU.Value != uint(spec.VCPUs), kib(domain.Memory) != spec.MemoryBytes/1024:
		return "", fmt.Errorf("the template has %d vCPUs and %d KiB of memory, the guest is to have %d and %d",
			domain.VCPU.Value, kib(domain.Memory), spec.VCPUs, spec.MemoryBytes/1024)
	}
	domain.ID = nil
	domain.Name, domain.UUID = NamePrefix+spec.Name, spec.UID
	domain.Metadata = nil
	// libvirt makes a new generation ID at each restore in any case; this one serves if it should not.
	domain.GenID = &libvirtxml.DomainGenID{Value: uuid.NewString()}
	domain.OS.Kernel, domain.OS.Initrd = spec.Kernel, spec.Initrd
	return marshalForked(&domain, spec)
}

// marshalForked gives the devices the guest's own paths and tap.
func marshalForked(domain *libvirtxml.Domain, spec Spec) (string, error) {
	devices := domain.Devices
	counts := [4]int{len(devices.Serials), len(devices.Channels), len(devices.Disks), len(devices.Interfaces)}
	want := [4]int{1, 1, 0, 0}
	if spec.Root != "" {
		want[2] = 1
	}
	if spec.Tap != "" {
		want[3] = 1
	}
	if counts != want {
		return "", fmt.Errorf("the template has %v serial ports, channels, disks and networks, the guest is to have %v", counts, want)
	}
	console := &libvirtxml.DomainChardevSource{File: &libvirtxml.DomainChardevSourceFile{Path: spec.Console, Append: "on"}}
	devices.Serials[0].Source = console
	for i := range devices.Consoles { // libvirt shows the first serial port as a console, too
		devices.Consoles[i].Source = console
	}
	devices.Channels[0].Source = &libvirtxml.DomainChardevSource{
		UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind", Path: spec.Channel},
	}
	if spec.Root != "" {
		devices.Disks[0].Source = &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: spec.Root}}
	}
	if spec.Tap != "" {
		devices.Interfaces[0].Target = &libvirtxml.DomainInterfaceTarget{Dev: spec.Tap, Managed: "no"}
	}
	return domain.Marshal()
}

// kib is an amount of memory in KiB; libvirt writes its own XML in those.
func kib(m *libvirtxml.DomainMemory) uint64 {
	switch m.Unit {
	case "MiB":
		return uint64(m.Value) * 1024
	case "", "KiB":
		return uint64(m.Value)
	}
	return 0
}
