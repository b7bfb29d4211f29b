package lab

// manager.go - a lab's calls to the manager: it gets tokens for hosts, and removes hosts of earlier labs.

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/client"
	"watari/lab"
)

// token asks the manager of the client config for a host's join token. It assumes that this manager runs on this
// machine, so only its port is used.
func (v *verbs) token(ctx context.Context, site string) (token, port string, err error) {
	config, err := v.LoadConfig()
	if err != nil {
		return "", "", err
	}
	if len(config.Managers) == 0 {
		return "", "", errors.New("the client config names no manager")
	}
	c, err := v.Client()
	if err != nil {
		return "", "", err
	}
	if err := v.trust(ctx, c, site); err != nil {
		return "", "", fmt.Errorf("declare the LAN of site %s trusted: %w", site, err)
	}
	response, err := c.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Site: site}))
	if err != nil {
		return "", "", err
	}
	port = lab.DefaultManagerPort
	if address, err := url.Parse(config.Managers[0]); err == nil && address.Port() != "" {
		port = address.Port()
	}
	return response.Msg.GetToken(), port, nil
}

// trust declares the LAN of a lab's site trusted, unless the manager knows the site: it may be a site of real machines.
func (v *verbs) trust(ctx context.Context, c *client.Client, site string) error {
	known, err := c.ListSites(ctx, connect.NewRequest(&v1.ListSitesRequest{}))
	if err != nil || slices.ContainsFunc(known.Msg.Sites, func(s *v1.Site) bool { return s.GetMeta().GetName() == site }) {
		return err
	}
	if _, err := c.SetSite(ctx, connect.NewRequest(&v1.SetSiteRequest{Name: site, TrustedLan: true})); err != nil {
		return err
	}
	v.Notef("the LAN of site %s is declared trusted: its hosts talk without encryption (watari site set %s --trusted-lan=false)", site, site)
	return nil
}

// admit checks whether the manager can admit a host. If the manager has a host of that name from an earlier lab, whose
// processes and disk are gone, admit removes it.
func (v *verbs) admit(ctx context.Context, host lab.Host, joined bool) error {
	c, err := v.Client()
	if err != nil {
		return err
	}
	known, err := find(ctx, c, host.Name)
	switch {
	case joined && err != nil:
		return nil // its agent needs no token and waits for the manager
	case err != nil:
		return err
	case joined && known == nil:
		return fmt.Errorf("it has joined a manager that has forgotten it, or another one; take the lab down first (watari lab down --name %s)", v.name)
	case joined || known == nil:
		return nil
	case !leftOver(known):
		return fmt.Errorf("the manager has another host %s; take down the lab to which it belongs (watari lab list), or remove it (watari host remove %s)",
			host.Name, host.Name)
	}
	v.Notef("removing host %s of a lab that no longer exists from the manager", host.Name)
	return remove(ctx, c, host.Name)
}

func find(ctx context.Context, c *client.Client, name string) (*v1.Host, error) {
	response, err := c.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{Name: name}))
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, h := range response.Msg.Hosts {
		if h.GetMeta().GetName() == name {
			return h, nil
		}
	}
	return nil, nil
}

// leftOver reports whether a host belonged to a lab of this machine that no longer exists: its address is in the labs'
// prefix, but no existing lab has it.
func leftOver(known *v1.Host) bool {
	names, err := lab.List()
	if err != nil || known.State == v1.HostState_HOST_STATE_READY || known.State == v1.HostState_HOST_STATE_WITHDRAWN || !maybeLabHost(known) {
		return false
	}
	for _, name := range names {
		l, err := lab.Open(name)
		if err != nil {
			return false // the host's lab cannot be determined
		}
		for _, h := range l.Joined() {
			if isHost(known, h) {
				return false
			}
		}
	}
	return true
}

// neverSeen reports whether a host has joined but never connected. It has no address then, and never had a guest.
func neverSeen(known *v1.Host) bool { return known.GetInfo().GetLanAddress() == "" }

func maybeLabHost(known *v1.Host) bool {
	address, err := netip.ParseAddr(known.GetInfo().GetLanAddress())
	return neverSeen(known) || err == nil && lab.Prefix.Contains(address)
}

// isHost reports whether the manager's host is this host of a lab.
func isHost(known *v1.Host, host lab.Host) bool {
	return known.GetMeta().GetName() == host.Name &&
		(neverSeen(known) || known.GetInfo().GetLanAddress() == host.Address.String())
}

// removeLimit is how long the manager may take to notice that a host is gone.
const removeLimit = 20 * time.Second

// remove removes a host that is gone for good, as soon as the manager has noticed that it is gone.
func remove(ctx context.Context, c *client.Client, name string) error {
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	for {
		_, err := c.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: name, Lost: true}))
		if err == nil || connect.CodeOf(err) == connect.CodeNotFound {
			return nil
		}
		if connect.CodeOf(err) != connect.CodeFailedPrecondition {
			return fmt.Errorf("remove host %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove host %s: %w", name, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// forget removes the hosts of a lab that was taken down. If the manager does not answer, it keeps them; taking the lab
// down does not fail because of that.
func (v *verbs) forget(ctx context.Context, hosts []lab.Host) {
	var kept, gone []string
	var reason error
	c, err := v.Client()
	for _, host := range hosts {
		known := false
		if err == nil {
			known, err = v.forgetOne(ctx, c, host)
		}
		switch {
		case err != nil:
			kept, reason = append(kept, host.Name), err
		case known:
			gone = append(gone, host.Name)
		}
	}
	if len(gone) > 0 {
		v.Notef("the manager has removed hosts %s", strings.Join(gone, ", "))
	}
	if len(kept) > 0 {
		v.Notef("the manager still lists hosts %s (%v); the next `watari lab up` or `watari host remove --lost` removes them",
			strings.Join(kept, ", "), client.Explain(reason))
	}
}

// forgetOne removes a host and reports whether the manager knew it. It does not remove another lab's host of the same
// name.
func (v *verbs) forgetOne(ctx context.Context, c *client.Client, host lab.Host) (known bool, err error) {
	found, err := find(ctx, c, host.Name)
	if err != nil || found == nil || !isHost(found, host) {
		return false, err
	}
	return true, remove(ctx, c, host.Name)
}
