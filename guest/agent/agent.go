// Package agent is the guest agent. It gives a guest its identity, runs processes, transfers files and shares the
// cluster's home. The host calls all its services over virtio-serial. Other guests call only ProcessService, over the
// overlay. Programs in the guest use only the socket of watari-guest-rsh, to reach other guests.
package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/guest/link"
	"watari/guest/process"
	"watari/guest/rsh"
)

// OverlayPort is the TCP port on which guests start processes in each other.
const OverlayPort = 7078

// launcherSocket is the socket, in the agent's directory, on which watari-guest-rsh connects to the agent of its guest.
const launcherSocket = "rsh.sock"

// tidyAfter is the time after the last start or end of a launcher at which the agent returns memory to the kernel.
const tidyAfter = 2 * time.Second

// Agent serves one guest.
type Agent struct {
	runDirectory string
	log          *slog.Logger
	processes    *process.Table
	home         *home
	storage      *storage
	overlay      *overlay
	memory       memoryWatch
	warm         chan struct{} // closed when a template may be made from this guest

	identifying sync.Mutex // held while the identity changes
	mu          sync.Mutex
	identity    *v1.Identity // nil: none yet
}

// New makes an agent that keeps its run-time files in a directory of memory, usually /run/watari.
func New(runDirectory string, log *slog.Logger) (*Agent, error) {
	if err := os.MkdirAll(runDirectory, 0o755); err != nil {
		return nil, err
	}
	table, err := process.NewTable(filepath.Join(runDirectory, "processes"))
	if err != nil {
		return nil, err
	}
	a := &Agent{runDirectory: runDirectory, log: log, processes: table, warm: make(chan struct{})}
	a.home = newHome(log)
	a.storage = newStorage(log)
	a.overlay = newOverlay(a)
	return a, nil
}

// HostHandler serves all services to the host.
func (a *Agent) HostHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewGuestServiceHandler(&guestService{a}))
	mux.Handle(watariv1connect.NewProcessServiceHandler(&processService{agent: a}))
	return mux
}

// Run serves the host over the guest's virtio-serial port, and programs over the socket, until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	// If programs use up the memory, the kernel must not kill the agent.
	os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0)
	unix.Umask(0o022)
	stop, err := a.serveLaunchers(ctx, filepath.Join(a.runDirectory, launcherSocket))
	if err != nil {
		return fmt.Errorf("serve programs: %w", err)
	}
	defer stop()
	if err := a.resume(); err != nil {
		a.log.Error("take up the identity of before", "error", err) // the host gives the identity again
	}
	go a.warmUp(ctx)
	go func() { a.log.Warn("nobody watches whether memory runs out", "error", a.memory.follow()) }()
	a.log.Info("ready for the host")
	return link.Serve(ctx, func() (io.ReadWriteCloser, error) { return link.OpenPort(link.PortName) }, a.HostHandler())
}

// warmUp does slow work that is the same in every guest, so that guests forked from a template need not repeat it.
func (a *Agent) warmUp(ctx context.Context) {
	defer close(a.warm)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := awaitModules(ctx); err != nil {
		return
	}
	if err := a.home.server.start(); err != nil {
		a.log.Warn("start the home's server in advance", "error", err)
	}
	if a.current() != nil {
		return // the guest comes from a template, and this is not its first agent
	}
	if line, _ := os.ReadFile("/proc/cmdline"); slices.Contains(strings.Fields(string(line)), "watari.template=1") {
		a.warmMPI(ctx)
	}
}

// warmMPI runs MPI's launcher once, so that its files are in the guest's memory. In an emulated guest, reading and
// decompressing them takes longer than the rest of a small program's start.
func (a *Agent) warmMPI(ctx context.Context) {
	if err := raiseLoopback(); err != nil {
		a.log.Warn("prepare for MPI's launcher", "error", err)
		return
	}
	own, err := os.MkdirTemp(a.runDirectory, "warm-")
	if err != nil {
		a.log.Warn("prepare for MPI's launcher", "error", err)
		return
	}
	defer os.RemoveAll(own)
	for _, words := range [][]string{
		{"mpirun", "--allow-run-as-root", "-n", "1", "ompi_info"}, // loads all of Open MPI's plug-ins
		{"mpiexec.hydra", "-n", "1", "true"},
	} {
		program, err := exec.LookPath(words[0])
		if err != nil {
			continue
		}
		command := exec.CommandContext(ctx, program, words[1:]...)
		command.Env = append(os.Environ(), "HOME="+own, "TMPDIR="+own)
		command.WaitDelay = time.Second
		if out, err := command.CombinedOutput(); err != nil {
			a.log.Warn("run MPI's launcher in advance", "program", program, "error", err, "output", string(out))
		}
	}
}

// serveLaunchers serves watari-guest-rsh on a Unix socket, for root and the cluster's ordinary user. All commands in other
// guests run as the ordinary user, so any other user, such as a service's, would gain that user's rights.
func (a *Agent) serveLaunchers(ctx context.Context, path string) (stop func(), err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, err
	}
	memory := sync.OnceValue(rand.Text) // not before the first call: guests of one template share what was drawn before
	launcher := func() string { return a.current().GetName() + "/" + memory() }
	peers := rsh.Peers{Client: a.overlay.peers, Call: a.overlay.callPeer, May: a.mayLaunch, Env: inherited, Launcher: launcher}
	// A launcher starts, and ends, all its programs at once. Afterwards the agent returns the memory of that work.
	tidy := time.AfterFunc(tidyAfter, debug.FreeOSMemory)
	go accept(listener, func(conn net.Conn) {
		tidy.Reset(tidyAfter)
		defer tidy.Reset(tidyAfter)
		peers.Serve(ctx, conn.(*net.UnixConn))
	})
	return func() { listener.Close() }, nil
}

// mayLaunch refuses users of the guest who may not start processes in other guests.
func (a *Agent) mayLaunch(uid uint32) error {
	i := a.current()
	if uid == 0 || i != nil && uid == i.GetUid() {
		return nil
	}
	return fmt.Errorf("user %d of this guest may not start programs in others; root and user %s may", uid, i.GetUser())
}

// inherited returns the environment variables that a command in another guest has from the process of this guest that starts it.
func inherited(pid int32) []string {
	if mark := process.MarkOf(int(pid)); mark != "" {
		return []string{mark}
	}
	return nil
}

// accept serves connections until the listener is closed.
func accept(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // descriptors or memory ran out, which may be temporary
			time.Sleep(50 * time.Millisecond)
		default:
			go serve(conn)
		}
	}
}

// current returns the identity, or nil.
func (a *Agent) current() *v1.Identity {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.identity
}
