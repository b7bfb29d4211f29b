package sim

// sites.go - sites that are cut off: their hosts reach each other, and neither managers nor hosts of other sites.

import (
	"maps"
	"slices"
	"time"

	v1 "watari/api/watariv1"
)

// siteCuts are the kinds of steps that cut a site off, and for how long. heal ends all cuts.
var siteCuts = map[string]time.Duration{
	"cut off site":              5 * time.Second,
	"cut off site for a minute": time.Minute,
	"cut off site for good":     forGood,
}

// forGood is longer than a run.
const forGood = time.Hour

// siteCut tells whether a site is cut off now.
func (s *Sim) siteCut(site string) bool { return s.now.Before(s.cutUntil[site]) }

// cutSite cuts a site off for a time.
func (s *Sim) cutSite(site string, d time.Duration) {
	if until := s.now.Add(d); until.After(s.cutUntil[site]) {
		s.cutUntil[site] = until
	}
	for _, h := range s.hostsAt(site) {
		if h.link != nil {
			h.link.cut("the site is cut off")
		}
	}
	s.breakApart()
}

// loseSite cuts a site off for good and switches its hosts off. Then a person removes them as lost, unless no other site is left.
func (s *Sim) loseSite(site string) {
	s.cutSite(site, forGood)
	for _, h := range s.hostsAt(site) {
		h.crash()
	}
	elsewhere := func(h *v1.Host) bool { return h.Meta.Deleting == nil && s.hosts[h.Meta.Name].site != site }
	s.after(5*time.Second, func() {
		if !slices.ContainsFunc(slices.Collect(maps.Values(s.store.objects.Hosts)), elsewhere) {
			return
		}
		for _, h := range s.hostsAt(site) {
			if !h.up {
				s.removeLost(h)
			}
		}
	})
}

// hostsAt returns the hosts of a site, in order.
func (s *Sim) hostsAt(site string) (list []*host) {
	for _, name := range s.names {
		if h := s.hosts[name]; h.site == site {
			list = append(list, h)
		}
	}
	return list
}

// breakApart breaks off the transfers between hosts that do not reach each other any more.
func (s *Sim) breakApart() {
	for _, t := range append([]*transfer(nil), s.transfers...) {
		if t.target != nil && s.apart(t.source, t.target) {
			s.after(s.between(0, 5*time.Second), func() { s.breakOff(t, "the line is cut") })
		}
	}
}

// endOfFaults returns when users and faults end: after chaosFor, but not before a site that is cut off for a time is back.
func endOfFaults(plan []Step) time.Duration {
	end := chaosFor
	for _, step := range plan {
		if _, is := siteCuts[step.Kind]; is && step.For < forGood {
			end = max(end, step.At+step.For)
		}
	}
	return end
}
