package sharing

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// host returns host "a1" of site a and group g, in a state.
func host(name string, state TemplateState) TemplateHost {
	h := TemplateHost{Name: name, Site: name[:1], Group: "g", State: state}
	if state == Held {
		h.Digest, h.Size = "of-"+name, 25<<20
	}
	return h
}

func with(h TemplateHost, change func(*TemplateHost)) TemplateHost {
	change(&h)
	return h
}

func TestTemplates(t *testing.T) {
	group := func(g string) func(*TemplateHost) { return func(h *TemplateHost) { h.Group = g } }
	since := func(d time.Duration) func(*TemplateHost) { return func(h *TemplateHost) { h.Since = d } }
	for _, c := range []struct {
		name  string
		hosts []TemplateHost
		want  string
	}{
		{"one alone makes it", []TemplateHost{host("a1", Wanted)}, "a1 make"},
		{"one of a site makes it, the others wait", []TemplateHost{host("a2", Wanted), host("a1", Wanted), host("a3", Wanted)}, "a1 make; a2 wait; a3 wait"},
		{"one of each site", []TemplateHost{host("a1", Wanted), host("a2", Wanted), host("b1", Wanted), host("b2", Wanted)}, "a1 make; a2 wait; b1 make; b2 wait"},
		{"who was told to make it goes on, though another comes first by name",
			[]TemplateHost{host("a1", Wanted), with(host("a2", Wanted), func(h *TemplateHost) { h.Maker = true })}, "a1 wait; a2 make"},
		{"who makes it is waited for", []TemplateHost{host("a1", Wanted), host("a2", Making)}, "a1 wait"},
		{"not for ever", []TemplateHost{host("a1", Wanted), with(host("a2", Making), since(waitLimit(UsualMaking)))}, "a1 make"},
		{"nor is one that was told and does not begin",
			[]TemplateHost{with(host("a1", Wanted), func(h *TemplateHost) { h.Maker, h.Since = true, waitLimit(UsualMaking) }), host("a2", Wanted), host("a3", Wanted)},
			"a1 make; a2 make; a3 wait"},
		{"a quick making is waited for a short while",
			[]TemplateHost{host("a1", Wanted), with(host("a2", Making), func(h *TemplateHost) { h.Since, h.Took = 10*time.Second, 4*time.Second })}, "a1 make"},
		{"one that failed is not waited for", []TemplateHost{host("a1", Failed), host("a2", Wanted), host("a3", Wanted)}, "a2 make; a3 wait"},
		{"what a host of the site has is fetched", []TemplateHost{host("a1", Wanted), host("a2", Held), host("a3", Making)}, "a1 fetch of-a2"},
		{"also by one that failed to make it", []TemplateHost{host("a1", Failed), host("a2", Held)}, "a1 fetch of-a2"},
		{"of two, that which more have", []TemplateHost{host("a1", Wanted), host("a2", Held), host("a3", Held),
			with(host("a4", Held), func(h *TemplateHost) { h.Digest, h.FetchedIn = "of-a3", "g" })}, "a1 fetch of-a3"},
		{"another group's is not fetched", []TemplateHost{host("a1", Wanted), with(host("a2", Held), group("h"))}, "a1 make"},
		{"nor waited for", []TemplateHost{host("a1", Wanted), with(host("a2", Making), group("h"))}, "a1 make"},
		{"a host of no group is alone", []TemplateHost{with(host("a1", Wanted), group("")), with(host("a2", Held), group(""))}, "a1 make"},
		{"what was fetched in another group is not passed on",
			[]TemplateHost{host("a1", Wanted), with(host("a2", Held), func(h *TemplateHost) { h.FetchedIn = "h" })}, "a1 make"},
		{"what is not packed is not fetched", []TemplateHost{host("a1", Wanted), with(host("a2", Held), func(h *TemplateHost) { h.Digest = "" })}, "a1 make"},
		{"another site's is fetched where that is quicker",
			[]TemplateHost{with(host("a1", Wanted), func(h *TemplateHost) { h.Rate = 25 << 20 }), host("b1", Held), host("b2", Held)}, "a1 fetch of-b1 from [b1]"},
		{"not over a slow line", []TemplateHost{with(host("a1", Wanted), func(h *TemplateHost) { h.Rate = 100 << 10 }), host("b1", Held)}, "a1 make"},
		{"nor where making it is quick",
			[]TemplateHost{with(host("a1", Wanted), func(h *TemplateHost) { h.Rate = 5 << 20 }), with(host("b1", Held), func(h *TemplateHost) { h.Took = 3 * time.Second })}, "a1 make"},
		{"nor over a line that is not known", []TemplateHost{host("a1", Wanted), host("b1", Held)}, "a1 make"},
		{"another site's making is not waited for", []TemplateHost{host("a1", Wanted), host("b1", Making)}, "a1 make"},
	} {
		if got := templatesText(Templates(c.hosts)); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
}

func templatesText(routes map[string]TemplateRoute) string {
	var lines []string
	for name, r := range routes {
		line := name + " " + [...]string{"none", "make", "wait", "fetch"}[r.Order]
		if r.Digest != "" {
			line += " " + r.Digest
		}
		if len(r.Remote) > 0 {
			line += fmt.Sprintf(" from %v", r.Remote)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// For any hosts: each host that needs the template gets an order with a reason, no host waits unless another makes the
// template, and no template leaves its trust group.
func TestTemplatesOfAnyHosts(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 2))
		byName, holders := map[string]TemplateHost{}, map[string][]TemplateHost{}
		var hosts []TemplateHost
		for i := range 1 + random.IntN(8) {
			h := host(fmt.Sprintf("%c%d", 'a'+random.IntN(2), i), TemplateState(1+random.IntN(4)))
			h.Group = []string{"", "g", "h"}[random.IntN(3)]
			h.FetchedIn = []string{"", "", "g", "h"}[random.IntN(4)]
			h.Since = time.Duration(random.IntN(200)) * time.Second
			h.Maker, h.Rate = random.IntN(3) == 0, uint64(random.IntN(3))<<22
			hosts, byName[h.Name] = append(hosts, h), h
			holders[h.Digest] = append(holders[h.Digest], h)
		}
		routes := Templates(hosts)
		for name, h := range byName {
			r, answered := routes[name]
			if h.State == Wanted && (!answered || r.Reason == "") || answered && h.State != Wanted && (h.State != Failed || r.Order != Fetch) {
				t.Fatalf("seed %d: %s: %+v", seed, name, r)
			}
			switch r.Order {
			case Fetch:
				ok := slices.ContainsFunc(holders[r.Digest], func(o TemplateHost) bool {
					return h.Group != "" && o.Group == h.Group && (o.FetchedIn == "" || o.FetchedIn == h.Group)
				})
				if !ok {
					t.Fatalf("seed %d: %s fetches %s of %+v", seed, name, r.Digest, holders[r.Digest])
				}
			case Wait:
				made := slices.ContainsFunc(hosts, func(o TemplateHost) bool {
					return o.Site == h.Site && o.Group == h.Group && h.Group != "" && (o.State == Making || routes[o.Name].Order == Make)
				})
				if !made {
					t.Fatalf("seed %d: %s waits for nobody: %s", seed, name, templatesText(routes))
				}
			}
		}
	}
}
