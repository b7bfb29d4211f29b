// Package overlay is a host's part of the clusters' own network: a tap for each guest, a route for each guest's
// address, WireGuard to other sites, and a packet filter that separates clusters from each other and from hosts. The
// overlay is routed, not bridged. A guest has one IPv4 address and keeps it wherever it runs; a move replaces one route
// on each host. docs/design/overlay.md describes the design and its reasons.
//
// All state is in the kernel and marked as Watari's: by route protocol 119, by interface aliases, and by the nftables
// table "watari". So a new agent finds the state of an earlier one, however that ended. The package needs root.
package overlay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "watari/api/watariv1"
	"watari/overlay/relay"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// Device is the name of a host's one WireGuard device.
	Device = "watari0"
	// DefaultWireGuardPort is the UDP port that the device listens on.
	DefaultWireGuardPort = 7072
	// DefaultRelayPort is the UDP port of a host's relay. The ports above it, up to 7199, are for pairs of other hosts.
	DefaultRelayPort = 7073
	// RelayedPorts is the number of ports for pairs.
	RelayedPorts = 126
	// defaultTunnelPort is the TCP port of the tunnel.
	defaultTunnelPort = 7071
	// DefaultMTU is the size, in bytes, of a guest's packet that fits into WireGuard over IPv6 over Ethernet (1500 -
	// 80).
	DefaultMTU = 1420
	// wireGuardOverhead is the number of bytes that WireGuard over IPv6 adds to a packet: 40 + 8 + 32.
	wireGuardOverhead = 80
)

// Gateway is the address of every guest's gateway. On every host it is the host's end of the guest's tap, with
// GatewayMAC.
var (
	Gateway    = netip.MustParseAddr("169.254.77.1")
	GatewayMAC = net.HardwareAddr{0xfe, 0x77, 0x61, 0x74, 0x61, 0x72}
)

// Config configures a host's overlay.
type Config struct {
	StateDir string // kept over reboots: the WireGuard key
	RunDir   string // emptied at boot: the WireGuard process's log, the earlier sysctls
	HostName string // this host's name in NetworkWanted
	// LANInterface and LANAddress identify the interface to the other hosts; one of them is enough. An interface given
	// by name alone must have an IPv4 address.
	LANInterface string
	LANAddress   netip.Addr
	// LANGuessed: LANAddress is only a guess, because the host has no route yet. HomeFile is a file with the name of the first
	// interface that was no guess. Over other interfaces, a site's LAN is not trusted. Empty: the given interface is the right one.
	LANGuessed bool
	HomeFile   string
	// WireGuardPort is the UDP port to listen on; 0: DefaultWireGuardPort.
	WireGuardPort int
	// TunnelPort is the TCP port at which hosts reach each other's tunnel inside WireGuard; 0: 7071.
	TunnelPort int
	// RelayPort is the UDP port at which this host answers probes. The ports above it are for pairs of hosts between which
	// it relays. 0: it does not relay.
	RelayPort int
	// Changed is called when the result of Paths has changed; it may be nil.
	Changed func()
	// AgentBinary is run as "AgentBinary wireguard ..." (RunWireGuard) if the kernel has no WireGuard.
	AgentBinary string
	Logger      *slog.Logger // nil: slog.Default()
}

// Guest is the overlay's view of a guest.
type Guest struct {
	UID     string
	Cluster string
	Address netip.Addr       // IPv4, the guest's own
	MAC     net.HardwareAddr // nil: GuestMAC(Address)
	Prefix  netip.Prefix     // the cluster's
}

// GuestMAC returns the MAC address of the guest with that IPv4 address: 02:77 followed by the address.
func GuestMAC(address netip.Addr) net.HardwareAddr {
	a := address.As4()
	return net.HardwareAddr{0x02, 0x77, a[0], a[1], a[2], a[3]}
}

