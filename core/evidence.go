package core

// evidence.go - what reports prove about copies of guests: which may run, and which cannot.

import (
	"time"

	v1 "watari/api/watariv1"
)

// Reports tell what each host's agent last reported. since is when it connected or disconnected; zero: it never was
// connected.
type Reports interface {
	Observed(host string) (report *v1.HostObserved, since time.Time, connected bool)
}

// GuestOn returns a host's report of a guest, by uid; nil: it reports none.
func GuestOn(report *v1.HostObserved, uid string) *v1.GuestObserved {
	for _, g := range report.GetGuests() {
		if g.Uid == uid {
			return g
		}
	}
	return nil
}

// BootID returns the boot that a host is in: the one that its agent reports, or, while the agent is away, the last known.
func BootID(s *Objects, r Reports, host string) string {
	if report, _, connected := r.Observed(host); connected && report.GetInfo().GetBootId() != "" {
		return report.Info.BootId
	}
	return s.Hosts[host].GetInfo().GetBootId()
}

// Dead tells whether a guest's copy that was granted to a host under a boot cannot run any more: the host was started
// anew since, or fenced, and its agent has looked at all processes and sees none of the guest.
func Dead(s *Objects, r Reports, host, boot, uid string) bool {
	h := s.Hosts[host]
	if h == nil || boot == "" || BootID(s, r, host) == boot && h.FencedBootId != boot {
		return false
	}
	report, _, connected := r.Observed(host)
	return !(connected && report.GetProcessesUnknown()) && !Alive(r, host, uid)
}

// Alive tells whether a host's agent, in its present session, sees a process of a guest. No grant is released against
// this evidence.
func Alive(r Reports, host, uid string) bool {
	report, _, connected := r.Observed(host)
	return connected && GuestOn(report, uid).GetProcess()
}

// granted tells whether a host holds a guest's grant in its present boot. A live copy under the grant's epoch proves
// that, too.
func granted(s *Objects, r Reports, g *v1.Guest, host string) bool {
	switch {
	case g.Host != host || s.Hosts[host] == nil || s.Hosts[host].FencedBootId != "" && s.Hosts[host].FencedBootId == g.BootId:
		return false
	case g.BootId == "" || BootID(s, r, host) == g.BootId:
		return true
	}
	return livesInAnotherBoot(r, g)
}

// livesInAnotherBoot tells whether the copy under a guest's grant lives though its host reports another boot than the
// grant names.
func livesInAnotherBoot(r Reports, g *v1.Guest) bool {
	report, _, _ := r.Observed(g.Host)
	return Alive(r, g.Host, g.Meta.Uid) && GuestOn(report, g.Meta.Uid).Epoch == g.Epoch
}

// unwanted tells whether nothing of a guest is to run.
func unwanted(s *Objects, g *v1.Guest) bool {
	c := s.Clusters[g.Cluster]
	return g.Stopped || c == nil || c.Meta.Deleting != nil
}
