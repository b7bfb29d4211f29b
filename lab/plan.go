// The names and addresses of a lab's sites, hosts and links. All derive from the lab's name, slot and shape.

package lab

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"regexp"
)

const (
	// MaxSites and MaxHosts (per site) are limited by the size of a lab's /20.
	MaxSites = 14
	MaxHosts = 200
	// slots is the number of labs: each has a /20 of 198.18.0.0/15, the prefix for network tests (RFC 2544).
	slots = 32
)

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,23}$`)

func checkName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("lab name %q: must be lower-case letters, digits and dashes, begin with a letter, and have at most 24 characters", name)
	}
	return nil
}

// CheckShape checks a lab's name and its numbers of sites and of hosts per site.
func CheckShape(name string, sites, hosts int) error {
	if err := checkName(name); err != nil {
		return err
	}
	if sites < 1 || sites > MaxSites {
		return fmt.Errorf("%d sites: must be 1 to %d", sites, MaxSites)
	}
	if hosts < 1 || hosts > MaxHosts {
		return fmt.Errorf("%d hosts on each site: must be 1 to %d", hosts, MaxHosts)
	}
	return nil
}

// Prefix holds the addresses of all labs. It is the prefix for network tests (RFC 2544).
var Prefix = netip.MustParsePrefix("198.18.0.0/15")

// plan is the address plan of one lab. The first /24 of its /20 is for the links between namespaces; each site has one
// of the next.
type plan struct {
	slot, sites, hosts int
}

// Host is one host of a lab.
type Host struct {
	Name    string     `json:"name"` // site and number: a1
	Site    string     `json:"site"`
	Address netip.Addr `json:"address"` // on the site's LAN

	site, number int
}

func siteName(site int) string { return string(rune('a' + site)) }

func (p plan) at(third, fourth int) netip.Addr {
	n := p.slot*16 + third
	return netip.AddrFrom4([4]byte{198, byte(18 + n>>8), byte(n), byte(fourth)})
}

// prefix holds all addresses of the lab.
func (p plan) prefix() netip.Prefix { return netip.PrefixFrom(p.at(0, 0), 20) }

// lan returns a site's prefix. Host n has the address .n in it, the router .254.
func (p plan) lan(site int) netip.Prefix           { return netip.PrefixFrom(p.at(site+1, 0), 24) }
func (p plan) router(site int) netip.Addr          { return p.at(site+1, 254) }
func (p plan) address(site, number int) netip.Addr { return p.at(site+1, number) }

// rootEnd and rootPeer are the two ends of the link between this machine and the router of the first site.
func (p plan) rootEnd() netip.Addr  { return p.at(0, 1) }
func (p plan) rootPeer() netip.Addr { return p.at(0, 2) }

// rootLink is the prefix of that link.
func (p plan) rootLink() netip.Prefix { return netip.PrefixFrom(p.at(0, 0), 30) }

// spokeHub and spokeSite are the two ends of a site's link to the hub.
func (p plan) spokeHub(site int) netip.Addr  { return p.at(0, 17+4*site) }
func (p plan) spokeSite(site int) netip.Addr { return p.at(0, 18+4*site) }

func (p plan) all() []Host {
	var hosts []Host
	for s := range p.sites {
		for n := 1; n <= p.hosts; n++ {
			hosts = append(hosts, Host{
				Name: fmt.Sprintf("%s%d", siteName(s), n), Site: siteName(s), Address: p.address(s, n), site: s, number: n,
			})
		}
	}
	return hosts
}

// hardwareAddress returns a fixed address for each end of a link. So neighbour tables stay right when a host crashes,
// and the WAN's link process needs no neighbour discovery.
func (p plan) hardwareAddress(kind byte, site, number int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x57, kind, byte(p.slot), byte(site), byte(number)}
}

const (
	macHost   = 'H' // a host's eth0
	macBridge = 'B' // a site's LAN bridge
	macWAN    = 'W' // a router's end of its spoke
	macHub    = 'U' // the hub's end of a spoke
)

// Names of links. Names inside the lab's namespaces need not differ between labs.
const (
	linkLAN  = "lan"  // bridge, in a router
	linkWAN  = "wan"  // spoke, router's end
	linkRoot = "root" // link to the machine, router's end
	linkHost = "eth0" // in a host
)

func spokeLink(site int) string { return "spoke-" + siteName(site) }

// rootLinkName returns the name of the machine's end of its link to the lab, the only link outside the lab's
// namespaces.
func rootLinkName(lab string) string {
	h := fnv.New32a()
	h.Write([]byte(lab))
	return fmt.Sprintf("wlab%08x", h.Sum32())
}

// Names of namespaces.
const hubNamespace = "hub"

func routerNamespace(site int) string { return "router-" + siteName(site) }

func (p plan) namespaces() []string {
	names := []string{hubNamespace}
	for s := range p.sites {
		names = append(names, routerNamespace(s))
	}
	return names
}
