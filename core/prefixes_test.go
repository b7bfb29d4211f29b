package core

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "watari/api/watariv1"
)

func TestAPrefixIsAsLargeAsItsCluster(t *testing.T) {
	for guests, want := range map[int]int{1: 24, 120: 24, 245: 24, 246: 23, 501: 23, 502: 22, 1000: 22} {
		if got := prefixBits(guests); got != want {
			t.Errorf("%d guests: /%d, want /%d", guests, got, want)
		}
	}
}

func TestAFreePrefixOverlapsNoOther(t *testing.T) {
	for _, c := range []struct {
		whole  string
		taken  []string
		guests int
		want   string // empty: none
	}{
		{"10.77.0.0/16", nil, 4, "10.77.0.0/24"},
		{"10.77.0.0/16", []string{"10.77.1.0/24", "10.77.0.0/24"}, 4, "10.77.2.0/24"},
		{"10.77.0.0/16", []string{"10.77.0.0/24", "10.77.2.0/24"}, 4, "10.77.1.0/24"},
		{"10.77.0.0/16", []string{"10.77.0.0/24"}, 1000, "10.77.4.0/22"},
		{"10.77.0.0/16", []string{"10.77.5.0/24"}, 1000, "10.77.0.0/22"},
		{"10.77.0.0/16", []string{"10.77.0.0/22"}, 4, "10.77.4.0/24"},
		{"10.77.0.0/16", []string{"10.77.0.0/24", "10.77.4.0/22", "10.77.9.0/24"}, 300, "10.77.2.0/23"},
		{"10.77.255.0/24", []string{"10.77.255.0/24"}, 4, ""},
		{"10.77.255.0/24", nil, 1000, ""},
		{"10.77.0.0/16", []string{"192.0.2.0/24", "10.0.0.0/24", "fd00::/64", ""}, 4, "10.77.0.0/24"},
		{"10.77.4.0/22", []string{"10.77.0.0/16"}, 4, ""},
		{"255.255.255.0/24", nil, 4, "255.255.255.0/24"},
		{"255.255.255.0/24", []string{"255.255.255.0/24"}, 4, ""},
		{"0.0.0.0/0", []string{"0.0.0.0/1"}, 4, "128.0.0.0/24"},
	} {
		s := &Objects{Clusters: map[string]*v1.Cluster{}}
		for i, p := range c.taken {
			s.Clusters[fmt.Sprint(i)] = &v1.Cluster{Prefix: p}
		}
		got, err := freePrefix(netip.MustParsePrefix(c.whole), s, c.guests)
		if c.want == "" && KindOf(err) != Exhausted || c.want != "" && (err != nil || got.String() != c.want) {
			t.Errorf("%v: got %v, %v", c, got, err)
		}
	}
}

func TestGuestsAreNumberedThroughTheirPrefix(t *testing.T) {
	p := netip.MustParsePrefix("10.77.4.0/22")
	for i, want := range map[int]string{0: "10.77.4.10", 245: "10.77.4.255", 246: "10.77.5.0", 999: "10.77.7.241"} {
		if got := guestAddress(p, i); got.String() != want || !p.Contains(got) {
			t.Errorf("guest %d: %v, want %s", i, got, want)
		}
	}
}
