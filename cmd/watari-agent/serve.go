package main

// serve.go - assembles the parts of an agent.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"watari/agent"
	"watari/agent/accel"
	"watari/agent/cache"
	"watari/agent/load"
	"watari/agent/monitor"
	"watari/agent/speed"
	"watari/agent/throttle"
	"watari/agent/tunnel"
	"watari/agent/uplink"
	"watari/agent/vm"
	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/internal/metrics"
	"watari/internal/qemuprocesses"
	"watari/internal/version"
	"watari/overlay"
)

func serve(ctx context.Context, o options) error {
	log := slog.Default()
	info := &v1.HostInfo{Leases: true, Increments: true, AgentVersion: version.Version, Site: o.site, Lent: o.lent, DialOnly: o.dialOnly,
		TunnelPort: uint32(o.tunnelPort), WireguardPort: uint32(o.wireguardPort),
		GuestSupport: &v1.GuestSupport{}} // filled in when libvirt has answered
	reader := &load.Reader{Root: "/", Disk: o.state, Cgroup: o.cgroup, Memory: o.memory << 20}
	if err := reader.Topology(info); err != nil {
		return err
	}
	if o.memory != 0 {
		info.MemoryBytes = min(info.MemoryBytes, o.memory<<20)
	}
	var err error
	if info.BootId, err = bootID(o.run); err != nil {
		return err
	}
	if info.CoreSpeed, err = speed.Core(); err != nil {
		log.Warn("this host counts as one of speed 1", "error", err)
	}
	info.Acceleration = accel.Probe(ctx)
	log.Info("acceleration", "kind", info.Acceleration.Kind, "reason", info.Acceleration.Reason)

	o.findLAN()
	if err := keepOptions(o); err != nil {
		return fmt.Errorf("keep the options for cleaning up: %w", err)
	}
	var a *agent.Agent
	// Knowledge of other hosts changes only after the agent has received orders.
	network, err := openNetwork(o, log, func() { a.Publish() })
	if err != nil {
		return err
	}
	address, mtu := network.LAN()
	info.LanAddress, info.WireguardPublicKey, info.Mtu = address.String(), network.PublicKey(), uint32(mtu)
	info.RelayPort = uint32(network.RelayPort())
	// These are set before anything calls the functions below.
	var peers *tunnel.Tunnels
	var libvirt *vm.Libvirt
	usage, err := monitor.New(monitor.Config{Root: "/", Host: reader, Tap: overlay.TapName, Sent: network.Sent,
		Moved: func() (received, sent uint64) { return peers.Moved() }, OwnerGuest: o.ownerGuest,
		DirtyRates: func(ctx context.Context) (map[string]float64, error) { return libvirt.DirtyRates(ctx) },
		Computing:  func() map[string]float64 { return a.Computing() }})
	if err != nil {
		return fmt.Errorf("begin to measure the host: %w", err)
	}
	link, err := uplink.Open(ctx, uplink.Config{Managers: o.managers, Name: o.name,
		PKIDir: filepath.Join(o.state, "pki"), TokenFile: o.tokenFile, Log: log,
		Removed: func() { a.Evict() }}) // called only after Run, when a is set
	if err != nil {
		return err
	}
	if site := link.Site(); site != "" {
		info.Site = site // the token's site overrides the host's
	}
	if err := vm.RecoverUserfaults(); err != nil {
		log.Warn("userfaultfd stays allowed to all processes", "error", err)
	}
	libvirt, err = vm.Connect(o.libvirt, vm.Options{Acceleration: info.Acceleration.Kind, Log: log})
	if err != nil {
		return err
	}
	defer libvirt.Close()
	store, err := cache.New(filepath.Join(o.state, "images"), cache.Config{Get: link.Get, Bandwidth: o.bandwidth, Log: log,
		// Both functions are called only after the agent has learnt about other hosts.
		Ask: func(ctx context.Context, peer *v1.BlobPeer, digest string, offset int64) (io.ReadCloser, error) {
			return askPeer(ctx, peers, peer, digest, offset)
		},
		Changed: func() { a.Publish() }})
	if err != nil {
		return err
	}
	made := make(chan struct{}) // closed when a is set
	mayRead := func(id ca.Identity, uid string) (string, context.Context, error) {
		select {
		case <-made:
			return a.Reader(id.Name, id.UID, uid)
		default:
			return "", nil, errors.New("the agent has just begun")
		}
	}
	if peers, err = openTunnels(ctx, o, link, store, network.Inside, mayRead, log); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the agent's own program: %w", err)
	}
	a, err = agent.New(ctx, agent.Config{Name: o.name, StateDir: o.state, RunDir: o.run, Log: log, Info: info, Authority: link.PEM().CA,
		Load: reader.Sample, Samples: usage.Latest, SampleProblems: usage.Problems, FreeMemory: reader.MemoryAvailable, Processes: new(qemuprocesses.Finder).Find, AllowUnconfined: o.unconfined,
		Hypervisor: libvirt, Network: network, Images: images{store}, Tunnels: tunnels{peers}, Limiter: throttle.New(), Dial: dialGuest,
		Saver: saver{libvirt, o.libvirt, self}, Watchdog: newWatchdog(o, self),
		Volumes: volumes{libvirt, peers}})
	if err != nil {
		return err
	}
	close(made)
	go func() {
		if err := network.Watch(ctx, a.ReapplyNetwork); err != nil && ctx.Err() == nil {
			log.Error("the network can no longer be watched", "error", err)
		}
	}()
	go followLAN(ctx, o, network, a.SetLAN, log)
	go usage.Run(ctx)
	go speed.Follow(ctx, info.CoreSpeed, func() bool {
		sample, _ := usage.Latest()
		return sample.GetCpuGuests()+sample.GetCpuOwner()+sample.GetCpuSystem() > float64(info.Cores)/2
	}, a.SetCoreSpeed)
	if o.metrics != "" {
		own := func() []metrics.Host {
			sample, _ := usage.Latest()
			return []metrics.Host{{Name: o.name, Info: info, Sample: sample}}
		}
		go metrics.Serve(ctx, o.metrics, metrics.Hosts(own), log)
	}
	go link.Run(ctx, a.Handler())
	a.Run()
	return ctx.Err()
}

