package vm

// template.go - templates: a booted guest's saved state, from which other guests are forked.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

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
	host := l.hostFacts()
	if host == nil {
		return ErrUnavailable
	}
	domain, err := newDomain(spec, host)
	if err != nil {
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
	text, err := forkedXML(head.xml, domain)
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
	err = l.create(ctx, spec.UID, restoreTime, func(conn *libvirt.Connect) error {
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

// forkedXML makes the domain that a guest would be booted with one that is restored from a template of its shape. It takes
// from the template only what QEMU must have to read the saved state: the CPU as libvirt has completed it, and where on
// their buses the devices are. So a template made on another host brings nothing onto this one but the guest's own state.
func forkedXML(template string, own *libvirtxml.Domain) (string, error) {
	var saved libvirtxml.Domain
	if err := saved.Unmarshal(template); err != nil {
		return "", fmt.Errorf("read the template's domain: %w", err)
	}
	switch {
	case saved.OS == nil || saved.OS.Type == nil || saved.Devices == nil || saved.VCPU == nil || saved.Memory == nil || saved.CPU == nil:
		return "", errors.New("the template's domain lacks parts")
	case saved.VCPU.Value != own.VCPU.Value, kib(saved.Memory) != kib(own.Memory):
		return "", fmt.Errorf("the template has %d vCPUs and %d KiB of memory, the guest is to have %d and %d",
			saved.VCPU.Value, kib(saved.Memory), own.VCPU.Value, kib(own.Memory))
	case saved.Type != own.Type, saved.OS.Type.Machine != own.OS.Type.Machine:
		return "", fmt.Errorf("the template is of type %s with machine type %s, the guest is to be %s with %s",
			saved.Type, saved.OS.Type.Machine, own.Type, own.OS.Type.Machine)
	}
	if err := checkNames(saved.CPU); err != nil {
		return "", err
	}
	own.CPU = saved.CPU
	own.CPU.Numa = nil
	// libvirt makes a new generation ID at each restore in any case; this one serves if it should not.
	own.GenID.Value = uuid.NewString()
	if err := placeDevices(own.Devices, saved.Devices); err != nil {
		return "", err
	}
	return own.Marshal()
}

// cpuNames are the forms of CPU models, vendors and features. libvirt passes features on to QEMU's command line.
var cpuNames = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// checkNames refuses a CPU that has anything else for a name.
func checkNames(cpu *libvirtxml.DomainCPU) error {
	var names []string
	if cpu.Model != nil {
		names = append(names, cpu.Model.Value)
	}
	for _, feature := range cpu.Features {
		names = append(names, feature.Name)
	}
	for _, name := range names {
		if name != "" && !cpuNames.MatchString(name) {
			return fmt.Errorf("the template's CPU has %q for the name of its model or of a feature", name)
		}
	}
	return nil
}

// placeDevices puts a guest's devices where a template's are, with the controllers that libvirt has given that.
func placeDevices(own, saved *libvirtxml.DomainDeviceList) error {
	counts := func(d *libvirtxml.DomainDeviceList) [5]int {
		return [5]int{len(d.Serials), len(d.Channels), len(d.Disks), len(d.Interfaces), len(d.RNGs)}
	}
	if had, want := counts(saved), counts(own); had != want {
		return fmt.Errorf("the template has %v serial ports, channels, disks, networks and sources of randomness, the guest is to have %v", had, want)
	}
	own.Controllers = nil
	for _, c := range saved.Controllers {
		own.Controllers = append(own.Controllers, libvirtxml.DomainController{Type: c.Type, Index: c.Index, Model: c.Model, Address: c.Address})
	}
	for i := range own.Serials {
		own.Serials[i].Address = saved.Serials[i].Address
	}
	for i := range own.Channels {
		own.Channels[i].Address = saved.Channels[i].Address
	}
	for i := range own.Disks {
		own.Disks[i].Address = saved.Disks[i].Address
	}
	for i := range own.Interfaces {
		own.Interfaces[i].Address = saved.Interfaces[i].Address
	}
	for i := range own.RNGs {
		own.RNGs[i].Address = saved.RNGs[i].Address
	}
	return nil
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
