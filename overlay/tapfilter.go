// tapfilter.go filters at each guest's tap, below IP. These programs do not depend on the packet filter: a firewall that an
// administrator reloads removes nftables' tables, but not these programs. They do not depend on the agent either.
package overlay

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Results of a program at a tap (linux/pkt_cls.h).
const (
	tcPass = 0
	tcDrop = 2
)

// Fields of struct __sk_buff (linux/bpf.h).
const (
	skbLength = 0
	skbVLAN   = 20
)

// Offsets in a frame: Ethernet without a VLAN tag, and IPv4 without options where a program reads a port or a type.
const (
	atTarget      = 0  // MAC
	atSource      = 6  // MAC
	atType        = 12 // of Ethernet
	atVersion     = 14 // of IP, and the size of its header
	atFragment    = 20
	atProtocol    = 23
	atSourceIP    = 26
	atTargetIP    = 30
	endOfIP       = 34
	atICMPType    = 34
	atTargetPort  = 36
	endOfPorts    = 38
	plainHeader   = 0x45   // IPv4, 20 bytes
	fragmentPlace = 0x1fff // not the first fragment
)

const (
	icmpUnreachable  = 3
	icmpEchoRequest  = 8
	icmpTimeExceeded = 11
)

// fromGuest returns the program for a guest's frames. A frame passes if it comes from the guest's own MAC and IPv4 address,
// and goes to the gateway's MAC. Its IP destination must be an address of the cluster, or the gateway's for an echo request
// or one of these TCP ports. No other frame passes, including ARP, IPv6 and VLAN.
func fromGuest(g Guest, ports []uint16) asm.Instructions {
	program := begin()
	program = append(program, wants(atType, asm.Half, unix.ETH_P_IP)...)
	program = append(program, wantsMAC(atSource, g.MAC)...)
	program = append(program, wantsMAC(atTarget, GatewayMAC)...)
	program = append(program, wants(atSourceIP, asm.Word, number(g.Address))...)
	program = append(program,
		asm.LoadAbs(atTargetIP, asm.Word),
		asm.JEq.Imm32(asm.R0, int32(number(Gateway)), "gateway"))
	program = append(program, wantsPrefix(g.Prefix)...)
	program = append(program, pass("pass")...)

	program = append(program, asm.LoadAbs(atVersion, asm.Byte).WithSymbol("gateway"), asm.JNE.Imm(asm.R0, plainHeader, "drop"),
		asm.LoadAbs(atFragment, asm.Half), asm.And.Imm(asm.R0, fragmentPlace), asm.JNE.Imm(asm.R0, 0, "drop"))
	program = append(program, wantsLength(endOfPorts)...)
	program = append(program,
		asm.LoadAbs(atProtocol, asm.Byte),
		asm.JEq.Imm(asm.R0, unix.IPPROTO_ICMP, "echo"),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "drop"),
		asm.LoadAbs(atTargetPort, asm.Half))
	for _, port := range ports {
		program = append(program, asm.JEq.Imm(asm.R0, int32(port), "pass"))
	}
	program = append(program, asm.Ja.Label("drop"),
		asm.LoadAbs(atICMPType, asm.Byte).WithSymbol("echo"), asm.JEq.Imm(asm.R0, icmpEchoRequest, "pass"))
	return append(program, drop()...)
}

// toGuest returns the program for frames to a guest. They must come from an address of its cluster or from the gateway, or
// be ICMP messages that a packet did not arrive.
func toGuest(g Guest) asm.Instructions {
	program := begin()
	program = append(program, wants(atType, asm.Half, unix.ETH_P_IP)...)
	program = append(program, wants(atTargetIP, asm.Word, number(g.Address))...)
	program = append(program,
		asm.LoadAbs(atProtocol, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_ICMP, "source"),
		asm.LoadAbs(atVersion, asm.Byte), asm.JNE.Imm(asm.R0, plainHeader, "source"),
		asm.LoadMem(asm.R2, asm.R6, skbLength, asm.Word), asm.JLT.Imm(asm.R2, atICMPType+1, "source"),
		asm.LoadAbs(atICMPType, asm.Byte),
		asm.JEq.Imm(asm.R0, icmpUnreachable, "pass"),
		asm.JEq.Imm(asm.R0, icmpTimeExceeded, "pass"),
		asm.LoadAbs(atSourceIP, asm.Word).WithSymbol("source"),
		asm.JEq.Imm32(asm.R0, int32(number(Gateway)), "pass"))
	program = append(program, wantsPrefix(g.Prefix)...)
	program = append(program, pass("pass")...)
	return append(program, drop()...)
}

