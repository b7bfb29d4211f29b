package core

// evidence.go - derives from reports which copies of guests may run, and which cannot.

import (
	"time"

	v1 "watari/api/watariv1"
)

// Reports has the last report of each host's agent. since is when the agent connected or disconnected; zero: it never
// was connected.
type Reports interface {
	Observed(host string) (report *v1.HostObserved, since time.Time, connected bool)
}

// GuestOn returns the part of a report about the guest with this uid; nil: there is none.
func GuestOn(report *v1.HostObserved, uid string) *v1.GuestObserved {
	for _, g := range report.GetGuests() {
		if g.Uid == uid {
			return g
		}
	}
	return nil
}

// BootID returns a host's present boot, from its agent's report. While the agent is away, it is the last known boot.
func BootID(s *Objects, r Reports, host string) string {
	if report, _, connected := r.Observed(host); connected && report.GetInfo().GetBootId() != "" {
		return report.Info.BootId
	}
	return s.Hosts[host].GetInfo().GetBootId()
}

// Dead reports whether a guest's copy, which was granted to a host in a boot, can no longer run. Either a person has
// vouched that the host is off. Or the host has rebooted since, and its agent has checked all processes and found none
// of the guest.
func Dead(s *Objects, r Reports, host, boot, uid string) bool {
	h := s.Hosts[host]
	if h == nil || boot == "" {
		return false
	}
	report, _, connected := r.Observed(host)
	if h.FencedBootId != "" && !connected {
		return true
	}
	if BootID(s, r, host) == boot && h.FencedBootId != boot {
		return false
	}
	return report != nil && !report.ProcessesUnknown && !GuestOn(report, uid).GetProcess()
}

// Alive reports whether a host's agent, in its present session, sees a process of a guest. While it does, the grant
// must not be released.
func Alive(r Reports, host, uid string) bool {
	report, _, connected := r.Observed(host)
	return connected && GuestOn(report, uid).GetProcess()
}

// granted reports whether a host holds a guest's grant in its present boot. A live copy under the grant's epoch also
// proves that.
func granted(s *Objects, r Reports, g *v1.Guest, host string) bool {
	switch {
	case g.Host != host || s.Hosts[host] == nil || s.Hosts[host].FencedBootId != "" && s.Hosts[host].FencedBootId == g.BootId:
		return false
	case g.BootId == "" || BootID(s, r, host) == g.BootId:
		return true
	}
	return livesInAnotherBoot(r, g)
}

// livesInAnotherBoot reports whether the copy under a guest's grant lives although its host reports another boot than
// the grant names.
func livesInAnotherBoot(r Reports, g *v1.Guest) bool {
	report, _, _ := r.Observed(g.Host)
	return Alive(r, g.Host, g.Meta.Uid) && GuestOn(report, g.Meta.Uid).Epoch == g.Epoch
}

// unwanted reports whether no copy of a guest may run.
func unwanted(s *Objects, g *v1.Guest) bool {
	c := s.Clusters[g.Cluster]
	return g.Stopped || leaves(c, g) || c.GetRestore().GetState() == v1.RestoreState_RESTORE_STATE_ENDING
}

// leaves reports whether a guest is to be removed: alone, or with its cluster, which may be gone.
func leaves(c *v1.Cluster, g *v1.Guest) bool {
	return g.Meta.Deleting != nil || c == nil || c.Meta.Deleting != nil
}
