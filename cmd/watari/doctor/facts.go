package doctor

// facts.go - the facts about a machine, before they are judged.

import (
	"time"

	"watari/cmd/internal/probe"
)

// Facts are the facts found on a machine. Judge uses nothing else.
type Facts struct {
	Root bool // read as root; otherwise some facts are missing

	CPUFlag      string // "vmx", "svm", or "" for a CPU without hardware virtualisation
	KVMDevice    bool   // /dev/kvm exists
	NestedPaging string // parameter of the kvm module: "Y", "1", "N", "0"; "": the module is not loaded

	AgentProgram  string      // path of watari-agent; "": not found
	Probe         *probe.Host // result of its probe; nil: it was not run, or failed
	ProbeError    string
	LibvirtSocket string // a socket on which libvirt answers; "": none
	Libvirtd      bool   // the program libvirtd exists; watari up can start it

	Nftables     bool     // the program nft exists
	ForwardDrops []string // packet filters that drop forwarded packets by default, as "table chain"

	ClockSynchronised bool
	ClockError        time.Duration // maximum error of the clock, if it is synchronised

	LANInterface string // interface of the default route; "": none
	LANMTU       int    // bytes

	CgroupV2 bool // only version 2 is mounted

	UnprivilegedUserfaultfd string // vm.unprivileged_userfaultfd; "": the kernel has no such setting
	UserfaultfdDevice       bool   // /dev/userfaultfd exists

	HugePages            uint64 // free huge pages of the default size
	TransparentHugePages string // "always", "madvise", "never"; "": the kernel has no such setting

	Memory, MemoryAvailable uint64 // bytes
	DiskAvailable           uint64 // bytes, on the disk of Watari's state
	StateFolder             string

	Ports []Port // the ports that Watari uses
}

// Port is a port that Watari uses.
type Port struct {
	Network string // "tcp" or "udp"
	Number  int
	Use     string // purpose, for people
	Role    Role   // role of the machines that need it
	Taken   bool
	Owner   string // the program that uses it; "": unknown, or the kernel
}