// begin begins a program. It drops VLAN frames, and frames too short for an IPv4 header, so that the program can read all
// fields of the header.
func begin() asm.Instructions {
	program := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)} // LoadAbs reads from the frame of R6
	program = append(program, wantsLength(endOfIP)...)
	return append(program, asm.LoadMem(asm.R2, asm.R6, skbVLAN, asm.Word), asm.JNE.Imm(asm.R2, 0, "drop"))
}

func wantsLength(least int32) asm.Instructions {
	return asm.Instructions{asm.LoadMem(asm.R2, asm.R6, skbLength, asm.Word), asm.JLT.Imm(asm.R2, least, "drop")}
}

// wants drops frames that have another value at an offset.
func wants(at int32, size asm.Size, value uint32) asm.Instructions {
	return asm.Instructions{asm.LoadAbs(at, size), asm.JNE.Imm32(asm.R0, int32(value), "drop")}
}

func wantsMAC(at int32, mac net.HardwareAddr) asm.Instructions {
	return append(wants(at, asm.Word, binary.BigEndian.Uint32(mac)), wants(at+4, asm.Half, uint32(binary.BigEndian.Uint16(mac[4:])))...)
}

// wantsPrefix drops frames if the address in R0 is not in a prefix.
func wantsPrefix(prefix netip.Prefix) asm.Instructions {
	mask := binary.BigEndian.Uint32(net.CIDRMask(prefix.Bits(), 32))
	return asm.Instructions{asm.And.Imm32(asm.R0, int32(mask)), asm.JNE.Imm32(asm.R0, int32(number(prefix.Masked().Addr())), "drop")}
}

func pass(name string) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, tcPass).WithSymbol(name), asm.Return()}
}

func drop() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, tcDrop).WithSymbol("drop"), asm.Return()}
}

func number(address netip.Addr) uint32 {
	four := address.As4()
	return binary.BigEndian.Uint32(four[:])
}

// guardTap attaches the programs to a guest's tap. It leaves a present program with the same name, and replaces another one
// without a gap.
func (o *Overlay) guardTap(link netlink.Link, g Guest) error {
	ports := slices.Sorted(slices.Values(o.storage[g.UID]))
	name := fmt.Sprintf("watari %x", sha256.Sum256(fmt.Appendf(nil, "1 %s %v", g.alias(), ports)))[:23]
	err := o.guard(link, netlink.HANDLE_MIN_INGRESS, name, func() asm.Instructions { return fromGuest(g, ports) })
	if err == nil {
		err = o.guard(link, netlink.HANDLE_MIN_EGRESS, name, func() asm.Instructions { return toGuest(g) })
	}
	if err != nil {
		return fmt.Errorf("filter at %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// guard attaches a program to one side of a tap, unless a program of that name is already there.
func (o *Overlay) guard(link netlink.Link, parent uint32, name string, write func() asm.Instructions) error {
	if filters, err := o.handle.FilterList(link, parent); err == nil && slices.ContainsFunc(filters, func(f netlink.Filter) bool {
		own, is := f.(*netlink.BpfFilter)
		return is && own.Name == name
	}) {
		return nil
	}
	loaded, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "watari_tap", Type: ebpf.SchedCLS, Instructions: write()})
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	defer loaded.Close()
	index := link.Attrs().Index
	qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index,
		Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := o.handle.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make a place for a program: %w", err)
	}
	filter := &netlink.BpfFilter{Fd: loaded.FD(), Name: name, DirectAction: true, FilterAttrs: netlink.FilterAttrs{LinkIndex: index,
		Parent: parent, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL}}
	if err := o.handle.FilterReplace(filter); err != nil {
		return fmt.Errorf("attach a program: %w", err)
	}
	return nil
}

// guardTaps attaches the programs to all taps that lack them. Check calls it each time, and reports its error. The caller
// holds o.mu.
func (o *Overlay) guardTaps() error {
	var errs []error
	for uid, g := range o.guests {
		link, err := o.handle.LinkByName(TapName(uid))
		if isNotFound(err) {
			continue
		}
		if err == nil {
			err = o.guardTap(link, g)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
