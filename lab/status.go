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
	Name    string       `json:"name"`
	Sites   []SiteStatus `json:"sites"`
	WAN     string       `json:"wan"`      // as ParseWAN reads it
	Shaper  string       `json:"shaper"`   // what holds the WAN's traffic back: "nothing", "netem", "link process", or what is wrong
	RootEnd string       `json:"root_end"` // this machine's address in the lab
	Prefix  string       `json:"prefix"`
	Dir     string       `json:"dir"` // lasting state
}

// SiteStatus is one site's part.
type SiteStatus struct {
	Name  string       `json:"name"`
	LAN   string       `json:"lan"`
	Cut   bool         `json:"cut"` // off the WAN
	Hosts []HostStatus `json:"hosts"`
}

// HostStatus is one host's part.
type HostStatus struct {
	Host
	Running bool           `json:"running"`
	PID     int            `json:"pid"` // of its first process, seen from outside
	Daemons []DaemonStatus `json:"daemons"`
}

// DaemonStatus is one daemon of a host.
type DaemonStatus struct {
	Name   string    `json:"name"`
	PID    int       `json:"pid"` // in the host; 0: not running
	Starts int       `json:"starts"`
	Since  time.Time `json:"since"`
	Error  string    `json:"error"` // how it ended last, if it does not run
}

// Status looks at the lab as it is now.
func (l *Lab) Status() (Status, error) {
	if err := l.load(); err != nil {
		return Status{}, err
	}
	p := l.state.plan()
	s := Status{
		Name: l.Name(), WAN: l.state.WAN.String(), Shaper: l.shaperNow(),
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
