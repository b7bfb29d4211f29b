package accel

// kvm_amd64.go - the trial guest: seven bytes of real-mode code, by KVM's ioctls (Linux, virt/kvm/api).

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	kvmGetAPIVersion       = 0xAE00
	kvmCreateVM            = 0xAE01
	kvmGetVCPUMmapSize     = 0xAE04
	kvmCreateVCPU          = 0xAE41
	kvmSetUserMemoryRegion = 0x4020AE46
	kvmRun                 = 0xAE80
	kvmSetRegs             = 0x4090AE82
	kvmGetSregs            = 0x8138AE83
	kvmSetSregs            = 0x4138AE84

	kvmExitIO  = 2
	kvmExitHlt = 5
	// kvmRunExitReason is the offset of exit_reason in struct kvm_run.
	kvmRunExitReason = 8
)

type kvmRegs struct {
	rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp uint64
	r8, r9, r10, r11, r12, r13, r14, r15   uint64
	rip, rflags                            uint64
}

type kvmMemoryRegion struct {
	slot, flags            uint32
	guest, size, userspace uint64
}

// trialCode is: mov $'W',%al; out %al,$0x10; hlt; and a second hlt should the first not stop it.
var trialCode = []byte{0xB0, 'W', 0xE6, 0x10, 0xF4, 0xF4}

const trialCodeAt = 0x1000

func ioctl(fd int, request uint, arg uintptr, what string) (int, error) {
	for {
		result, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), arg)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, fmt.Errorf("%s: %w", what, errno)
		}
		return int(result), nil
	}
}

// runTrialGuest makes a guest that writes to a port and halts, and runs it. It may hang where KVM is broken.
func runTrialGuest(device string) error {
	kvm, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", device, err)
	}
	defer unix.Close(kvm)
	if version, err := ioctl(kvm, kvmGetAPIVersion, 0, "ask for KVM's API version"); err != nil {
		return err
	} else if version != 12 {
		return fmt.Errorf("KVM's API version is %d, not 12", version)
	}
	vm, err := ioctl(kvm, kvmCreateVM, 0, "create a VM")
	if err != nil {
		return err
	}
	defer unix.Close(vm)
	memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("allocate guest memory: %w", err)
	}
	defer unix.Munmap(memory)
	copy(memory, trialCode)
	region := kvmMemoryRegion{guest: trialCodeAt, size: 4096, userspace: uint64(uintptr(unsafe.Pointer(&memory[0])))}
	if _, err := ioctl(vm, kvmSetUserMemoryRegion, uintptr(unsafe.Pointer(&region)), "give the VM memory"); err != nil {
		return err
	}
	return runTrialVCPU(kvm, vm)
}

func runTrialVCPU(kvm, vm int) error {
	vcpu, err := ioctl(vm, kvmCreateVCPU, 0, "create a vCPU")
	if err != nil {
		return err
	}
	defer unix.Close(vcpu)
	size, err := ioctl(kvm, kvmGetVCPUMmapSize, 0, "ask for the size of a vCPU's state")
	if err != nil {
		return err
	}
	run, err := unix.Mmap(vcpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the vCPU's state: %w", err)
	}
	defer unix.Munmap(run)
	// struct kvm_sregs begins with cs, a struct kvm_segment: base (8 bytes), limit (4), selector (2), ...
	var sregs [0x138]byte
	if _, err := ioctl(vcpu, kvmGetSregs, uintptr(unsafe.Pointer(&sregs[0])), "read the vCPU's segments"); err != nil {
		return err
	}
	clear(sregs[0:8])
	clear(sregs[12:14])
	if _, err := ioctl(vcpu, kvmSetSregs, uintptr(unsafe.Pointer(&sregs[0])), "set the vCPU's segments"); err != nil {
		return err
	}
	regs := kvmRegs{rip: trialCodeAt, rflags: 2}
	if _, err := ioctl(vcpu, kvmSetRegs, uintptr(unsafe.Pointer(&regs)), "set the vCPU's registers"); err != nil {
		return err
	}
	for _, want := range []uint32{kvmExitIO, kvmExitHlt} {
		if _, err := ioctl(vcpu, kvmRun, 0, "run the vCPU"); err != nil {
			return err
		}
		if got := *(*uint32)(unsafe.Pointer(&run[kvmRunExitReason])); got != want {
			return fmt.Errorf("the vCPU left with KVM exit reason %d, not %d", got, want)
		}
	}
	return nil
}
