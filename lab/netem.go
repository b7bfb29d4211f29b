// Shaping by the kernel's netem, if the kernel has it. Each router's end of its spoke gets delay, loss and rate; the
// hub's end gets the rate only.

package lab

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// errNoNetem means that this kernel has no netem.
var errNoNetem = errors.New("the kernel has no netem")

func (l *Lab) applyNetem() error {
	w := l.state.WAN
	hub := l.namespacePath(hubNamespace)
	for site := range l.state.Sites {
		if err := setNetem(l.namespacePath(routerNamespace(site)), linkWAN, w); err != nil {
			return err
		}
		if err := setNetem(hub, spokeLink(site), WAN{Rate: w.Rate}); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) clearNetem() error {
	hub := l.namespacePath(hubNamespace)
	for site := range l.state.Sites {
		if err := setNetem(l.namespacePath(routerNamespace(site)), linkWAN, WAN{}); err != nil {
			return err
		}
		if err := setNetem(hub, spokeLink(site), WAN{}); err != nil {
			return err
		}
	}
	return nil
}

func setNetem(namespace, name string, w WAN) error {
	h, err := handle(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if !w.Shaped() {
		if q := netemOf(h, link); q != nil {
			if err := h.QdiscDel(q); err != nil {
				return fmt.Errorf("remove netem from link %s: %w", name, err)
			}
		}
		return nil
	}
	err = h.QdiscReplace(netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{
			Latency: uint32((w.RoundTrip / 2).Microseconds()),
			Loss:    float32(w.Loss * 100),
			Rate64:  w.Rate / 8, // bytes per second
			Limit:   netemLimit(w),
		}))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return errNoNetem
	}
	if err != nil {
		return fmt.Errorf("put netem on link %s: %w", name, err)
	}
	return nil
}

// netemLimit returns the length of netem's queue in packets: the packets in flight, and a backlog of 100 ms.
func netemLimit(w WAN) uint32 {
	const most = 200_000
	if w.Rate == 0 {
		return most
	}
	held := (w.RoundTrip/2 + 100*time.Millisecond).Seconds()
	return uint32(min(max(float64(w.Rate)/8*held/mtu, 64), most))
}

func netemOf(h *netlink.Handle, link netlink.Link) netlink.Qdisc {
	qdiscs, err := h.QdiscList(link)
	if err != nil {
		return nil
	}
	for _, q := range qdiscs {
		if q.Type() == "netem" && q.Attrs().LinkIndex == link.Attrs().Index {
			return q
		}
	}
	return nil
}

func (l *Lab) hasNetem() bool {
	h, err := handle(l.namespacePath(routerNamespace(0)))
	if err != nil {
		return false
	}
	defer h.Close()
	link, err := h.LinkByName(linkWAN)
	return err == nil && netemOf(h, link) != nil
}
