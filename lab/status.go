// What a lab looks like now.

package lab

import (
	"context"
	"sync"
	"time"

	"watari/lab/machine"
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
	Running bool            `json:"running"`
	PID     int             `json:"pid"`               // of its first process, seen from outside
	Daemons []DaemonStatus  `json:"daemons"`           // if asked for
	Machine *machine.Spec   `json:"machine,omitempty"` // of a whole host
	CPUs    float64         `json:"cpus,omitempty"`    // processors' worth of time that it may use; 0: no limit
	Owner   []OwnerActivity `json:"owner,omitempty"`   // what the owner does who is played, if asked for
}

// DaemonStatus is one daemon of a host.
type DaemonStatus struct {
	Name   string    `json:"name"`
	PID    int       `json:"pid"` // in the host; 0: not running
	Starts int       `json:"starts"`
	Since  time.Time `json:"since"`
	Error  string    `json:"error"` // how it ended last, if it does not run
}

// Status looks at the lab as it is now, without asking hosts for their daemons.
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
		hs := HostStatus{Host: host, PID: l.hostProcess(host.Name), CPUs: l.state.CPUs[host.Name]}
		hs.Running = hs.PID != 0
		if spec, whole := l.state.Whole[host.Name]; whole {
			hs.Machine = &spec
		}
		s.Sites[host.site].Hosts = append(s.Sites[host.site].Hosts, hs)
	}
	return s, nil
}

// askLimit is how long a host may take to tell its daemons. One that does not answer is shown without.
const askLimit = time.Minute

// AskDaemons fills in the daemons and the owners of all hosts that run. An answer of a whole host takes a second or more.
func (l *Lab) AskDaemons(ctx context.Context, s Status) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var asking sync.WaitGroup
	for _, site := range s.Sites {
		for i := range site.Hosts {
			if h := &site.Hosts[i]; h.Running {
				asking.Go(func() {
					h.Daemons = l.kind(h.Host).daemons(ctx, h.PID)
					h.Owner = l.ownerNow(h.Name)
				})
			}
		}
	}
	asking.Wait()
}
