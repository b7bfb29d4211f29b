package agent

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// Join gives an agent its identity without touching the machine, and serves programs at the socket.
func (a *Agent) Join(t *testing.T, identity *v1.Identity, port int, socket string) {
	c, err := check(identity)
	if err != nil {
		t.Fatal(err)
	}
	a.overlay.port = port
	a.identity = identity
	if err := a.overlay.use(c); err != nil {
		t.Fatal(err)
	}
	stop, err := a.serveLaunchers(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); a.overlay.listen.Close() })
}

// Peer returns a client, and a context for calls to another guest, as launchers make them.
func (a *Agent) Peer(t *testing.T, host string) (context.Context, watariv1connect.ProcessServiceClient) {
	ctx, err := a.overlay.callPeer(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, a.overlay.peers
}

// Renew gives the agent another certificate.
func (a *Agent) Renew(certificate, key []byte) error {
	identity := proto.CloneOf(a.identity)
	identity.Certificate, identity.Key = certificate, key
	return a.StandIn(identity)
}

// PeerTransport carries calls to other guests.
func (a *Agent) PeerTransport() http.RoundTripper { return a.overlay.client }

// PeerURL is where other guests call this one.
func (a *Agent) PeerURL() string { return "https://" + a.overlay.target(a.identity.GetName()) }

// Hang mounts a file system that does not answer until its end, as the shared home does while its server is away.
func Hang(t *testing.T, path string) (end func()) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("this machine has no FUSE: %v", err)
	}
	if err := unix.Mount("hung", path, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		t.Skipf("mount: %v", err)
	}
	end = sync.OnceFunc(func() {
		unix.Unmount(path, unix.MNT_DETACH)
		unix.Close(fd) // unblocks waiting processes
	})
	t.Cleanup(end)
	return end
}
