package lab

import (
	"net/netip"
	"testing"
)

func TestAddresses(t *testing.T) {
	p := plan{slot: 0, sites: 2, hosts: 2}
	var got []string
	for _, h := range p.all() {
		got = append(got, h.Name+" "+h.Site+" "+h.Address.String())
	}
	want := []string{"a1 a 198.18.1.1", "a2 a 198.18.1.2", "b1 b 198.18.2.1", "b2 b 198.18.2.2"}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("hosts %q, want %q", got, want)
		}
	}
	if last := (plan{slot: slots - 1, sites: MaxSites}).lan(MaxSites - 1); last.String() != "198.19.254.0/24" {
		t.Errorf("the last LAN of the last lab is %s", last)
	}
}

// TestNoTwoAddressesAreEqual checks the largest lab in every slot.
func TestNoTwoAddressesAreEqual(t *testing.T) {
	owner := map[netip.Addr]string{}
	whole := netip.MustParsePrefix("198.18.0.0/15")
	for slot := range slots {
		p := plan{slot: slot, sites: MaxSites, hosts: MaxHosts}
		claim := func(a netip.Addr, what string) {
			if other, taken := owner[a]; taken {
				t.Fatalf("slot %d: %s is the address of %s and of %s", slot, a, other, what)
			}
			if owner[a] = what; !p.prefix().Contains(a) || !whole.Contains(a) {
				t.Fatalf("slot %d: %s of %s is outside %s", slot, a, what, p.prefix())
			}
		}
		claim(p.rootEnd(), "this machine")
		claim(p.rootPeer(), "the first router")
		for site := range p.sites {
			claim(p.router(site), "router")
			claim(p.spokeHub(site), "hub")
			claim(p.spokeSite(site), "spoke")
			if pair := netip.PrefixFrom(p.spokeHub(site), 30); !pair.Contains(p.spokeSite(site)) || pair.Masked().Addr() == p.spokeHub(site) {
				t.Fatalf("slot %d: spoke %s to %s is no /30", slot, p.spokeHub(site), p.spokeSite(site))
			}
		}
		for _, h := range p.all() {
			claim(h.Address, h.Name)
			if !p.lan(h.site).Contains(h.Address) {
				t.Fatalf("host %s with %s is outside its LAN %s", h.Name, h.Address, p.lan(h.site))
			}
		}
	}
}

func TestShapeIsChecked(t *testing.T) {
	for _, bad := range []struct {
		name         string
		sites, hosts int
	}{{"", 1, 1}, {"Up", 1, 1}, {"a/b", 1, 1}, {"..", 1, 1}, {"a-name-that-is-much-too-long", 1, 1}, {"x", 0, 1}, {"x", MaxSites + 1, 1}, {"x", 1, 0}, {"x", 1, MaxHosts + 1}} {
		if CheckShape(bad.name, bad.sites, bad.hosts) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if err := CheckShape("a-1", MaxSites, MaxHosts); err != nil {
		t.Error(err)
	}
}

func TestLinkNamesFit(t *testing.T) {
	if n := len(rootLinkName("abcdefghijklmnopqrstuvwx")); n > 15 {
		t.Errorf("the root link's name has %d characters, the kernel takes 15", n)
	}
}
