// QEMU's command line for a machine. A saved state fits only the command line it was saved with: template.go hashes it.

package machine

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// Paths in a machine's directory.
const (
	diskFile     = "disk.qcow2"
	identityFile = "identity.img"
	consoleFile  = "log/console.log"
	emulatorFile = "log/emulator.log"
	reportFile   = "report"
	monitorFile  = "monitor"
)

// launch describes one start of QEMU.
type launch struct {
	spec     Spec
	template string // directory of the kernel and the initrd
	dir      string // the machine's directory
	memory   string // directory of the files that hold its memory; empty: anonymous memory
	save     bool   // the machine's writes to memory go to those files
	restore  bool   // QEMU waits for a state
	tap      string
	uuid     uuid.UUID
	mac      string
	kernel   []string // additional kernel arguments
}

// kernelArguments are the kernel's command line. no_timer_check avoids a panic at boot if ticks come late under
// emulation; tsc=reliable avoids the search for a better clock. Emulated guests have both, too.
//
// nohz=off and highres=off make the tick periodic. QEMU changes the word of pending interrupts without a lock when it
// enters or leaves a nested guest, and seems to lose an interrupt now and then. A periodic tick recovers with the next
// one; with single-shot timers no next interrupt came and the machine hung.
const kernelArguments = "nohz=off highres=off root=LABEL=" + rootLabel + " rw quiet console=ttyS0 intel_iommu=on iommu=pt tsc=reliable no_timer_check"

// arguments returns QEMU's arguments.
func (l launch) arguments() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", l.spec.Model,
		"-m", fmt.Sprintf("%dM", l.spec.Memory), "-rtc", "base=utc",
		"-smp", fmt.Sprintf("%d,sockets=%d", l.spec.CPUs(), l.spec.Cells),
	}
	args = append(args, l.cells()...)
	args = append(args,
		"-uuid", l.uuid.String(), "-device", "vmgenid,guid=auto", "-device", "intel-iommu,intremap=on,caching-mode=on",
		"-chardev", l.file("console", consoleFile)+",append=on", "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", l.file("report", reportFile)+",append=on", "-device", "virtserialport,chardev=report,name=watari.lab.report",
		"-drive", "if=none,id=root,format=qcow2,file="+escape(filepath.Join(l.dir, diskFile)),
		"-device", "virtio-blk-pci,drive=root,serial="+rootLabel,
		"-drive", "if=none,id=identity,format=raw,readonly=on,file="+escape(filepath.Join(l.dir, identityFile)),
		"-device", "virtio-blk-pci,drive=identity,serial=watari-identity",
		"-netdev", "tap,id=lan,script=no,downscript=no,vnet_hdr=on,ifname="+l.tap,
		"-device", "virtio-net-pci,netdev=lan,romfile=,mac="+l.mac,
		"-qmp", "unix:"+escape(filepath.Join(l.dir, monitorFile))+",server=on,wait=off",
		"-kernel", filepath.Join(l.template, kernelFile), "-initrd", filepath.Join(l.template, initrdFile),
		"-append", strings.Join(append([]string{kernelArguments}, l.kernel...), " "),
	)
	if l.save {
		args = append(args, "-no-reboot") // a kernel panic ends QEMU at once
	}
	if l.restore {
		args = append(args, "-incoming", "defer")
	}
	return args
}

// cells gives each NUMA cell an equal part of the memory and of the CPUs. Each CPU is a socket, because Linux treats
// the CPUs of one socket as neighbours.
func (l launch) cells() []string {
	var args []string
	perCell := l.spec.CPUs() / l.spec.Cells
	for cell := range l.spec.Cells {
		backend := fmt.Sprintf("memory-backend-ram,id=ram%d,size=%dM", cell, l.spec.Memory/uint64(l.spec.Cells))
		if l.memory != "" {
			share := "off"
			if l.save {
				share = "on"
			}
			backend = fmt.Sprintf("memory-backend-file,id=ram%d,size=%dM,share=%s,mem-path=%s", cell,
				l.spec.Memory/uint64(l.spec.Cells), share, escape(filepath.Join(l.memory, fmt.Sprintf("ram%d", cell))))
		}
		first := cell * perCell
		args = append(args, "-object", backend,
			"-numa", fmt.Sprintf("node,nodeid=%d,memdev=ram%[1]d,cpus=%d-%d", cell, first, first+perCell-1))
	}
	return args
}

func (l launch) file(id, name string) string {
	return "file,id=" + id + ",path=" + escape(filepath.Join(l.dir, name))
}

// escape quotes a value in QEMU's options.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }
