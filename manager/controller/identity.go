package controller

// identity.go - makes the identities of guests.

import (
	"crypto/hmac"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	v1 "watari/api/watariv1"
	"watari/ca"
)

// The gateway has the same address and MAC address on every host, so that a guest needs no new ones after a move.
const (
	gatewayAddress = "169.254.77.1"
	gatewayMAC     = "fe:77:61:74:61:72"
)

// The ordinary user of every guest, who owns the shared home.
const (
	GuestUser   = "watari"
	guestUserID = 1000
)

type madeIdentity struct {
	*v1.Identity
	generation uint32
	renew      time.Time // time to make another identity, with a new certificate
}

// identify makes a guest's identity for an epoch, and keeps it in memory until its certificate needs renewal or is revoked; its
// key is never stored. A restarted manager makes another identity, which is equally valid.
func (c *Controller) identify(cluster *v1.Cluster, g *v1.Guest, epoch uint64, generation uint32) (identity *v1.Identity, renew time.Time) {
	now, own := time.Now(), c.identities[g.Meta.Uid] // by epoch
	if made, has := own[epoch]; has && now.Before(made.renew) && made.generation == generation {
		return made.Identity, made.renew
	}
	id, err := newIdentity(cluster, g, epoch, generation)
	if err != nil {
		c.Log.Error("a guest's identity could not be made", "guest", g.Meta.Name, "error", err)
		return nil, time.Time{}
	}
	renew = now.Add(ca.GuestLife / 2)
	if own == nil {
		own = map[uint64]madeIdentity{}
		c.identities[g.Meta.Uid] = own
	}
	own[epoch] = madeIdentity{id, generation, renew}
	maps.DeleteFunc(own, func(made uint64, _ madeIdentity) bool { return made != epoch && made != g.Epoch }) // that of g.Epoch is in use while the guest moves
	return id, renew
}

// seal returns the seal of the facts that a host gets about a volume; nil: the seal could not be made, and matches nothing.
func (c *Controller) seal(host, uid string, f *v1.VolumeFacts) []byte {
	message := fmt.Appendf(nil, "%q %q %q %q %q %d %d", host, uid, f.GetName(), f.GetOwner(), f.GetOwnerUid(), f.GetSizeBytes(), f.GetGeneration())
	sum, err := c.Authority.MAC("volume", message)
	if err != nil {
		c.Log.Error("what a host is told about a volume could not be sealed", "error", err)
	}
	return sum
}

// sealed reports whether a host got these facts about a volume.
func (c *Controller) sealed(host, uid string, f *v1.VolumeFacts) bool {
	return hmac.Equal(c.seal(host, uid, f), f.GetSeal()) && len(f.GetSeal()) > 0
}

// forgetIdentities drops the identities of a deleted guest.
func (c *Controller) forgetIdentities(uid string) {
	delete(c.identities, uid)
}

func newIdentity(cluster *v1.Cluster, g *v1.Guest, epoch uint64, generation uint32) (*v1.Identity, error) {
	authority, err := ca.Load(cluster.GetCaCertificate(), cluster.GetCaKey())
	if err != nil {
		return nil, fmt.Errorf("load the authority of cluster %s: %w", g.Cluster, err)
	}
	pair, err := authority.IssueGuest(g.Cluster, g.Meta.Name, generation)
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
		User: GuestUser, Uid: guestUserID, Volume: g.Index == 0 && cluster.Spec.GetVolume() != "",
	}, nil
}
