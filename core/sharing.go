package core

// sharing.go - decides which host fetches which image and template from which hosts. Package sharing decides; its
// answers become part of hosts' orders.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/sharing"
)

// shareMemory is the memory of earlier decisions about sharing. It can be lost.
type shareMemory struct {
	chosen map[siteBlob]chosen           // the host that fetches a blob from outside the site
	states map[hostTemplate]stateOfShare // since when a host is in a state with a template
}

// siteBlob is a blob in one site. For the blob of a template, group is the trust group. All groups share the blobs of
// images.
type siteBlob struct{ site, group, digest string }

type chosen struct {
	host  string
	got   uint64    // sharer.got
	since time.Time // of its last byte, or of the choice
}

type hostTemplate struct{ host, key string }

type stateOfShare struct {
	state v1.TemplateState
	since time.Time
}

// shareOrders is the part of a host's orders that package sharing decides.
type shareOrders struct {
	group     string
	blobs     []*v1.BlobShare
	templates []*v1.TemplateShare
}

func (a *shareOrders) equal(b *shareOrders) bool {
	return a != nil && b != nil && a.group == b.group &&
		slices.EqualFunc(a.blobs, b.blobs, func(x, y *v1.BlobShare) bool { return proto.Equal(x, y) }) &&
		slices.EqualFunc(a.templates, b.templates, func(x, y *v1.TemplateShare) bool { return proto.Equal(x, y) })
}

// sharer is one host as package sharing sees it.
type sharer struct {
	name, site, group string
	wants             map[string]bool             // blobs of its images, by digest
	blobs             map[string]*v1.BlobObserved // by digest
	report            *v1.HostObserved
	// got changes when the host gets a byte of any blob. The host fetches an image's blobs one after the other.
	got    uint64
	shares map[string]*v1.BlobShare // its orders, by digest
	out    *shareOrders
}

// sameSharing reports whether two reports of a host agree about the content that it holds and fetches.
func sameSharing(a, b *v1.HostObserved) bool {
	return a.Sharing == b.Sharing && slices.Equal(a.Images, b.Images) && a.FetchBytesPerSecond == b.FetchBytesPerSecond &&
		slices.EqualFunc(a.Blobs, b.Blobs, func(x, y *v1.BlobObserved) bool { return proto.Equal(x, y) }) &&
		slices.EqualFunc(a.Templates, b.Templates, func(x, y *v1.TemplateObserved) bool { return proto.Equal(x, y) })
}

