// The WAN between sites: shaping it, cutting and healing it, while it is in use.

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// What shapes a WAN, as Status says it.
const (
	shaperNone    = "nothing"
	shaperNetem   = "netem"
	shaperProcess = "link process"
	shaperMissing = "nothing passes: its link process is gone (`watari lab wan set` starts it again)"
)

// WAN is how the WAN is shaped now.
func (l *Lab) WAN() WAN { return l.state.WAN }

// WANSet shapes the WAN anew. Packets on their way keep the delay they had; a change between shaped and unshaped may
// lose a few. Cut sites stay cut.
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

// WANCut cuts sites off the WAN: packets vanish, nothing is told to their senders. The manager's machine stands beside
// the first site. Repeating it changes nothing.
func (l *Lab) WANCut(ctx context.Context, sites ...string) error {
	return l.connectSites(ctx, sites, false)
}

// WANHeal ends the cut of sites.
func (l *Lab) WANHeal(ctx context.Context, sites ...string) error {
	return l.connectSites(ctx, sites, true)
}

// Sites names the lab's sites.
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

// lock locks the lab and reads it again.
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

// applyWAN makes the WAN what the state says. Unshaped, the hub's kernel forwards at full speed; shaped, netem holds
// packets back at the spokes' ends, or where the kernel has none, a process forwards in the hub's stead.
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

// forwardInKernel says whether the hub's kernel forwards.
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

// burstsPass says whether the link process may pass a sender's burst of up to 64 KiB as one packet, as the kernel
// hands it over when nobody makes it segment: that takes a tenth of the work. Not where each segment may be lost alone,
// nor where a burst takes more than 3 ms.
func (w WAN) burstsPass() bool {
	const burst = 64 << 10 * 8 // bits
	return w.Loss == 0 && (w.Rate == 0 || burst*1000/w.Rate <= 3)
}

// setBursts says whether packets of several segments, with checksums left to do, may go into the spokes.
func (l *Lab) setBursts(on bool) error {
	for site := range l.state.Sites {
		if err := setOffloads(l.namespacePath(routerNamespace(site)), linkWAN, on); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) shaperNow() string {
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

// setOffloads switches whether a link leaves segmentation and checksums to its receiver.
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
