package core

// hosts.go - stores the hosts' information from their agents' reports.

import (
	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// hosts stores the hosts' information from their agents' reports.
func (p *pass) hosts() {
	for _, name := range p.index.hostNames() {
		h := p.Hosts[name]
		report, _, connected := p.Observed(name)
		if h == nil || !connected || report.GetInfo() == nil || p.full() {
			continue
		}
		info := keepFacts(report.Info, h.Info)
		if proto.Equal(info, h.Info) {
			continue
		}
		update := proto.CloneOf(h)
		update.Info = info
		var c Change
		c.write(Update, update)
		switch {
		case h.Info == nil:
			c.event(v1.Severity_SEVERITY_INFO, "host", name, "joined at site %s: %s, %s", info.Site, english.Plural(int(info.Cores), "core", ""), info.GetAcceleration().GetReason())
		case h.Info.BootId != info.BootId:
			c.event(v1.Severity_SEVERITY_WARNING, "host", name, "was started anew; its guests of before have ended")
		}
		p.propose("host/"+name, c)
	}
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