// Overlay is a host's part of the overlay. Its methods may be called by several goroutines; the calls run one after the
// other. It works in the network namespace in which New was called.
type Overlay struct {
	log      *slog.Logger
	cfg      Config
	lan      lan
	home     string // the interface over which a site's LAN may be trusted; empty: any
	moving   bool   // MoveLAN has not succeeded yet
	key      wgtypes.Key
	handle   *netlink.Handle
	control  *wgctrl.Client
	calls    callLimiter              // for calls of control
	problems atomic.Pointer[[]string] // of the last Check; not under mu, which Apply may hold for long
	relay    *relay.Relay             // nil: this host does not relay
	watched  atomic.Pointer[watched]
	closed   atomic.Bool

	mu           sync.Mutex
	prepared     bool                           // sysctls are set and the filter is installed
	routes       map[netip.Prefix]route         // as last applied, without those to taps that have gone since; nil: none were applied
	guests       map[string]Guest               // plugged in here, by UID
	clusters     map[netip.Prefix]bool          // in the filter
	wanted       map[netip.Prefix]bool          // the clusters of the last NetworkWanted
	leftOut      []string                       // parts of the last NetworkWanted that make no sense, with the reasons
	storage      map[string][]uint16            // ports of the gateway that guests may reach, by UID
	filterSum    [sha256.Size]byte              // of the packet filter as it was last written
	inStorage    map[string]bool                // elements of the filter's set storage
	accepted     time.Time                      // when the iptables rules were last checked
	endpoints    map[wgtypes.Key]netip.AddrPort // as last set; a peer may have roamed since
	left         map[wgtypes.Key]time.Time      // since when peers that still exist are not wanted
	made         map[wgtypes.Key]time.Time      // when peers were made
	peers        map[wgtypes.Key]*peer          // of the last NetworkWanted
	expelled     map[wgtypes.Key]bool           // of the last NetworkWanted
	guarded      bool                           // guests receive no packets from the LAN
	seen         map[wgtypes.Key]traffic        // of the peers, at their last check
	peersChecked time.Time                      // time of that check
	addressed    bool                           // the device has this host's own address, as far as that is possible
	heard        map[wgtypes.Key]heard          // from the watched peers
}

// lan is the interface to the other hosts.
type lan struct {
	name    string
	index   int
	mtu     int
	address netip.Addr
	bits    int // of the prefix of its network
}