// share decides how each connected host obtains images and templates, and returns the hosts whose orders about that
// have changed. It leaves out hosts whose agents cannot share: they fetch images from the manager. It decides again
// only if reports or orders have changed, or while a transfer is under way, because it must replace stalled hosts.
func (p *pass) share() (changed []string) {
	if !p.index.shareAgain && !p.index.everything && !p.shared.active() {
		return nil
	}
	hosts := p.sharers()
	next := shareMemory{chosen: map[siteBlob]chosen{}, states: map[hostTemplate]stateOfShare{}}
	s := sharePass{world: p.World, hosts: hosts, last: p.shared, next: next}
	for _, site := range sitesOf(hosts) {
		s.images(site)
	}
	s.templates(p.wasToldToMake)
	orders := map[string]*shareOrders{}
	for _, h := range hosts {
		for _, digest := range sortedKeys(h.shares) {
			h.out.blobs = append(h.out.blobs, h.shares[digest])
		}
		orders[h.name] = h.out
		if before := p.Core.orders.share[h.name]; !before.equal(h.out) {
			changed = append(changed, h.name)
		}
	}
	for name := range p.Core.orders.share {
		if orders[name] == nil {
			changed = append(changed, name)
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(next.chosen), compareSiteBlobs) {
		if before, was := p.shared.chosen[at]; was && before.host != next.chosen[at].host {
			p.notes = append(p.notes, fmt.Sprintf("another host fetches a blob for its site: site %s, digest %s, before %s, now %s",
				at.site, at.digest, before.host, next.chosen[at].host))
		}
	}
	p.Core.shared, p.Core.orders.share = next, orders
	p.index.shareAgain = false
	return changed
}

// active reports whether a blob or template is under way.
func (m shareMemory) active() bool {
	for _, state := range m.states {
		if state.state != v1.TemplateState_TEMPLATE_STATE_HELD {
			return true
		}
	}
	return len(m.chosen) > 0
}

// sharers returns the connected hosts that can share, and were not cut off, in the order of names.
func (p *pass) sharers() []*sharer {
	var hosts []*sharer
	for _, name := range sortedKeys(p.Core.orders.base) {
		report, _, _ := p.Observed(name)
		if !report.GetSharing() || cutOff(p.Hosts[name]) != nil { // its session may be ending
			continue
		}
		h := &sharer{name: name, site: p.Hosts[name].GetInfo().GetSite(), group: p.Hosts[name].GetTrustGroup(), wants: map[string]bool{},
			blobs: map[string]*v1.BlobObserved{}, report: report, shares: map[string]*v1.BlobShare{}}
		h.out = &shareOrders{group: h.group}
		for _, image := range p.Core.orders.base[name].Images {
			for _, blob := range []*v1.Blob{image.Kernel, image.Initrd, image.Root} {
				h.wants[blob.GetDigest()] = true
			}
		}
		for _, blob := range report.Blobs {
			h.blobs[blob.Digest] = blob
			h.got += blob.HaveBytes
			if blob.Whole {
				h.got += 1 << 48 // larger than any blob
			}
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// wasToldToMake reports whether a host's last orders were to make a template.
func (p *pass) wasToldToMake(host, key string) bool {
	for _, t := range p.Core.orders.sent[host].wanted.GetTemplates() {
		if t.Key == key {
			return t.Order == v1.TemplateOrder_TEMPLATE_ORDER_MAKE
		}
	}
	return false
}

func sitesOf(hosts []*sharer) []string {
	sites := map[string]bool{}
	for _, h := range hosts {
		sites[h.site] = true
	}
	return slices.Sorted(maps.Keys(sites))
}

// sharePass is one decision about sharing.
type sharePass struct {
	world      *World
	hosts      []*sharer
	last, next shareMemory
}

// images decides about the blobs of images that hosts of a site lack.
func (p *sharePass) images(site string) {
	lacking := map[string]bool{}
	for _, h := range p.hosts {
		for digest := range h.wants {
			if h.site == site && !h.blobs[digest].GetWhole() {
				lacking[digest] = true
			}
		}
	}
	for _, digest := range slices.Sorted(maps.Keys(lacking)) {
		var hosts []sharing.Host
		for _, h := range p.hosts {
			if h.site == site {
				hosts = append(hosts, h.asHost(digest, h.wants[digest]))
			}
		}
		p.routes(siteBlob{site: site, digest: digest}, hosts, nil)
	}
}

func (h *sharer) asHost(digest string, wants bool) sharing.Host {
	blob := h.blobs[digest]
	return sharing.Host{Name: h.name, Wants: wants, Whole: blob.GetWhole(), Outside: blob.GetFromOutside(), Have: blob.GetHaveBytes()}
}

// routes decides about one blob in one site. remote are the hosts of other sites that have it; empty: the manager has
// it.
func (p *sharePass) routes(at siteBlob, hosts []sharing.Host, remote []string) {
	last, known := p.last.chosen[at]
	if i := slices.IndexFunc(hosts, func(h sharing.Host) bool { return known && h.Name == last.host }); i >= 0 {
		if got := p.host(last.host).got; got != last.got {
			last.got, last.since = got, p.world.Now
		}
		hosts[i].Idle = p.world.Now.Sub(last.since)
	}
	routes, root := sharing.Routes(hosts, last.host)
	if root != "" {
		if root != last.host {
			last = chosen{host: root, got: p.host(root).got, since: p.world.Now}
		}
		p.next.chosen[at] = last
	}
	for _, h := range p.hosts {
		route, ok := routes[h.name]
		if !ok || !route.Outside && len(route.Sources) == 0 && len(route.Readers) == 0 {
			continue
		}
		sources := route.Sources
		if route.Outside {
			sources = remote
		}
		p.add(h, &v1.BlobShare{Digest: at.digest, FromManager: route.Outside && len(remote) == 0,
			Sources: p.peers(sources), Readers: p.peers(route.Readers), Reason: route.Reason})
		if route.Outside {
			p.admit(remote, h.name, at.digest)
		}
	}
}

// host returns a sharer by name.
func (p *sharePass) host(name string) *sharer {
	i := slices.IndexFunc(p.hosts, func(h *sharer) bool { return h.name == name })
	return p.hosts[i]
}

// add adds orders about a blob to a host's orders. For a template's blob, the host may already have orders because of a
// reader in another site.
func (p *sharePass) add(h *sharer, share *v1.BlobShare) {
	if before := h.shares[share.Digest]; before != nil {
		share.Readers = append(share.Readers, before.Readers...)
	}
	h.shares[share.Digest] = share
}

// admit permits a host of another site to fetch a blob from the hosts that have it.
func (p *sharePass) admit(holders []string, reader, digest string) {
	for _, h := range p.hosts {
		if !slices.Contains(holders, h.name) {
			continue
		}
		if h.shares[digest] == nil {
			h.shares[digest] = &v1.BlobShare{Digest: digest, Reason: "has it"}
		}
		h.shares[digest].Readers = append(h.shares[digest].Readers, p.peers([]string{reader})...)
	}
}

func (p *sharePass) peers(names []string) []*v1.BlobPeer { return blobPeers(p.world.Objects, names) }

// templates decides about the templates that hosts want.
func (p *sharePass) templates(wasToldToMake func(host, key string) bool) {
	byKey := map[string][]sharing.TemplateHost{}
	for _, h := range p.hosts {
		for _, t := range h.report.Templates {
			byKey[t.Key] = append(byKey[t.Key], p.templateHost(h, t, wasToldToMake(h.name, t.Key)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		routes := sharing.Templates(byKey[key])
		fetched := map[siteBlob][]string{} // hosts of other sites that have it
		for _, h := range p.hosts {
			route, ok := routes[h.name]
			if !ok {
				continue
			}
			order := &v1.TemplateShare{Key: key, Order: templateOrders[route.Order], Reason: route.Reason}
			if route.Order == sharing.Fetch {
				order.Blob = &v1.Blob{Digest: route.Digest, Size: route.Size}
				fetched[siteBlob{h.site, h.group, route.Digest}] = route.Remote
			}
			h.out.templates = append(h.out.templates, order)
		}
		for _, at := range slices.SortedFunc(maps.Keys(fetched), compareSiteBlobs) {
			p.templateRoutes(at, byKey[key], routes, fetched[at])
		}
	}
}

var templateOrders = map[sharing.TemplateOrder]v1.TemplateOrder{
	sharing.Make:  v1.TemplateOrder_TEMPLATE_ORDER_MAKE,
	sharing.Wait:  v1.TemplateOrder_TEMPLATE_ORDER_WAIT,
	sharing.Fetch: v1.TemplateOrder_TEMPLATE_ORDER_FETCH,
}

var templateStates = map[v1.TemplateState]sharing.TemplateState{
	v1.TemplateState_TEMPLATE_STATE_WANTED: sharing.Wanted,
	v1.TemplateState_TEMPLATE_STATE_MAKING: sharing.Making,
	v1.TemplateState_TEMPLATE_STATE_HELD:   sharing.Held,
	v1.TemplateState_TEMPLATE_STATE_FAILED: sharing.Failed,
}

func compareSiteBlobs(a, b siteBlob) int {
	return cmp.Or(cmp.Compare(a.site, b.site), cmp.Compare(a.group, b.group), cmp.Compare(a.digest, b.digest))
}

// templateHost is a host as sharing.Templates sees it, for one of its templates.
func (p *sharePass) templateHost(h *sharer, t *v1.TemplateObserved, maker bool) sharing.TemplateHost {
	at := hostTemplate{h.name, t.Key}
	state, known := p.last.states[at]
	if !known || state.state != t.State {
		state = stateOfShare{t.State, p.world.Now}
	}
	p.next.states[at] = state
	seen := sharing.TemplateHost{Name: h.name, Site: h.site, Group: h.group, State: templateStates[t.State], Digest: t.Blob.GetDigest(),
		Size: t.Blob.GetSize(), FetchedIn: t.TrustGroup, Maker: maker, Since: p.world.Now.Sub(state.since), Rate: p.siteRate(h.site)}
	for _, other := range h.report.Templates {
		seen.Took = max(seen.Took, time.Duration(other.MakingMs)*time.Millisecond)
	}
	return seen
}

// siteRate returns the speed of transfers into a site from outside, bytes per second; 0: not known. It asks all hosts
// of the site: most of them fetch from each other and do not know the speed, and the host that knows it may not want
// the template.
func (p *sharePass) siteRate(site string) (rate uint64) {
	for _, h := range p.hosts {
		if h.site == site {
			rate = max(rate, h.report.FetchBytesPerSecond)
		}
	}
	return rate
}

// templateRoutes decides which host fetches a template from which hosts, within one site and trust group. Other hosts
// cannot fetch the template.
func (p *sharePass) templateRoutes(at siteBlob, seen []sharing.TemplateHost, routes map[string]sharing.TemplateRoute, remote []string) {
	var hosts []sharing.Host
	for _, h := range p.hosts {
		if h.site != at.site || h.group != at.group {
			continue
		}
		seeks := routes[h.name].Order == sharing.Fetch && routes[h.name].Digest == at.digest
		holds := slices.ContainsFunc(seen, func(t sharing.TemplateHost) bool { return t.Name == h.name && t.Offers() && t.Digest == at.digest })
		host := h.asHost(at.digest, seeks)
		host.Whole = holds // a packed template counts only when the host has unpacked it
		if seeks || holds {
			hosts = append(hosts, host)
		}
	}
	p.routes(at, hosts, remote)
}
