// QEMU's command line for a machine. What is in it decides what a saved state fits: template.go hashes it.

package machine

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// Paths in the folder of a machine.
const (
	diskFile     = "disk.qcow2"
	identityFile = "identity.img"
	consoleFile  = "log/console.log"
	emulatorFile = "log/emulator.log"
	reportFile   = "report"
	monitorFile  = "monitor"
)

// launch says how QEMU is started.
type launch struct {
	spec     Spec
	template string // folder of the kernel and the initrd
	dir      string // the machine's folder
	memory   string // folder of the files that are its memory; empty: none, memory is anonymous
	save     bool   // what the machine writes to memory goes to those files
	restore  bool   // QEMU waits for a state
	tap      string
	uuid     uuid.UUID
	mac      string
	kernel   []string // more arguments of the kernel
}

// kernelArguments: no_timer_check avoids a panic at boot when ticks come late under emulation, tsc=reliable a search
// for a better clock. Guests under emulation have both, too.
// The tick is periodic (nohz, highres): QEMU changes the word of pending interrupts without a lock when a guest under SVM
// is entered or left, and seems to lose one now and then until the next one arrives. With single-shot timers no next one
// arrived, and the machine hung.
const kernelArguments = "nohz=off highres=off root=LABEL=" + rootLabel + " rw quiet console=ttyS0 intel_iommu=on iommu=pt tsc=reliable no_timer_check"

// arguments are QEMU's.
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
		args = append(args, "-no-reboot") // a panic ends it at once
	}
	if l.restore {
		args = append(args, "-incoming", "defer")
	}
	return args
}

// cells gives each NUMA cell an equal part of the memory and of the processors, which are sockets: Linux takes the
// processors of a socket for neighbours.
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

// escape writes a value of QEMU's options.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }
