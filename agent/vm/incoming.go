package vm

// incoming.go - looks at the description of a guest that comes in. The source's libvirt writes it, and this host's libvirt does what
// it says: opens files, passes arguments to QEMU, chooses whether QEMU is confined.

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Incoming returns the description to use for a guest that comes in, given the one that the source has sent. It fails if that is
// another one than this host would give the guest. Of what libvirt adds to a description, the guest needs the devices' addresses, which are
// kept. What package libvirtxml does not know is left out.
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
	used, err := sent.Marshal()
	if err != nil {
		return "", err
	}
	var lines [2][]string
	for i, d := range []*libvirtxml.Domain{own, sent} {
		bare(d)
		text, err := d.Marshal()
		if err != nil {
			return "", err
		}
		lines[i] = strings.Split(text, "\n")
	}
	if i := slices.IndexFunc(lines[1], func(line string) bool { return !slices.Contains(lines[0], line) }); i >= 0 {
		return "", fmt.Errorf("the description of guest %s has %q, which it has not here", spec.Name, strings.TrimSpace(lines[1][i]))
	}
	if !slices.Equal(lines[0], lines[1]) {
		return "", fmt.Errorf("the description of guest %s has other parts than here", spec.Name)
	}
	return used, nil
}

// bare takes from a description what libvirt adds, and what does not concern the host: the CPU's features and topology, which QEMU
// emulates or refuses, and where the guest finds its devices.
func bare(d *libvirtxml.Domain) {
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
	// Whoever names no label has QEMU confined as the host does it. Others could choose QEMU's user.
	d.SecLabel = slices.DeleteFunc(d.SecLabel, func(s libvirtxml.DomainSecLabel) bool {
		return s.Type == "dynamic" && s.Label == "" && s.BaseLabel == "" && s.ImageLabel == "" && s.Relabel != "no"
	})
	if d.Devices != nil {
		bareDevices(d.Devices)
	}
}

// noBackingStore is what libvirt writes of an image that stands alone.
var noBackingStore = &libvirtxml.DomainDiskBackingStore{Source: &libvirtxml.DomainDiskSource{}}

func bareDevices(d *libvirtxml.DomainDeviceList) {
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
	d.Consoles = slices.DeleteFunc(d.Consoles, func(c libvirtxml.DomainConsole) bool { // libvirt names the serial port twice
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

// sameFile reports whether two devices write to one file, and do nothing else.
func sameFile(a, b *libvirtxml.DomainChardevSource) bool {
	return a != nil && b != nil && a.File != nil && b.File != nil && a.File.Path == b.File.Path && a.File.SecLabel == nil
}
