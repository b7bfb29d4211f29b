package agent

import (
	"context"
	"testing"

	v1 "watari/api/watariv1"
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
	stop, err := a.serveSocket(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); a.overlay.listen.Close() })
}
