package vm

// incoming.go - checks the description of an incoming guest. The source's libvirt writes it, and this host's libvirt obeys
// it: it opens files, passes arguments to QEMU, and chooses whether QEMU is confined.

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Incoming takes the source's description of an incoming guest, and returns the one to use. It fails if this host would
// describe the guest otherwise. Of libvirt's additions to a description, it keeps the devices' addresses, which the guest
// needs. It drops parts that package libvirtxml does not know.
func (l *Libvirt) Incoming(spec Spec, text string) (string, error) {
	host := l.hostFacts()
	if host == nil {
		return "", fmt.Errorf("guest %s comes in: %w", spec.Name, ErrUnavailable)
	}
	return incoming(spec, host, text)
}

func incoming(spec Spec, host *hostFacts, text string) (string, error) {
	own, err := newDomain(spec, host)
	if err != nil {
		return "", err
	}
	sent := &libvirtxml.Domain{}
	if err := sent.Unmarshal(text); err != nil {
		return "", fmt.Errorf("the description of guest %s cannot be read: %w", spec.Name, err)
	}
	if sent.CPU != nil {
		if err := checkNames(sent.CPU); err != nil {
			return "", fmt.Errorf("the description of guest %s: %w", spec.Name, err)
		}
	}
	used, err := sent.Marshal()
	if err != nil {
		return "", err
	}
	var lines [2][]string
	for i, d := range []*libvirtxml.Domain{own, sent} {
		normalize(d)
		text, err := d.Marshal()
		if err != nil {
			return "", err
		}
		lines[i] = strings.Split(text, "\n")
	}
	if i := slices.IndexFunc(lines[1], func(line string) bool { return !slices.Contains(lines[0], line) }); i >= 0 {
		return "", fmt.Errorf("the description of guest %s contains %q, which this host's own description does not have", spec.Name, strings.TrimSpace(lines[1][i]))
	}
	if !slices.Equal(lines[0], lines[1]) {
		return "", fmt.Errorf("the description of guest %s differs from this host's own", spec.Name)
	}
	return used, nil
}

// normalize removes from a description libvirt's additions, and parts that do not concern the host: the CPU's features and
// topology, which QEMU emulates or refuses, and the devices' addresses.
func normalize(d *libvirtxml.Domain) {
	d.GenID = nil
	if d.Resource != nil && *d.Resource == (libvirtxml.DomainResource{Partition: "/machine"}) {
		d.Resource = nil
	}
	if d.OS != nil {
		d.OS.BootDevices = slices.DeleteFunc(d.OS.BootDevices, func(b libvirtxml.DomainBootDevice) bool { return b.Dev == "hd" })
	}
	if cpu := d.CPU; cpu != nil {
		d.CPU = &libvirtxml.DomainCPU{Cache: cpu.Cache, MaxPhysAddr: cpu.MaxPhysAddr, Numa: cpu.Numa}
	}
	if d.Features != nil && d.Features.TCG != nil && d.Features.TCG.TBCache != nil && d.Features.TCG.TBCache.Unit == "MiB" {
		d.Features.TCG.TBCache = &libvirtxml.DomainFeatureTCGTBCache{Size: d.Features.TCG.TBCache.Size << 10, Unit: "KiB"}
	}
	// Without a label, QEMU is confined as the host does it. A label could choose QEMU's user.
	d.SecLabel = slices.DeleteFunc(d.SecLabel, func(s libvirtxml.DomainSecLabel) bool {
		return s.Type == "dynamic" && s.Label == "" && s.BaseLabel == "" && s.ImageLabel == "" && s.Relabel != "no"
	})
	if d.Devices != nil {
		normalizeDevices(d.Devices)
	}
}

// noBackingStore is libvirt's element for an image without a backing file.
var noBackingStore = &libvirtxml.DomainDiskBackingStore{Source: &libvirtxml.DomainDiskSource{}}

func normalizeDevices(d *libvirtxml.DomainDeviceList) {
	for i := range d.Disks {
		disk := &d.Disks[i]
		disk.Address, disk.Alias = nil, nil
		if reflect.DeepEqual(disk.BackingStore, noBackingStore) {
			disk.BackingStore = nil
		}
	}
	d.Controllers = slices.DeleteFunc(d.Controllers, func(c libvirtxml.DomainController) bool {
		c.Address, c.Alias, c.Index = nil, nil, nil
		return reflect.DeepEqual(c, libvirtxml.DomainController{Type: "virtio-serial", VirtIOSerial: &libvirtxml.DomainControllerVirtIOSerial{}})
	})
	for i := range d.Controllers {
		d.Controllers[i].Address, d.Controllers[i].Alias, d.Controllers[i].Index = nil, nil, nil
	}
	for i := range d.Interfaces {
		d.Interfaces[i].Address, d.Interfaces[i].Alias = nil, nil
	}
	for i := range d.Serials {
		d.Serials[i].Alias = nil
		if d.Serials[i].Target != nil {
			d.Serials[i].Target.Model = nil
		}
	}
	d.Consoles = slices.DeleteFunc(d.Consoles, func(c libvirtxml.DomainConsole) bool { // libvirt lists the serial port twice
		return len(d.Serials) == 1 && c.TTY == "" && c.Target != nil && c.Target.Type == "serial" && sameFile(c.Source, d.Serials[0].Source)
	})
	for i := range d.Channels {
		d.Channels[i].Address, d.Channels[i].Alias = nil, nil
	}
	d.Inputs = slices.DeleteFunc(d.Inputs, func(i libvirtxml.DomainInput) bool {
		return (i.Type == "mouse" || i.Type == "keyboard") && i.Bus == "ps2"
	})
	d.Audios = slices.DeleteFunc(d.Audios, func(a libvirtxml.DomainAudio) bool { return a.None != nil })
	for i := range d.RNGs {
		d.RNGs[i].Address, d.RNGs[i].Alias = nil, nil
	}
}

// sameFile reports whether two devices write to the same file, and have no other effect.
func sameFile(a, b *libvirtxml.DomainChardevSource) bool {
	return a != nil && b != nil && a.File != nil && b.File != nil && a.File.Path == b.File.Path && a.File.SecLabel == nil
}
