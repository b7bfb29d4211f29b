// NAT: hosts of a lab that only dial out. Their site's router translates their addresses towards the WAN, and drops incoming
// packets that they have not requested.

package lab

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
)

// WANNAT puts these sites and hosts behind NAT, and no others.
func (l *Lab) WANNAT(ctx context.Context, names ...string) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, name := range names {
		if _, err := l.Host(name); err != nil && !slices.Contains(l.Sites(), name) {
			return fmt.Errorf("lab %s has neither a site nor a host %q; `watari lab status --name %[1]s` shows them", l.Name(), name)
		}
	}
	l.state.NAT = names
	if err := l.save(); err != nil {
		return err
	}
	for site := range l.state.Sites {
		if err := l.applyNAT(site); err != nil {
			return fmt.Errorf("NAT of site %s: %w", siteName(site), err)
		}
	}
	return nil
}

// natted returns the addresses of a site that are behind NAT.
func (l *Lab) natted(site int) (list []netip.Prefix) {
	p := l.state.plan()
	if slices.Contains(l.state.NAT, siteName(site)) {
		return []netip.Prefix{p.lan(site)}
	}
	for _, host := range p.all() {
		if host.site == site && slices.Contains(l.state.NAT, host.Name) {
			list = append(list, netip.PrefixFrom(host.Address, 32))
		}
	}
	return list
}

// applyNAT sets the rules of a site's router. The link between this machine and the first site's router is not the WAN.
func (l *Lab) applyNAT(site int) error {
	rules := "add table ip watari-lab\ndelete table ip watari-lab\n"
	if hosts := l.natted(site); len(hosts) > 0 {
		var words []string
		for _, host := range hosts {
			words = append(words, host.String())
		}
		set := "{ " + strings.Join(words, ", ") + " }"
		rules += `table ip watari-lab {
	chain out {
		type nat hook postrouting priority srcnat;
		oifname "` + linkWAN + `" ip saddr ` + set + ` masquerade
	}
	chain in {
		type filter hook forward priority filter;
		iifname "` + linkWAN + `" ip daddr ` + set + ` ct direction original drop
	}
}
`
	}
	command := exec.Command("nft", "-f", "-")
	command.Stdin = strings.NewReader(rules)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if err := inNamespace(l.namespacePath(routerNamespace(site)), command.Run); err != nil {
		return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}
