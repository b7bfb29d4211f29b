package controller

// identity.go - what makes a restored template into one guest.

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/manager/store"
)

// The gateway is the same on every host, address and MAC, so that nothing has to be learnt anew after a move.
const (
	gatewayAddress = "169.254.77.1"
	gatewayMAC     = "fe:77:61:74:61:72"
)

// The ordinary user of every guest, who owns the shared home.
const (
	GuestUser   = "watari"
	guestUserID = 1000
)

type identityKey struct {
	uid   string
	epoch uint64
}

// identity makes the guest's identity for an epoch once and remembers it; entropy and key are nowhere else. A
// manager started anew makes another, which is as good. Peers are as they are now.
func (c *Controller) identity(s *store.Snapshot, g *v1.Guest, epoch uint64) *v1.Identity {
	key := identityKey{g.Meta.Uid, epoch}
	id := c.identities[key]
	if id == nil {
		made, err := newIdentity(s.Clusters[g.Cluster], g, epoch)
		if err != nil {
			c.Log.Error("a guest's identity could not be made", "guest", g.Meta.Name, "error", err)
			return nil
		}
		for old := range c.identities {
			if old.uid == key.uid && old.epoch+1 < epoch {
				delete(c.identities, old)
			}
		}
		id = made
		c.identities[key] = id
	}
	id = proto.CloneOf(id) // what was handed out before stays as it was
	setPeers(id, s, g.Cluster)
	return id
}

func newIdentity(cluster *v1.Cluster, g *v1.Guest, epoch uint64) (*v1.Identity, error) {
	authority, err := ca.Load(cluster.GetCaCertificate(), cluster.GetCaKey())
	if err != nil {
		return nil, fmt.Errorf("load the authority of cluster %s: %w", g.Cluster, err)
	}
	pair, err := authority.IssueGuest(g.Cluster, g.Meta.Name)
	if err != nil {
		return nil, err
	}
	address, err := netip.ParseAddr(g.Address)
	if err != nil {
		return nil, fmt.Errorf("address of guest %s: %w", g.Meta.Name, err)
	}
	b := address.As4()
	entropy := make([]byte, 64)
	rand.Read(entropy)
	return &v1.Identity{
		GuestUid: g.Meta.Uid, Name: g.Meta.Name, Cluster: g.Cluster, Epoch: epoch,
		Address: g.Address, Prefix: cluster.Prefix, Mtu: cluster.Mtu,
		Mac:     fmt.Sprintf("02:77:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3]),
		Gateway: gatewayAddress, GatewayMac: gatewayMAC,
		MachineId: strings.ReplaceAll(g.Meta.Uid, "-", ""), Entropy: entropy,
		CaCertificate: cluster.CaCertificate, Certificate: pair.Certificate, Key: pair.Key,
		User: GuestUser, Uid: guestUserID,
	}, nil
}

// setPeers fills in the cluster's guests, by index, and the one that serves the shared home.
func setPeers(id *v1.Identity, s *store.Snapshot, cluster string) {
	var guests []*v1.Guest
	for _, g := range s.Guests {
		if g.Cluster == cluster {
			guests = append(guests, g)
		}
	}
	slices.SortFunc(guests, func(a, b *v1.Guest) int { return cmp.Compare(a.Index, b.Index) })
	peers := make([]*v1.Peer, len(guests))
	for i, g := range guests {
		peers[i] = &v1.Peer{Name: g.Meta.Name, Address: g.Address, Slots: g.Shape.GetVcpus()}
	}
	id.Peers = peers
	if len(guests) > 0 {
		id.HomeServer = guests[0].Address
	}
}
