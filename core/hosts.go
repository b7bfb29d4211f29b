package core

// hosts.go - stores the hosts' information from their agents' reports.

import (
	"maps"
	"net/netip"
	"time"

	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/internal/printable"
)

// describePause is the least time between two changes of a host's stored information. A host that describes itself anew all
// the time must not fill the store.
const describePause = 2 * time.Second

// described is the last change of a host's stored information, within describePause.
type described struct {
	at    time.Time
	boot  bool // the host has rebooted
	again bool // another change waits
}

// A host's descriptions of itself may cause so many events of a kind at once, and then one each hostEventEvery. Otherwise a host
// that keeps changing its boot id or its key would replace the whole history, which has a fixed number of events.
const (
	hostEvents     = 20
	hostEventEvery = 10 * time.Minute
)

// eventsLeft is how many events of one kind may still be caused. The zero value has had none.
type eventsLeft struct {
	n     int
	since time.Time // when one was last added
}

// take takes one of the events that are left: most at the beginning, and one more after each pause. It returns the rest, and
// whether one was left.
func (l eventsLeft) take(now time.Time, most int, pause time.Duration) (rest eventsLeft, some bool) {
	if l.since.IsZero() {
		l = eventsLeft{most, now}
	}
	if more := int(now.Sub(l.since) / pause); more > 0 {
		l = eventsLeft{min(l.n+more, most), now}
	}
	return eventsLeft{max(l.n-1, 0), l.since}, l.n > 0
}

// hostEvent is a kind of events that a host's descriptions cause.
type hostEvent struct{ host, kind string }

// tells adds an event to a change that a host's description has caused, if there may be one of this kind.
func (p *pass) tells(c *Change, host, kind, text string, args ...any) {
	of := hostEvent{host, kind}
	left, some := p.told[of].take(p.Now, hostEvents, hostEventEvery)
	p.told[of] = left
	if !some {
		return
	}
	if left.n == 0 {
		text += "; further such events of the host are not recorded for a while"
	}
	c.event(v1.Severity_SEVERITY_WARNING, "host", host, text, args...)
}

// mayDescribe tells whether a host's stored information may change now. A rebooted host does not wait for the pause after
// another change, since its guests have ended.
func (p *pass) mayDescribe(host string, boot bool) bool {
	last, is := p.described[host]
	if !is || boot && !last.boot {
		p.described[host] = described{at: p.Now, boot: boot}
		return true
	}
	last.again = true
	p.described[host] = last
	p.again = earlier(p.again, last.at.Add(describePause))
	return false
}

// hosts stores the hosts' information from their agents' reports.
func (p *pass) hosts() {
	for name, last := range p.described {
		if last.again {
			p.index.left[name] = true
		}
		if p.Now.Sub(last.at) >= describePause {
			delete(p.described, name)
		}
	}
	maps.DeleteFunc(p.told, func(of hostEvent, left eventsLeft) bool {
		return p.Hosts[of.host] == nil || p.Now.Sub(left.since) > hostEvents*hostEventEvery
	})
	for _, name := range p.index.hostNames() {
		p.index.left[name] = true
	}
	for _, name := range sortedKeys(p.index.left) {
		h := p.Hosts[name]
		report, _, connected := p.Observed(name)
		if h == nil || !connected || report.GetInfo() == nil || p.full() {
			continue
		}
		info, owner := p.withOwnKey(name, atSite(h.TokenSite, keepFacts(withAddress(report.Info, h.Info), h.Info)))
		if proto.Equal(info, h.Info) {
			continue
		}
		if h.Info != nil && !p.mayDescribe(name, h.Info.BootId != info.BootId) {
			continue
		}
		update := proto.CloneOf(h)
		update.Info = info
		if h.Meta.GetDeleting() == nil && info.BootId != h.FencedBootId {
			update.FencedBootId = "" // it was switched off, and has booted
		}
		var c Change
		c.write(Update, update)
		switch {
		case h.Info == nil:
			c.event(v1.Severity_SEVERITY_INFO, "host", name, "joined at site %s: %s, %s", info.Site, english.Plural(int(info.Cores), "core", ""), info.GetAcceleration().GetReason())
		case h.Info.BootId != info.BootId:
			p.tells(&c, name, "boot", "has rebooted; its earlier guests have ended")
		case h.Info.LanAddress != info.LanAddress:
			p.tells(&c, name, "address", "has LAN address %s, and had %s", info.LanAddress, h.Info.LanAddress)
		}
		if refused := report.Info.LanAddress; refused != info.LanAddress && refused != "" {
			p.tells(&c, name, "no address", "reports the LAN address %s, which is not the IPv4 address of one host, and keeps the address %q", printable.Line(refused, 64), info.LanAddress)
		}
		if owner != "" && (h.Info == nil || h.Info.WireguardPublicKey != "") {
			p.tells(&c, name, "key", "reports the WireGuard key of host %s, and gets no encrypted traffic; if it is the same machine, remove host %s", owner, owner)
		}
		p.propose("host/"+name, c)
	}
}

// withOwnKey returns a host's description without its WireGuard key if another host has that key. Otherwise a host that
// copies a key, which is public, would draw the traffic of the key's owner to itself. It returns the owner's name, too.
func (p *pass) withOwnKey(name string, info *v1.HostInfo) (own *v1.HostInfo, owner string) {
	key := info.WireguardPublicKey
	if key == "" || key == p.Hosts[name].GetInfo().GetWireguardPublicKey() {
		return info, ""
	}
	if p.keys == nil {
		p.keys = map[string]string{}
		for host, h := range p.Hosts {
			p.keys[h.GetInfo().GetWireguardPublicKey()] = host
		}
	}
	if owner = p.keys[key]; owner == "" {
		p.keys[key] = name // of several new hosts with one key, one gets it
		return info, ""
	}
	info = proto.CloneOf(info)
	info.WireguardPublicKey = ""
	return info, owner
}

// withAddress returns an agent's information with the host's earlier LAN address if the new one cannot be that of a host. Otherwise the other
// hosts of its site could not reach it. A single host without a network has the loopback address from the beginning.
func withAddress(info, before *v1.HostInfo) *v1.HostInfo {
	if info.LanAddress == before.GetLanAddress() {
		return info
	}
	address, err := netip.ParseAddr(info.LanAddress)
	thisNetwork := netip.MustParsePrefix("0.0.0.0/8") // RFC 1122
	switch {
	case err != nil || !address.Is4() || thisNetwork.Contains(address):
	case address.IsGlobalUnicast(), address.IsLinkLocalUnicast(), address.IsLoopback() && before.GetLanAddress() == "":
		return info
	}
	info = proto.CloneOf(info)
	info.LanAddress = before.GetLanAddress()
	return info
}

// atSite returns an agent's information with the site that the host's token names, if it names one. Otherwise a host that
// was admitted for one site could claim to be at another, and get that site's guests.
func atSite(site string, info *v1.HostInfo) *v1.HostInfo {
	if site == "" || info.Site == site {
		return info
	}
	info = proto.CloneOf(info)
	info.Site = site
	return info
}

// keepFacts completes an agent's information with libvirt's answers to an earlier agent, until libvirt answers this
// agent. So a host can be chosen even if its agent has just restarted.
func keepFacts(now, before *v1.HostInfo) *v1.HostInfo {
	if now.LibvirtVersion != "" || before.GetLibvirtVersion() == "" {
		return now
	}
	now = proto.CloneOf(now)
	now.LibvirtVersion, now.QemuVersion = before.LibvirtVersion, before.QemuVersion
	now.Confinement, now.GuestSupport = before.Confinement, before.GuestSupport
	return now
}
