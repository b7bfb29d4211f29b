// serve.go is the first process of a host.
package nethost

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"time"

	v1 "watari/api/watariv1"
	"watari/overlay"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const environment = "WATARI_NETHOST"

// Main turns this process into a host or into a host's WireGuard process if it was started as one; then it does not
// return. Programs that use nethost must call it first.
func Main() {
	if os.Getenv(environment) == "" {
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "wireguard" {
		exit(overlay.RunWireGuard(os.Args[2:]))
	}
	connection, err := net.FileConn(os.NewFile(3, "calls"))
	if err != nil {
		exit(err)
	}
	server := rpc.NewServer()
	if err := server.Register(&Service{}); err != nil {
		exit(err)
	}
	server.ServeConn(connection) // returns when the other process ends
	exit(nil)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Service holds the calls of a host (package net/rpc).
type Service struct {
	agent *overlay.Overlay
	stop  context.CancelFunc // of the agent's Watch; nil: it does not watch
}

// AgentArgs are the arguments of StartAgent.
type AgentArgs struct {
	Name      string
	Address   netip.Addr
	RelayPort int // 0: the agent neither relays nor watches
}

// PlugArgs are the arguments of PlugGuest.
type PlugArgs struct {
	Guest overlay.Guest
	MTU   int
}

// ApplyArgs are the arguments of Apply. Wanted is an encoded NetworkWanted.
type ApplyArgs struct {
	Wanted []byte
	Local  []overlay.Guest
}

// Prepare sets up the host's own mounts and name.
func (s *Service) Prepare(name string, _ *struct{}) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return unix.Sethostname([]byte(name))
}

// StartAgent makes a new Overlay. It drops an earlier one without closing it, as if its process had been killed.
func (s *Service) StartAgent(args AgentArgs, publicKey *string) (err error) {
	if s.stop != nil {
		s.stop()
		s.agent.Close()
		s.stop = nil
	}
	s.agent, err = overlay.New(overlay.Config{
		HostName: args.Name, LANAddress: args.Address, RelayPort: args.RelayPort,
		StateDir: "/run/watari-state", HomeFile: "/run/watari-state/lan-interface", RunDir: "/run/watari", AgentBinary: "/proc/self/exe",
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err == nil {
		*publicKey = s.agent.PublicKey()
	}
	if err == nil && args.RelayPort != 0 {
		var ctx context.Context
		ctx, s.stop = context.WithCancel(context.Background())
		go s.agent.Watch(ctx, func() {})
	}
	return err
}

// Plug calls PlugGuest.
func (s *Service) Plug(args PlugArgs, tap *string) (err error) {
	*tap, err = s.agent.PlugGuest(context.Background(), args.Guest, args.MTU)
	return err
}

// Unplug calls UnplugGuest.
func (s *Service) Unplug(uid string, _ *struct{}) error {
	return s.agent.UnplugGuest(context.Background(), uid)
}

// OpenStorage calls OpenStorage.
func (s *Service) OpenStorage(ports map[string][]uint16, _ *struct{}) error {
	return s.agent.OpenStorage(context.Background(), ports)
}

// MoveLAN calls MoveLAN.
func (s *Service) MoveLAN(address netip.Addr, _ *struct{}) error {
	_, err := s.agent.MoveLAN(context.Background(), address)
	return err
}

// Listen accepts connections to TCP ports until the process ends, and sends nothing on them.
func (s *Service) Listen(ports []int, _ *struct{}) error {
	for _, port := range ports {
		listener, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: port})
		if err != nil {
			return err
		}
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
	}
	return nil
}

// Apply calls Apply and returns its duration in milliseconds.
func (s *Service) Apply(args ApplyArgs, milliseconds *float64) error {
	wanted := &v1.NetworkWanted{}
	if err := proto.Unmarshal(args.Wanted, wanted); err != nil {
		return err
	}
	began := time.Now()
	err := s.agent.Apply(context.Background(), wanted, args.Local)
	*milliseconds = float64(time.Since(began)) / float64(time.Millisecond)
	return err
}

// Check calls Check.
func (s *Service) Check(_ struct{}, problems *[]string) error {
	*problems = s.agent.Check(context.Background())
	return nil
}

// Sent calls Sent.
func (s *Service) Sent(_ struct{}, sent *map[string]map[netip.Addr]uint64) (err error) {
	*sent, err = s.agent.Sent()
	return err
}

// Path is an agent's state of the path to another host.
type Path struct {
	State           v1.PathState
	Answers, Steady bool
	Inside          netip.Addr
}

// Path calls Paths and Inside.
func (s *Service) Path(host string, path *Path) error {
	path.Inside, _ = s.agent.Inside(host)
	for _, p := range s.agent.Paths() {
		if p.Host == host {
			path.State, path.Answers, path.Steady = p.State, p.Answers, p.Steady
		}
	}
	return nil
}

// Cleanup calls Cleanup.
func (s *Service) Cleanup(_ struct{}, _ *struct{}) error {
	return s.agent.Cleanup(context.Background())
}
