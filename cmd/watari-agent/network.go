package main

// network.go - adapts package overlay, the tunnel, the image cache and guests' channels to the agent's interfaces.

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"watari/agent"
	"watari/agent/cache"
	"watari/agent/domain"
	"watari/agent/machine"
	"watari/agent/tunnel"
	"watari/agent/vm"
	"watari/agent/volume"
	v1 "watari/api/watariv1"
	"watari/guest/link"
	"watari/overlay"
)

// network adapts the overlay.
type network struct{ *overlay.Overlay }

func overlayGuest(g machine.Tap) (overlay.Guest, error) {
	o := overlay.Guest{UID: g.UID, Cluster: g.Cluster}
	var err error
	if o.Address, err = netip.ParseAddr(g.Address); err != nil {
		return o, fmt.Errorf("guest %s: address: %w", g.UID, err)
	}
	if o.Prefix, err = netip.ParsePrefix(g.Prefix); err != nil {
		return o, fmt.Errorf("guest %s: prefix: %w", g.UID, err)
	}
	if g.MAC != "" {
		if o.MAC, err = net.ParseMAC(g.MAC); err != nil {
			return o, fmt.Errorf("guest %s: %w", g.UID, err)
		}
	}
	return o, nil
}

func (n network) PlugGuest(ctx context.Context, g machine.Tap, mtu uint32) (string, error) {
	o, err := overlayGuest(g)
	if err != nil {
		return "", err
	}
	return n.Overlay.PlugGuest(ctx, o, int(mtu))
}

func (n network) Plugged() []string {
	var uids []string
	for _, g := range n.Guests() {
		uids = append(uids, g.UID)
	}
	return uids
}

func (n network) Apply(ctx context.Context, wanted *v1.NetworkWanted, local []machine.Tap) error {
	guests := make([]overlay.Guest, 0, len(local))
	for _, g := range local {
		o, err := overlayGuest(g)
		if err != nil {
			return err
		}
		guests = append(guests, o)
	}
	return n.Overlay.Apply(ctx, wanted, guests)
}

// tunnels adapts the migration tunnel.
type tunnels struct{ *tunnel.Tunnels }

func (t tunnels) Expect(e agent.Expected) (stop func()) { return t.Tunnels.Expect(tunnel.Expected(e)) }

func (t tunnels) Open(ctx context.Context, order *v1.MigrationOrder, migrateSocket string) (agent.OutgoingTunnel, error) {
	out, err := t.Tunnels.Open(ctx, tunnel.Order{Migration: order.Id, MigrateSocket: migrateSocket, Target: order.TargetHost, TargetUID: order.TargetUid, Address: order.TargetAddress})
	if err != nil {
		return agent.OutgoingTunnel{}, err
	}
	return agent.OutgoingTunnel{
		Options: domain.MigrateOptions{
			DestURI:        "qemu+unix:///system?socket=" + out.LibvirtSocket,
			MigrateURI:     "unix://" + out.MigrateSocket,
			BandwidthBytes: order.BandwidthBytes,
		},
		Err: out.Err, Sent: out.Sent, Close: out.Close,
	}, nil
}

// images adapts the cache.
type images struct{ *cache.Cache }

func (i images) Ensure(ctx context.Context, image *v1.Image, step func(string)) (agent.ImageFiles, error) {
	files, err := i.Cache.Ensure(ctx, image, step)
	return agent.ImageFiles(files), err
}

// dialGuest opens a guest's channel.
func dialGuest(_, socket string) agent.GuestChannel {
	return link.NewClient(func(ctx context.Context) (net.Conn, error) { return link.DialUnix(ctx, filepath.Clean(socket)) })
}

// volumes provides the parts of libvirt and the tunnel that volumes use.
type volumes struct {
	libvirt *vm.Libvirt
	tunnels *tunnel.Tunnels
}

func (v volumes) VolumeSocket(guest string) (string, error) { return v.libvirt.VolumeSocket(guest) }

func (v volumes) QEMUUser() (user volume.User, known bool) {
	user.UID, user.GID, known = v.libvirt.QEMUUser()
	return user, known
}

func (v volumes) Carry(ctx context.Context, local net.Conn, from *v1.BlobPeer, uid string) error {
	return v.tunnels.Volume(ctx, local, tunnel.Peer{Name: from.Name, UID: from.Uid, Address: from.Address}, uid)
}
