// What a lab looks like now.

package lab

import (
	"fmt"
	"path/filepath"
	"time"
)

const statusFile = inHost + "/status.json"

// Status is what a lab looks like now.
type Status struct {
	Name    string
	Sites   []SiteStatus
	WAN     WAN
	Shaper  string // what holds the WAN's traffic back: "none", "netem", "link process", or what is wrong
	RootEnd string // this machine's address in the lab
	Prefix  string
	Dir     string
}

// SiteStatus is one site's part.
type SiteStatus struct {
	Name  string
	LAN   string
	Cut   bool
	Hosts []HostStatus
}

// HostStatus is one host's part.
type HostStatus struct {
	Host
	Running bool
	PID     int // of its first process, seen from outside
	Daemons []DaemonStatus
}

// DaemonStatus is one daemon of a host.
type DaemonStatus struct {
	Name   string
	PID    int // in the host; 0: not running
	Starts int
	Since  time.Time
	Error  string // how it ended last, if it does not run
}

// Status looks at the lab as it is now.
func (l *Lab) Status() (Status, error) {
	if err := l.load(); err != nil {
		return Status{}, err
	}
	p := l.state.plan()
	s := Status{
		Name: l.Name(), WAN: l.state.WAN, Shaper: l.shaperNow(),
		RootEnd: p.rootEnd().String(), Prefix: p.prefix().String(), Dir: l.dir,
	}
	for site := range p.sites {
		s.Sites = append(s.Sites, SiteStatus{Name: siteName(site), LAN: p.lan(site).String(), Cut: l.isCut(site)})
	}
	for _, host := range l.Hosts() {
		hs := HostStatus{Host: host, PID: l.hostProcess(host.Name)}
		hs.Running = hs.PID != 0
		if hs.Running {
			var daemons []daemon
			_ = readJSON(filepath.Join(fmt.Sprintf("/proc/%d/root", hs.PID), statusFile), &daemons)
			for _, d := range daemons {
				hs.Daemons = append(hs.Daemons, DaemonStatus{d.Name, d.PID, d.Starts, d.Since, d.Error})
			}
		}
		s.Sites[host.site].Hosts = append(s.Sites[host.site].Hosts, hs)
	}
	return s, nil
}