// openTunnels listens for incoming migrations and for hosts that fetch blobs.
func openTunnels(ctx context.Context, o options, link *uplink.Uplink, store *cache.Cache, inside func(host string) (netip.Addr, bool),
	volume func(ca.Identity, string) (string, context.Context, error), log *slog.Logger) (*tunnel.Tunnels, error) {
	config, err := link.PeerTLS()
	if err != nil {
		return nil, fmt.Errorf("tunnels: %w", err)
	}
	port := net.JoinHostPort("", fmt.Sprint(o.tunnelPort))
	listener, err := net.Listen("tcp4", port)
	if err != nil {
		return nil, fmt.Errorf("listen for migrations: %w", err)
	}
	listeners := []net.Listener{listener}
	// Inside WireGuard, hosts have IPv6 addresses. The kernel may have IPv6 on that interface only, so Go's own detection of
	// IPv6 does not suffice.
	if inside, err := net.Listen("tcp6", port); err == nil {
		listeners = append(listeners, inside)
	} else {
		log.Warn("hosts that cannot dial this one cannot send guests here inside WireGuard", "error", err)
	}
	t := tunnel.New(tunnel.Config{TLS: config, RunDir: o.run, LibvirtSockets: o.libvirtSockets(), Inside: inside, Volume: volume, Log: log,
		Blobs: func(ctx context.Context, id ca.Identity, digest string, offset int64) (io.ReadCloser, error) {
			content, err := store.Open(ctx, id.Name, id.UID, digest, offset)
			if errors.Is(err, cache.ErrAbsent) {
				err = tunnel.ErrAbsent
			}
			return content, err
		}})
	for _, listener := range listeners {
		go func() {
			if err := t.Serve(ctx, listener); err != nil && ctx.Err() == nil {
				log.Error("no migrations can come in any more, and no host can fetch images here", "address", listener.Addr().String(), "error", err)
			}
		}()
	}
	return t, nil
}

// askPeer requests a blob from another host.
func askPeer(ctx context.Context, t *tunnel.Tunnels, peer *v1.BlobPeer, digest string, offset int64) (io.ReadCloser, error) {
	content, err := t.Fetch(ctx, tunnel.Peer{Name: peer.Name, UID: peer.Uid, Address: peer.Address}, digest, offset)
	if errors.Is(err, tunnel.ErrAbsent) {
		err = cache.ErrAbsent
	}
	return content, err
}

// bootID returns an id that changes with each boot of the host. A host made of namespaces writes its own.
func bootID(runDir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(runDir, "boot-id"))
	if errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile("/proc/sys/kernel/random/boot_id")
	}
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
