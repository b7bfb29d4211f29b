package core

// prefixes.go - network prefixes of new clusters, and the addresses in them.

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

const (
	// firstAddress is the distance of guest 0's address from the first address of the prefix.
	firstAddress = 10
	// longestPrefix is the prefix length of small clusters, in bits.
	longestPrefix = 24
)

// prefixBits returns the length of the smallest prefix for a number of guests. No guest gets the last address.
func prefixBits(guests int) int {
	return min(longestPrefix, 32-bits.Len(uint(firstAddress+guests)))
}

// guestAddress returns the address of a cluster's i-th guest.
func guestAddress(prefix netip.Prefix, i int) netip.Addr {
	return addressOf(number(prefix.Addr()) + firstAddress + uint64(i))
}

// freePrefix returns the first free prefix for a number of guests within whole. The prefix of a cluster that is being deleted
// stays taken until the cluster is gone.
func freePrefix(whole netip.Prefix, s *Objects, guests int) (netip.Prefix, error) {
	length := prefixBits(guests)
	size := uint64(1) << (32 - length)
	at, end := number(whole.Masked().Addr()), lastOf(whole)+1
	for _, taken := range takenPrefixes(s) {
		first, last := number(taken.Addr()), lastOf(taken)
		if first >= at+size {
			break
		}
		if last >= at {
			at = (last + size) / size * size // the next multiple of size
		}
	}
	if at+size > end {
		return netip.Prefix{}, refuse(Exhausted, "no /%d of %s is free for %d guests; delete some clusters, or start the manager with a larger --prefix",
			length, whole, guests)
	}
	return netip.PrefixFrom(addressOf(at), length), nil
}

// takenPrefixes returns the clusters' prefixes, by address.
func takenPrefixes(s *Objects) []netip.Prefix {
	taken := make([]netip.Prefix, 0, len(s.Clusters))
	for _, c := range s.Clusters {
		if p, err := netip.ParsePrefix(c.Prefix); err == nil && p.Addr().Is4() {
			taken = append(taken, p.Masked())
		}
	}
	slices.SortFunc(taken, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return taken
}

// number returns an IPv4 address as a number, which leaves room to count beyond the last one.
func number(a netip.Addr) uint64 {
	b := a.As4()
	return uint64(binary.BigEndian.Uint32(b[:]))
}

func addressOf(n uint64) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(n))
	return netip.AddrFrom4(b)
}

// lastOf returns the number of a prefix's last address.
func lastOf(p netip.Prefix) uint64 { return number(p.Masked().Addr()) + 1<<(32-p.Bits()) - 1 }