// New finds the LAN interface, reads or makes the WireGuard key, and finds the guests that an earlier agent plugged in.
// It changes nothing in the kernel; PlugGuest and Apply do.
func New(cfg Config) (*Overlay, error) {
	if cfg.WireGuardPort == 0 {
		cfg.WireGuardPort = DefaultWireGuardPort
	}
	o := &Overlay{
		log: cfg.Logger, cfg: cfg, guests: map[string]Guest{}, clusters: map[netip.Prefix]bool{},
		wanted: map[netip.Prefix]bool{}, endpoints: map[wgtypes.Key]netip.AddrPort{}, left: map[wgtypes.Key]time.Time{},
		made: map[wgtypes.Key]time.Time{}, calls: callLimiter{limit: controlTime},
	}
	if o.log == nil {
		o.log = slog.Default()
	}
	if cfg.TunnelPort == 0 {
		o.cfg.TunnelPort = defaultTunnelPort
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
	o.noteHome(cfg.LANGuessed)
	if o.control, err = wgctrl.New(); err != nil {
		o.handle.Close()
		return nil, fmt.Errorf("overlay: open WireGuard control: %w", err)
	}
	if o.guests, err = pluggedGuests(o.handle); err != nil {
		o.Close()
		return nil, fmt.Errorf("overlay: list taps: %w", err)
	}
	if cfg.RelayPort != 0 {
		o.openRelay()
	}
	return o, nil
}

// Close closes the overlay's sockets. The network stays as it is.
func (o *Overlay) Close() error {
	o.closed.Store(true)
	o.handle.Close()
	if o.relay != nil {
		o.relay.Close()
	}
	return o.control.Close()
}

// PublicKey returns the host's WireGuard public key in base64.
func (o *Overlay) PublicKey() string { return o.key.PublicKey().String() }

// LAN returns the host's address on its LAN, and the MTU of that interface in bytes.
func (o *Overlay) LAN() (address netip.Addr, mtu int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lan.address, o.lan.mtu
}

// Guests returns the guests that are plugged in here, including those that an earlier agent plugged in.
func (o *Overlay) Guests() []Guest {
	o.mu.Lock()
	defer o.mu.Unlock()
	guests := make([]Guest, 0, len(o.guests))
	for _, g := range o.guests {
		guests = append(guests, g)
	}
	return guests
}

// PlugGuest makes the guest's tap, ready to be opened by QEMU, and lets the filter accept the guest's packets. Packets
// are routed to the guest only when it is in Apply's local. mtu is in bytes; 0 means DefaultMTU. PlugGuest may be
// called again for the same guest.
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
	// Filter the tap before it is up, so that the guest's packets are never unfiltered.
	if err := o.filterGuest(ctx, tap, g); err != nil {
		return "", err
	}
	if err := o.guardTap(link, g); err != nil {
		o.log.Warn("the packet filter alone keeps a guest apart from others", "guest", g.UID, "error", err)
	}
	if err := o.dropPrefix(g.Prefix.Masked()); err != nil {
		return "", err
	}
	if err := o.bringUpTap(link, g); err != nil {
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

// UnplugGuest removes everything that PlugGuest made, and the route to the tap. It is not an error if the guest is not
// plugged in.
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
	maps.DeleteFunc(o.routes, func(_ netip.Prefix, r route) bool { return r.tap == tap }) // gone with it
	g, known := o.guests[uid]
	if !known {
		return nil
	}
	if err := o.unfilterGuest(ctx, tap, g); err != nil {
		return fmt.Errorf("unplug guest %s: %w", uid, err)
	}
	o.forgetPrefix(g.Prefix.Masked())
	return nil
}

// Apply configures routes and WireGuard as wanted. local lists the guests that are routed to their taps on this host,
// whatever wanted.Routes says; they must be plugged in.
//
// Apply goes on after an error and returns all errors. It leaves out parts of wanted that make no sense, such as a
// guest on an unknown host, and Check reports them; trying again would not help. Apply replaces routes in place, so
// that traffic on unchanged routes is not disturbed. It takes some milliseconds if only routes change.
func (o *Overlay) Apply(ctx context.Context, wanted *v1.NetworkWanted, local []Guest) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.prepare(ctx); err != nil {
		return fmt.Errorf("apply network %d: %w", wanted.GetGeneration(), err)
	}
	wanted, strayed := o.distrust(wanted)
	p := makePlan(o.cfg.HostName, netip.PrefixFrom(o.lan.address, o.lan.bits), wanted, local)
	if strayed != nil {
		p.errs = append([]error{strayed}, p.errs...)
	}
	for _, g := range o.guests { // also those in no cluster, see dropPrefix
		if prefix := g.Prefix.Masked(); !p.clusters[prefix] {
			p.drop(prefix)
		}
	}
	o.setRelay(&p, wanted)
	o.recordLeftOut(p.errs)
	o.wanted, o.peers, o.expelled = p.clusters, p.peers, p.expelled
	var errs []error
	if err := o.filterClusters(ctx, wanted.GetGuardedLan()); err != nil {
		errs = append(errs, err)
	}
	// First add to WireGuard what the new routes need, then change the routes, then remove the rest from WireGuard. So
	// a packet always has a complete path, the old one or the new one.
	wireguard, err := o.growWireGuard(ctx, p.peers)
	if err != nil {
		errs = append(errs, err)
	}
	o.routes = p.routes
	if err := o.applyRoutes(p.routes); err != nil {
		errs = append(errs, err)
	}
	if err := o.shrinkWireGuard(wireguard); err != nil {
		errs = append(errs, err)
	}
	o.watchPeers(time.Now())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("apply network %d: %w", wanted.GetGeneration(), err)
	}
	return nil
}

// recordLeftOut stores the parts that the plan left out, for Check, and logs new ones.
func (o *Overlay) recordLeftOut(errs []error) {
	var leftOut []string
	for _, err := range errs {
		leftOut = append(leftOut, err.Error())
		if !slices.Contains(o.leftOut, err.Error()) {
			o.log.Warn("left out of the network", "error", err)
		}
	}
	o.leftOut = leftOut
}

// prepare makes, once, the settings that all guests need.
func (o *Overlay) prepare(ctx context.Context) error {
	if o.prepared {
		return nil
	}
	o.guarded = o.guarded || o.wasGuarded(ctx) || o.strayed() // Apply may undo it
	if err := o.enableForwarding(); err != nil {
		return err
	}
	for _, prefix := range readClusters(ctx) {
		o.clusters[prefix] = true
	}
	if err := o.installFilter(ctx); err != nil {
		return err
	}
	_ = o.guardTaps()
	o.prepared = true
	return nil
}
