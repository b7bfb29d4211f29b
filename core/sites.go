package core

// sites.go - sites, and whether hosts of a site trust their LAN.

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// OtherSites is the name of the object for sites that have no own object. An installation without it is older than site
// objects, and trusts all LANs.
const OtherSites = "*"

// TrustedLAN reports whether hosts of a site talk to each other without WireGuard.
func (o *Objects) TrustedLAN(site string) bool {
	if s := o.Sites[site]; s != nil {
		return s.TrustedLan
	}
	if others := o.Sites[OtherSites]; others != nil {
		return others.TrustedLan
	}
	return true
}

// FirstSites makes the objects of sites in an installation that has none. LANs of sites with hosts stay trusted, as before;
// LANs of later sites are not trusted. The change has no operations if the objects exist.
func FirstSites(o *Objects) (change Change) {
	if o.Sites[OtherSites] != nil {
		return change
	}
	change.write(Create, &v1.Site{Meta: &v1.Meta{Name: OtherSites}})
	for _, site := range slices.Sorted(maps.Keys(sites(o))) {
		if o.Sites[site] == nil {
			change.write(Create, &v1.Site{Meta: &v1.Meta{Name: site}, TrustedLan: true})
			change.event(v1.Severity_SEVERITY_INFO, "site", site, "its LAN stays trusted, as it was before this version: traffic between its hosts is not encrypted")
		}
	}
	return change
}

// SetSite says whether the LAN of a site is trusted.
func (a *Admission) SetSite(name string, trusted bool) (change Change, err error) {
	if err := CheckName("site", name); err != nil {
		return change, err
	}
	what := "its LAN is trusted: traffic between its hosts is not encrypted"
	if !trusted {
		what = "its LAN is not trusted: traffic between its hosts goes through WireGuard"
	}
	switch s := a.Sites[name]; {
	case s == nil:
		change.write(Create, &v1.Site{Meta: &v1.Meta{Name: name}, TrustedLan: trusted})
	case s.TrustedLan == trusted:
		return change, nil
	default:
		s = proto.CloneOf(s)
		s.TrustedLan = trusted
		change.write(Update, s)
	}
	a.audited(&change, "site", name, "%s", what)
	return change, nil
}
