// Package overlay is a host's part of the clusters' own network: the tap of each guest, a route for each guest's
// address, WireGuard to other sites, and the packet filter that keeps clusters apart from each other and from
// hosts. It is routed, not bridged: a guest has one IPv4 address, which it keeps wherever it runs, and a move is
// one route replaced on each host. docs/design/overlay.md says why and how.
//
// Everything is kept in the kernel alone, marked as ours (route protocol 119, interfaces' aliases, nftables table
// "watari"), so that a new agent finds what an earlier one left, whatever ended it. All of it needs root.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "watari/api/watariv1"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// Device is the name of a host's one WireGuard device.
	Device = "watari0"
	// DefaultWireGuardPort is the UDP port it listens on.
	DefaultWireGuardPort = 7072
	// DefaultMTU fits, in bytes, a guest's packet into WireGuard over IPv6 over Ethernet (1500 - 80).
	DefaultMTU = 1420
	// wireGuardOverhead is what WireGuard adds to a packet, in bytes, when it travels over IPv6: 40 + 8 + 32.
	wireGuardOverhead = 80
)

// Gateway is the address of every guest's gateway: the host's end of its tap, with GatewayMAC, on every host.
var (
	Gateway    = netip.MustParseAddr("169.254.77.1")
	GatewayMAC = net.HardwareAddr{0xfe, 0x77, 0x61, 0x74, 0x61, 0x72}
)

// Config says where a host's overlay lives.
type Config struct {
	StateDir string // kept over reboots: the WireGuard key
	RunDir   string // emptied at boot: the WireGuard process's log, sysctls as they were found
	HostName string // this host's name in routes
	// LANInterface and LANAddress name the way to the other hosts; one of them is enough. An interface alone
	// needs one IPv4 address on it.
	LANInterface string
	LANAddress   netip.Addr
	// WireGuardPort is the UDP port to listen on; 0: DefaultWireGuardPort.
	WireGuardPort int
	// AgentBinary is run as "AgentBinary wireguard ..." (RunWireGuard) where the kernel has no WireGuard.
	AgentBinary string
	Logger      *slog.Logger // nil: slog.Default()
}

// Guest is what the overlay needs to know of a guest.
type Guest struct {
	UID     string
	Cluster string
	Address netip.Addr       // IPv4, the guest's own
	MAC     net.HardwareAddr // nil: GuestMAC(Address)
	Prefix  netip.Prefix     // the cluster's
}

// GuestMAC is the MAC address of the guest with an IPv4 address: 02:77 and the address.
func GuestMAC(address netip.Addr) net.HardwareAddr {
	a := address.As4()
	return net.HardwareAddr{0x02, 0x77, a[0], a[1], a[2], a[3]}
}

// Overlay is a host's part of the overlay. Its methods may be called from several goroutines; each waits for the
// one before. Make it with New in the network namespace it is to work in.
type Overlay struct {
	log      *slog.Logger
	cfg      Config
	lan      lan
	key      wgtypes.Key
	handle   *netlink.Handle
	control  *wgctrl.Client
	patience patience                 // with the control client
	found    atomic.Pointer[[]string] // by the last Check; not under mu, which an Apply may hold for long

	mu        sync.Mutex
	prepared  bool                           // sysctls are set and the filter stands
	guests    map[string]Guest               // plugged in here, by UID
	clusters  map[netip.Prefix]bool          // that the filter lets pass between hosts
	wanted    map[netip.Prefix]bool          // the clusters of the last NetworkWanted
	leftOut   []string                       // of the last NetworkWanted, and why
	accepted  time.Time                      // when somebody else's FORWARD chain was seen to accept our traffic
	endpoints map[wgtypes.Key]netip.AddrPort // as last set, for peers may roam
	peers     map[wgtypes.Key]*peer          // of the last NetworkWanted
	seen      map[wgtypes.Key]traffic        // of the peers, at the last look
	looked    time.Time                      // when that was
}

// lan is the interface to the other hosts.
type lan struct {
	name    string
	index   int
	mtu     int
	address netip.Addr
}

// New finds the LAN interface, makes or reads the WireGuard key and finds out what an earlier agent left in the
// kernel. It changes nothing there; PlugGuest and Apply do.
func New(cfg Config) (*Overlay, error) {
	if cfg.WireGuardPort == 0 {
		cfg.WireGuardPort = DefaultWireGuardPort
	}
	o := &Overlay{
		log: cfg.Logger, cfg: cfg, guests: map[string]Guest{}, clusters: map[netip.Prefix]bool{},
		wanted: map[netip.Prefix]bool{}, endpoints: map[wgtypes.Key]netip.AddrPort{}, patience: patience{limit: controlTime},
	}
	if o.log == nil {
		o.log = slog.Default()
	}
	var err error
	if o.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("overlay: open route netlink: %w", err)
	}
	if o.lan, err = findLAN(o.handle, cfg.LANInterface, cfg.LANAddress); err != nil {
		o.handle.Close()
		return nil, fmt.Errorf("overlay: %w", err)
	}
	if o.key, err = loadKey(cfg.StateDir); err != nil {
		o.handle.Close()
		return nil, fmt.Errorf("overlay: %w", err)
	}
	if o.control, err = wgctrl.New(); err != nil {
		o.handle.Close()
		return nil, fmt.Errorf("overlay: open WireGuard control: %w", err)
	}
	if o.guests, err = pluggedGuests(o.handle); err != nil {
		o.Close()
		return nil, fmt.Errorf("overlay: list taps: %w", err)
	}
	return o, nil
}

