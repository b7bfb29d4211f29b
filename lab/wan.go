// The WAN between sites: shaping, cutting and healing it while it is in use.

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Values of Status.Shaper.
const (
	shaperNone    = "nothing"
	shaperNetem   = "netem"
	shaperProcess = "link process"
	shaperMissing = "nothing passes: its link process is gone (`watari lab wan set` starts it again)"
)

// WAN returns the current shape of the WAN.
func (l *Lab) WAN() WAN { return l.state.WAN }

// WANSet changes the shape of the WAN. Packets in flight keep their old delay. A change between shaped and unshaped may
// lose a few packets. Cut sites stay cut.
func (l *Lab) WANSet(ctx context.Context, w WAN) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	l.state.WAN = w
	if err := l.save(); err != nil {
		return err
	}
	if err := l.applyWAN(ctx); err != nil {
		return fmt.Errorf("shape the WAN of lab %s as %s: %w", l.Name(), w, err)
	}
	return nil
}

// WANCut cuts sites off the WAN: their packets are lost without an error to the senders. This machine, where the
// manager usually runs, is connected to the first site's router. Cutting a site twice has no effect.
func (l *Lab) WANCut(ctx context.Context, sites ...string) error {
	return l.connectSites(ctx, sites, false)
}

// WANHeal reconnects sites to the WAN.
func (l *Lab) WANHeal(ctx context.Context, sites ...string) error {
	return l.connectSites(ctx, sites, true)
}

// Sites returns the names of the lab's sites.
func (l *Lab) Sites() []string {
	var names []string
	for site := range l.state.Sites {
		names = append(names, siteName(site))
	}
	return names
}

func (l *Lab) isCut(site int) bool { return slices.Contains(l.state.Cut, siteName(site)) }

func (l *Lab) connectSites(ctx context.Context, names []string, connect bool) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	sites := l.Sites()
	for _, name := range names {
		if !slices.Contains(sites, name) {
			return fmt.Errorf("lab %s has no site %q; it has %v", l.Name(), name, sites)
		}
	}
	var cut []string
	for _, site := range sites {
		named, before := slices.Contains(names, site), slices.Contains(l.state.Cut, site)
		if named && !connect || before && !named {
			cut = append(cut, site)
		}
	}
	l.state.Cut = cut
	if err := l.save(); err != nil {
		return err
	}
	return l.setUpHubRoutes()
}

// lock locks the lab and reloads its state.
func (l *Lab) lock(ctx context.Context) (unlock func(), err error) {
	if err := l.load(); err != nil {
		return nil, err
	}
	unlock, err = lockDirectory(ctx, l.dir, l.progress)
	if err != nil {
		return nil, err
	}
	if err := l.load(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// applyWAN shapes the WAN as the state says. If it is unshaped, the hub's kernel forwards at full speed. If it is
// shaped, netem limits packets at the ends of the spokes; if the kernel has no netem, a link process forwards in place
// of the hub's kernel.
func (l *Lab) applyWAN(ctx context.Context) error {
	if !l.state.WAN.Shaped() {
		if err := l.endLinkProcess(ctx); err != nil {
			return err
		}
		if err := l.clearNetem(); err != nil {
			return err
		}
		return l.forwardInKernel(true)
	}
	err := l.applyNetem()
	if errors.Is(err, errNoNetem) {
		if err := l.forwardInKernel(false); err != nil {
			return err
		}
		if err := l.setBursts(l.state.WAN.burstsPass()); err != nil {
			return err
		}
		if err := l.ensureLinkProcess(ctx); err != nil {
			return err
		}
		l.say("WAN %s, by a link process", l.state.WAN)
		return nil
	}
	if err != nil {
		return err
	}
	if err := l.endLinkProcess(ctx); err != nil {
		return err
	}
	l.say("WAN %s, by netem", l.state.WAN)
	return l.forwardInKernel(true)
}

// forwardInKernel switches forwarding in the hub's kernel on or off.
func (l *Lab) forwardInKernel(on bool) error {
	value := "0"
	if on {
		value = "1"
		if err := l.setBursts(true); err != nil {
			return err
		}
	}
	return setSysctl(l.namespacePath(hubNamespace), "net/ipv4/ip_forward", value)
}

// burstsPass reports whether the link process may pass a burst of up to 64 KiB as one packet, without segmentation.
// This takes a tenth of the work. It may not if single segments can be lost, or if a burst takes more than 3 ms.
func (w WAN) burstsPass() bool {
	const burst = 64 << 10 * 8 // bits
	return w.Loss == 0 && (w.Rate == 0 || burst*1000/w.Rate <= 3)
}

// setBursts allows or forbids packets of several segments, with checksums still to be computed, on the spokes.
func (l *Lab) setBursts(on bool) error {
	for site := range l.state.Sites {
		if err := setOffloads(l.namespacePath(routerNamespace(site)), linkWAN, on); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) currentShaper() string {
	switch {
	case !l.state.WAN.Shaped():
		return shaperNone
	case l.hasNetem():
		return shaperNetem
	case len(l.linkProcesses()) > 0:
		return shaperProcess
	}
	return shaperMissing
}

// setOffloads sets whether a link leaves segmentation and checksums to the receiver.
func setOffloads(namespace, link string, on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	return inNamespace(namespace, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		order := []uint32{unix.ETHTOOL_STXCSUM, unix.ETHTOOL_SSG, unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO}
		for _, command := range order {
			if err := setOffload(fd, link, command, value); err != nil {
				return fmt.Errorf("switch offloads of link %s: %w", link, err)
			}
		}
		return nil
	})
}
