// The current state of a lab.

package lab

import (
	"context"
	"sync"
	"time"

	"watari/lab/machine"
)

const statusFile = inHost + "/status.json"

// Status describes the current state of a lab.
type Status struct {
	Name    string       `json:"name"`
	Sites   []SiteStatus `json:"sites"`
	WAN     string       `json:"wan"`           // as ParseWAN reads it
	NAT     []string     `json:"nat,omitempty"` // sites and hosts that only dial out
	Shaper  string       `json:"shaper"`        // what shapes the WAN: "nothing", "netem", "link process", or the problem
	RootEnd string       `json:"root_end"`      // this machine's address in the lab
	Prefix  string       `json:"prefix"`
	Dir     string       `json:"dir"` // persistent state
}

// SiteStatus describes one site.
type SiteStatus struct {
	Name  string       `json:"name"`
	LAN   string       `json:"lan"`
	Cut   bool         `json:"cut"` // off the WAN
	Hosts []HostStatus `json:"hosts"`
}

// HostStatus describes one host.
type HostStatus struct {
	Host
	Running bool            `json:"running"`
	PID     int             `json:"pid"`               // of its first process, as this machine sees it
	Daemons []DaemonStatus  `json:"daemons"`           // set by AskDaemons
	Machine *machine.Spec   `json:"machine,omitempty"` // of a whole host
	CPUs    float64         `json:"cpus,omitempty"`    // limit of its CPU time, in CPUs; 0: no limit
	Owner   []OwnerActivity `json:"owner,omitempty"`   // current activities of the played owner, set by AskDaemons
}

// DaemonStatus describes one daemon of a host.
type DaemonStatus struct {
	Name   string    `json:"name"`
	PID    int       `json:"pid"` // in the host; 0: not running
	Starts int       `json:"starts"`
	Since  time.Time `json:"since"`
	Error  string    `json:"error"` // how it ended, if it is not running
}

// Status returns the current state of the lab. It does not ask the hosts for their daemons.
func (l *Lab) Status() (Status, error) {
	if err := l.load(); err != nil {
		return Status{}, err
	}
	p := l.state.plan()
	s := Status{
		Name: l.Name(), WAN: l.state.WAN.String(), NAT: l.state.NAT, Shaper: l.currentShaper(),
		RootEnd: p.rootEnd().String(), Prefix: p.prefix().String(), Dir: l.dir,
	}
	for site := range p.sites {
		s.Sites = append(s.Sites, SiteStatus{Name: siteName(site), LAN: p.lan(site).String(), Cut: l.isCut(site)})
	}
	for _, host := range l.Hosts() {
		hs := HostStatus{Host: host, PID: l.hostProcess(host.Name), CPUs: l.state.CPUs[host.Name]}
		hs.Running = hs.PID != 0
		if spec, whole := l.state.Whole[host.Name]; whole {
			hs.Machine = &spec
		}
		s.Sites[host.site].Hosts = append(s.Sites[host.site].Hosts, hs)
	}
	return s, nil
}

// askLimit is the longest time that a host may take to list its daemons. A host that does not answer is shown without
// them.
const askLimit = time.Minute

// AskDaemons fills in the daemons and owners of all running hosts. A whole host takes a second or more to answer.
func (l *Lab) AskDaemons(ctx context.Context, s Status) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var asking sync.WaitGroup
	for _, site := range s.Sites {
		for i := range site.Hosts {
			if h := &site.Hosts[i]; h.Running {
				asking.Go(func() {
					h.Daemons = l.kind(h.Host).daemons(ctx, h.PID)
					h.Owner = l.ownerActivities(h.Name)
				})
			}
		}
	}
	asking.Wait()
}
