// wire.go connects namespaces.
package nethost

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The main thread does not end with a goroutine that is locked to it, so it must not enter a namespace: it would keep the
// namespace of a host that was killed, and its cables. Locked here, it runs only the main function.
func init() { runtime.LockOSThread() }

// inNamespace runs f on a thread in the network namespace at path. The thread ends afterwards.
func inNamespace(path string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with this goroutine
		result <- func() error {
			namespace, err := os.Open(path)
			if err != nil {
				return err
			}
			defer namespace.Close()
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter %s: %w", path, err)
			}
			return f()
		}()
	}()
	return <-result
}

var cables atomic.Int32

// Cable connects a new interface of host a to a new interface of host b.
func Cable(a *Host, nameA string, b *Host, nameB string) error {
	return inNamespace(a.Namespace(), func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = nameA
		peer := fmt.Sprintf("cable%d", cables.Add(1))
		pair := &netlink.Veth{LinkAttrs: attrs, PeerName: peer}
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("cable from %s to %s: %w", a.Name, b.Name, err)
		}
		if err := netlink.LinkSetUp(pair); err != nil {
			return err
		}
		link, err := netlink.LinkByName(peer)
		if err != nil {
			return err
		}
		namespace, err := os.Open(b.Namespace())
		if err != nil {
			return err
		}
		defer namespace.Close()
		if err := netlink.LinkSetNsFd(link, int(namespace.Fd())); err != nil {
			return err
		}
		return inNamespace(b.Namespace(), func() error {
			link, err := netlink.LinkByName(peer)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetName(link, nameB); err != nil {
				return err
			}
			return netlink.LinkSetUp(link)
		})
	})
}

// SetAddress sets the host's address on interface name. The overlay uses it as the LAN address.
func (h *Host) SetAddress(name string, address netip.Prefix) error {
	h.Address = address.Addr()
	return inNamespace(h.Namespace(), func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		parsed, err := netlink.ParseAddr(address.String())
		if err != nil {
			return err
		}
		return netlink.AddrReplace(link, parsed)
	})
}

// In runs f on a thread in the host's network namespace, but not in its other namespaces.
func (h *Host) In(f func() error) error { return inNamespace(h.Namespace(), f) }
