// Command watari-agent brings one host to the state that the manager wants. It runs guests through libvirt, keeps the
// host's part of the overlay, and sends and receives migrating guests. When it ends, guests go on running.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"watari/cmd/internal/probe"
	"watari/internal/descriptors"
	"watari/internal/logfile"
	"watari/internal/qemuprocesses"
	"watari/internal/version"
	"watari/overlay"
)

func main() {
	descriptors.KeepToSelf()
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "watari-agent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "wireguard": // started by the agent itself if the kernel has no WireGuard
			return overlay.RunWireGuard(args[1:])
		case "write-checkpoint": // started by the agent itself
			return runWriter()
		case "hold": // started by the agent itself for a checkpoint
			return runHold(args[1:])
		case "watchdog": // started by the agent itself for guests with leases
			return runWatchdog(args[1:])
		case "cleanup":
			if err := cleanup(args[1:]); !errors.Is(err, flag.ErrHelp) {
				return err
			}
			return nil
		case "probe":
			if err := runProbe(args[1:], os.Stdout); !errors.Is(err, flag.ErrHelp) {
				return err
			}
			return nil
		case "version", "--version":
			fmt.Println("watari-agent", version.Version)
			return nil
		}
	}
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if o.debug {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	unlock, err := lock(o)
	if err != nil {
		return err
	}
	defer unlock()
	go logfile.Bound(ctx, os.Stderr, slog.Default())
	err = serve(ctx, o)
	if ctx.Err() != nil {
		slog.Info("ended; guests run on")
		return nil
	}
	return err
}

// options are the command line's options.
type options struct {
	managers      []string
	tokenFile     string
	state, run    string
	name, site    string
	lanAddress    string
	lanInterface  string
	followsLAN    bool // neither was given: lanAddress was found
	guessedLAN    bool // lanAddress is only a guess, because the host has no route yet
	libvirt       string
	libvirtSocket string
	tunnelPort    uint
	wireguardPort uint
	memory        uint64 // MiB; 0: all
	unconfined    bool
	relayPort     uint
	dialOnly      bool
	lent          bool
	ownerGuest    string // libvirt domain; empty: none
	cgroup        string
	bandwidth     uint64 // of images and templates, bytes per second; 0: no limit
	metrics       string
	debug         bool
}

// list is a flag that may be given several times, or with commas.
type list struct{ to *[]string }

func (l list) String() string { return "" }

func (l list) Set(text string) error {
	for _, item := range strings.Split(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			*l.to = append(*l.to, item)
		}
	}
	return nil
}

// flags returns the command line's flags, which set the options.
func (o *options) flags() *flag.FlagSet {
	hostname, _ := os.Hostname()
	hostname, _, _ = strings.Cut(hostname, ".")
	flags := flag.NewFlagSet("watari-agent", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "watari-agent [flags]: run guests on this host as the manager wants.\n"+
			"watari-agent cleanup [--guests]: say which guests run here; with --guests, end them and take the network away.\n"+
			"watari-agent probe: say, as JSON, how this host can run guests.\n\nFlags:\n")
		flags.PrintDefaults()
	}
	flags.Var(list{&o.managers}, "manager", "`URL` of a manager, https://host:7070; may be repeated")
	flags.StringVar(&o.tokenFile, "token-file", "", "`file` with a join token; needed at the first start")
	flags.StringVar(&o.state, "state", "/var/lib/watari/agent", "`folder` that is kept over reboots; the same on all hosts")
	flags.StringVar(&o.run, "run", "/run/watari", "`folder` that is emptied at boot; the same on all hosts")
	flags.StringVar(&o.name, "name", hostname, "of this host")
	flags.StringVar(&o.site, "site", "local", "of this host: hosts of a site are on one LAN")
	flags.StringVar(&o.lanAddress, "lan-address", "", "IPv4 `address` by which the site's other hosts reach this one (default: that of the default route, also when it changes)")
	flags.StringVar(&o.lanInterface, "lan-interface", "", "the interface with that address; found by it where not given")
	flags.StringVar(&o.libvirt, "libvirt", "qemu:///system", "`URI` of the libvirt daemon")
	flags.StringVar(&o.libvirtSocket, "libvirt-socket", "", "its socket, for migrations that come in (default: the one under /run/libvirt that answers)")
	flags.UintVar(&o.tunnelPort, "tunnel-port", 7071, "TCP port for migrations that come in")
	flags.UintVar(&o.wireguardPort, "wireguard-port", overlay.DefaultWireGuardPort, "UDP port of WireGuard")
	flags.UintVar(&o.relayPort, "relay-port", overlay.DefaultRelayPort, "UDP port by which hosts find out whether they reach this one; on the 126 ports above it, this host forwards packets between hosts that do not reach each other; 0: it does neither")
	flags.BoolVar(&o.dialOnly, "dial-only", false, "nothing reaches this host that it has not asked for: it is behind NAT or a firewall (found out where not given)")
	flags.Uint64Var(&o.memory, "memory", 0, "memory for guests, `MiB`; 0: all of the host's")
	flags.BoolVar(&o.lent, "lent", false, "the host's owner has lent it out, and uses it now and then")
	flags.StringVar(&o.ownerGuest, "owner-guest", "", "`name` of the libvirt domain, not Watari's, that the host's owner uses: its processor time counts as the owner's")
	flags.BoolVar(&o.unconfined, "allow-unconfined", false, "accept guests though QEMU runs as root or without a security driver")
	flags.StringVar(&o.cgroup, "cgroup", "", "`path` of the control group whose processes are this host: load and processors are its own, not the machine's")
	flags.Uint64Var(&o.bandwidth, "image-bandwidth", 0, "most `bytes` per second to fetch of images and templates, and to pass on; 0: no limit")
	flags.StringVar(&o.metrics, "metrics", "", "`address` where Prometheus may ask for metrics, such as 127.0.0.1:7074; empty: none")
	flags.BoolVar(&o.debug, "debug", false, "log every act")
	return flags
}

func parse(args []string) (options, error) {
	var o options
	flags := o.flags()
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unknown argument %q; see watari-agent --help", flags.Arg(0))
	case o.name == "":
		return o, errors.New("the host has no name; give --name")
	case o.relayPort+overlay.RelayedPorts > 65535:
		return o, fmt.Errorf("--relay-port %d: give a port up to %d", o.relayPort, 65535-overlay.RelayedPorts)
	}
	if o.ownerGuest != "" {
		if err := qemuprocesses.CheckDomain(o.ownerGuest); err != nil {
			return o, fmt.Errorf("--owner-guest %w", err)
		}
	}
	return o, nil
}

// libvirtSockets returns the paths on which this host's libvirt daemon may listen.
func (o options) libvirtSockets() []string {
	if o.libvirtSocket != "" {
		return []string{o.libvirtSocket}
	}
	return probe.LibvirtSockets
}

// lock prevents a second agent with the same state directory.
func lock(o options) (unlock func(), err error) {
	if err := os.MkdirAll(o.state, 0o755); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	path := o.state + "/agent.lock"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		text := make([]byte, 32)
		n, _ := f.Read(text)
		f.Close()
		return nil, fmt.Errorf("an agent works with %s already (pid %s)", o.state, strings.TrimSpace(string(text[:n])))
	}
	f.Truncate(0)
	fmt.Fprintf(f, "%d\n", os.Getpid())
	return func() { f.Close() }, nil
}
