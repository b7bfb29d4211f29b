package doctor

// facts.go - what is known of a machine before anything is judged.

import (
	"time"

	"watari/cmd/internal/probe"
)

// Facts are what was found on a machine. Judging them needs nothing else.
type Facts struct {
	Root bool // whether root has looked: some facts are missing otherwise

	CPUFlag      string // "vmx", "svm", or "" for a CPU without hardware virtualisation
	KVMDevice    bool   // /dev/kvm exists
	NestedPaging string // what the kvm module says of it: "Y", "1", "N", "0"; "": the module is not loaded

	AgentProgram  string      // watari-agent's path; "": there is none
	Probe         *probe.Host // what it found out; nil: it was not asked, or failed
	ProbeError    string
	LibvirtSocket string // that answers; "": none does
	Libvirtd      bool   // the program libvirtd is there, which watari up can start

	Nftables     bool     // the program nft is there
	ForwardDrops []string // packet filters that drop forwarded packets by default, as "table chain"

	ClockSynchronised bool
	ClockError        time.Duration // the most that the clock may be off, if it is synchronised

	LANInterface string // the default route's; "": there is none
	LANMTU       int    // bytes

	CgroupV2 bool // version 2 alone is mounted

	UnprivilegedUserfaultfd string // vm.unprivileged_userfaultfd; "": the kernel has none
	UserfaultfdDevice       bool   // /dev/userfaultfd exists

	HugePages            uint64 // free ones, of the default size
	TransparentHugePages string // "always", "madvise", "never"; "": the kernel has none

	Memory, MemoryAvailable uint64 // bytes
	DiskAvailable           uint64 // bytes, where Watari keeps its state
	StateFolder             string

	Ports []Port // those that Watari wants
}

// Port is one that Watari wants.
type Port struct {
	Network string // "tcp" or "udp"
	Number  int
	Use     string // for people
	Role    Role   // of the machine that needs it
	Taken   bool
	Owner   string // the program that has it; "": not known, or the kernel
}
