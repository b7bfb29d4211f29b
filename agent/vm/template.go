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

// SaveTemplate saves the domain's state to path and ends the domain. The file appears complete and on disk, or not at
// all. After an error the domain may still exist, and the caller must end it.
func (l *Libvirt) SaveTemplate(ctx context.Context, uid, path string) error {
	part := path + ".part"
	ctx, cancel := context.WithTimeout(ctx, saveTime)
	defer cancel()
	err := l.callAlone(ctx, 0, onDomain(ctx, uid, func(domain *libvirt.Domain) error { return domain.Save(part) }))
	if err == nil {
		err = putInPlace(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("save domain %s as template: %w", uid, err)
	}
	return nil
}

// putInPlace checks that the file is a save file of the known format, and renames it durably.
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

// Fork creates the guest's domain from a template with the guest's key. The guest continues from the template's saved
// state. The tap must exist. The guest has the template's memory and MAC address, and a new generation ID; the guest
// agent must then give it its own identity and new entropy. Fork fails with ErrTemplateUnusable if the template may be
// the cause. The caller then boots the guest and makes the template again. After ErrUnavailable the domain may still
// appear, as with Boot.
func (l *Libvirt) Fork(ctx context.Context, spec Spec, template string) error {
	own := template + "." + spec.UID
	if err := l.restore(ctx, spec, template, own, libvirt.DOMAIN_SAVE_RUNNING); err != nil {
		return fmt.Errorf("fork guest %s from %s: %w", spec.Name, template, err)
	}
	return nil
}

// Restore creates the guest's domain from a file with the guest's own state, which was read from a Snapshot. The guest is
// paused; Resume continues it from that state. The conditions of Fork apply here, too; the guest keeps its identity, but its
// clock must be set. Restore changes the file. The caller must know that no copy of the guest exists.
func (l *Libvirt) Restore(ctx context.Context, spec Spec, path string) error {
	if err := l.restore(ctx, spec, path, path, libvirt.DOMAIN_SAVE_PAUSED); err != nil {
		return fmt.Errorf("restore guest %s from %s: %w", spec.Name, path, err)
	}
	return nil
}

// restore restores a domain from a save file. It writes the guest's own domain into the file at own: the same file, or
// a copy that it makes and removes.
func (l *Libvirt) restore(ctx context.Context, spec Spec, saved, own string, flags libvirt.DomainSaveRestoreFlags) error {
	host := l.hostFacts()
	if host == nil {
		return ErrUnavailable
	}
	domain, err := newDomain(spec, host)
	if err != nil {
		return err
	}
	mode := os.O_RDONLY
	if own == saved {
		mode = os.O_RDWR
	}
	file, err := os.OpenFile(saved, mode, 0)
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
	if own == saved {
		_, err = file.WriteAt(start, 0)
	} else {
		defer os.Remove(own)
		err = copyWithStart(own, file, start)
	}
	if err != nil {
		return fmt.Errorf("write the guest's domain: %w", err)
	}
	err = l.create(ctx, spec.UID, restoreTime, func(conn *libvirt.Connect) error {
		return conn.DomainRestoreFlags(own, "", flags)
	})
	var e libvirt.Error
	if errors.As(err, &e) && !errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: %v", ErrTemplateUnusable, err)
	}
	return err
}

// copyWithStart copies a file and replaces its first bytes by start. The kernel copies the rest (copy_file_range), or
// shares the blocks if the file system can.
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

// forkedXML turns the domain with which a guest would boot into one that restores a template of the guest's shape. It
// takes only two things from the template, without which QEMU cannot read the saved state: the CPU as libvirt has
// completed it, and the devices' addresses on their buses. So a template from another host brings only the guest's own
// state to this host.
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
	// libvirt makes a new generation ID at each restore. This ID is for the case that it does not.
	own.GenID.Value = uuid.NewString()
	if err := placeDevices(own.Devices, saved.Devices); err != nil {
		return "", err
	}
	return own.Marshal()
}

// cpuNames matches the names of CPU models, vendors and features. libvirt puts features into QEMU's command line, so
// other characters must not pass.
var cpuNames = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// checkNames refuses a CPU with a name that does not match cpuNames.
func checkNames(cpu *libvirtxml.DomainCPU) error {
	names := []string{cpu.Vendor}
	if cpu.Model != nil {
		names = append(names, cpu.Model.Value, cpu.Model.VendorID)
	}
	for _, feature := range cpu.Features {
		names = append(names, feature.Name)
	}
	for _, name := range names {
		if name != "" && !cpuNames.MatchString(name) {
			return fmt.Errorf("the CPU has %q for the name of its model or of a feature", name)
		}
	}
	return nil
}

// placeDevices gives a guest's devices the addresses of the template's devices, and adds the controllers that libvirt
// has added to the template.
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

// kib returns an amount of memory in KiB, the unit of libvirt's own XML.
func kib(m *libvirtxml.DomainMemory) uint64 {
	switch m.Unit {
	case "MiB":
		return uint64(m.Value) * 1024
	case "", "KiB":
		return uint64(m.Value)
	}
	return 0
}
