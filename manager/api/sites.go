package api

// sites.go - sites, and whether their LANs are trusted.

import (
	"context"
	"maps"
	"slices"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

// ListSites lists the sites that have hosts or whose LAN an administrator has declared trusted or not.
func (s *Server) ListSites(context.Context, *connect.Request[v1.ListSitesRequest]) (*connect.Response[v1.ListSitesResponse], error) {
	return connect.NewResponse(&v1.ListSitesResponse{Sites: listSites(s.Store.Snapshot())}), nil
}

// listSites returns the sites, by name.
func listSites(snap *store.Snapshot) (sites []*v1.Site) {
	names := map[string]bool{}
	for name := range snap.Sites {
		names[name] = name != core.OtherSites
	}
	for _, h := range snap.Hosts {
		names[h.GetInfo().GetSite()] = h.GetInfo().GetSite() != ""
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] {
			sites = append(sites, viewSite(snap, name))
		}
	}
	return sites
}

func viewSite(snap *store.Snapshot, name string) *v1.Site {
	site := &v1.Site{Meta: &v1.Meta{Name: name}, TrustedLan: snap.TrustedLAN(name)}
	for _, host := range slices.Sorted(maps.Keys(snap.Hosts)) {
		if snap.Hosts[host].GetInfo().GetSite() == name {
			site.Hosts = append(site.Hosts, host)
		}
	}
	return site
}

// SetSite sets whether the LAN of a site is trusted.
func (s *Server) SetSite(ctx context.Context, r *connect.Request[v1.SetSiteRequest]) (*connect.Response[v1.SetSiteResponse], error) {
	if err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.SetSite(r.Msg.Name, r.Msg.TrustedLan) }); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.SetSiteResponse{Site: viewSite(s.Store.Snapshot(), r.Msg.Name)}), nil
}