// Close lets go of sockets. The network stays as it is.
func (o *Overlay) Close() error {
	o.handle.Close()
	return o.control.Close()
}

// PublicKey is the host's WireGuard public key, base64.
func (o *Overlay) PublicKey() string { return o.key.PublicKey().String() }

// LANMTU is the MTU of the LAN interface, bytes.
func (o *Overlay) LANMTU() int { return o.lan.mtu }

// Guests lists the guests that are plugged in here, those of an earlier agent included.
func (o *Overlay) Guests() []Guest {
	o.mu.Lock()
	defer o.mu.Unlock()
	guests := make([]Guest, 0, len(o.guests))
	for _, g := range o.guests {
		guests = append(guests, g)
	}
	return guests
}

// PlugGuest makes the guest's tap, ready for QEMU to open, and lets the guest's packets pass the filter. Nothing
// is routed to it until Apply is told that it is local. mtu is in bytes; 0: DefaultMTU. It may be repeated.
func (o *Overlay) PlugGuest(ctx context.Context, g Guest, mtu int) (tap string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	tap, err = o.plug(ctx, g, mtu)
	if err != nil {
		return "", fmt.Errorf("plug guest %s (%s): %w", g.UID, g.Address, err)
	}
	return tap, nil
}

func (o *Overlay) plug(ctx context.Context, g Guest, mtu int) (string, error) {
	if err := g.check(); err != nil {
		return "", err
	}
	if g.MAC == nil {
		g.MAC = GuestMAC(g.Address)
	}
	if mtu == 0 {
		mtu = DefaultMTU
	}
	if err := o.prepare(ctx); err != nil {
		return "", err
	}
	tap := TapName(g.UID)
	link, err := o.makeTap(tap, g, mtu)
	if err != nil {
		return "", err
	}
	// The filter knows the tap before the tap is up: at no moment is a guest unfiltered.
	if err := o.filterGuest(ctx, tap, g); err != nil {
		return "", err
	}
	if err := o.raiseTap(link, g); err != nil {
		return "", err
	}
	return tap, nil
}

func (g Guest) check() error {
	switch {
	case len(g.UID) < 8:
		return fmt.Errorf("uid %q is too short", g.UID)
	case !g.Address.Is4():
		return fmt.Errorf("address %v is not IPv4", g.Address)
	case !g.Prefix.IsValid() || !g.Prefix.Contains(g.Address):
		return fmt.Errorf("address is not in the cluster's prefix %v", g.Prefix)
	}
	return nil
}

// UnplugGuest takes away all that PlugGuest made, and with it the route to the tap. A guest that is not plugged
// in is no error.
func (o *Overlay) UnplugGuest(ctx context.Context, uid string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.prepare(ctx); err != nil {
		return fmt.Errorf("unplug guest %s: %w", uid, err)
	}
	tap := TapName(uid)
	if err := deleteLink(o.handle, tap); err != nil {
		return fmt.Errorf("unplug guest %s: delete %s: %w", uid, tap, err)
	}
	g, known := o.guests[uid]
	if !known {
		return nil
	}
	if err := o.unfilterGuest(ctx, tap, g); err != nil {
		return fmt.Errorf("unplug guest %s: %w", uid, err)
	}
	return nil
}

// Apply makes routes and WireGuard as wanted. local are the guests whose addresses are routed to their taps
// here, whatever wanted.Routes says of them; they are to be plugged in. What can be done is done even when
// something cannot; the error then names every such thing. What makes no sense in wanted (a guest on a host of
// which nothing is known, say) is left out and told by Check, for trying again would not help. Existing routes are replaced in place, so traffic
// that does not change sees nothing. It takes some milliseconds when only routes change.
func (o *Overlay) Apply(ctx context.Context, wanted *v1.NetworkWanted, local []Guest) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.prepare(ctx); err != nil {
		return fmt.Errorf("apply network %d: %w", wanted.GetGeneration(), err)
	}
	p := makePlan(o.cfg.HostName, o.lan.address, wanted, local)
	o.notePlan(p.errs)
	o.wanted, o.peers = p.clusters, p.peers
	var errs []error
	if err := o.filterClusters(ctx); err != nil {
		errs = append(errs, err)
	}
	// First WireGuard takes what is to go through it, then routes change, then WireGuard lets go of the rest:
	// a packet always finds its way on the old path or on the new one.
	wireguard, err := o.growWireGuard(ctx, p.peers)
	if err != nil {
		errs = append(errs, err)
	}
	if err := o.applyRoutes(p.routes); err != nil {
		errs = append(errs, err)
	}
	if err := o.shrinkWireGuard(wireguard); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("apply network %d: %w", wanted.GetGeneration(), err)
	}
	return nil
}

// notePlan keeps what a plan left out, for Check, and logs what is new of it.
func (o *Overlay) notePlan(errs []error) {
	var leftOut []string
	for _, err := range errs {
		leftOut = append(leftOut, err.Error())
		if !slices.Contains(o.leftOut, err.Error()) {
			o.log.Warn("left out of the network", "error", err)
		}
	}
	o.leftOut = leftOut
}

// prepare sets up, once, what all guests need.
func (o *Overlay) prepare(ctx context.Context) error {
	if o.prepared {
		return nil
	}
	if err := o.openLAN(); err != nil {
		return err
	}
	for _, prefix := range readClusters(ctx) {
		o.clusters[prefix] = true
	}
	if err := o.raiseFilter(ctx); err != nil {
		return err
	}
	o.prepared = true
	return nil
}
