package api

// console.go - guests' kept consoles.

import (
	"context"
	"maps"
	"slices"

	"watari/hostlink"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
)

// GuestConsole reads a guest's kept console. Each host keeps its own part. When a followed guest moves, the stream continues
// with the new host's part, and offsets continue across parts.
func (s *Server) GuestConsole(ctx context.Context, r *connect.Request[v1.GuestConsoleRequest], out *connect.ServerStream[v1.GuestConsoleResponse]) error {
	snap := s.Store.Snapshot()
	g, err := find(callerOf(ctx), "guest", r.Msg.Name, snap.Guests)
	if err != nil {
		return err
	}
	if r.Msg.Previous > 0 {
		return s.previous(ctx, g, r.Msg, slices.Sorted(maps.Keys(snap.Hosts)), out)
	}
	c := &console{s: s, uid: g.Meta.Uid, out: out, offset: r.Msg.Offset}
	if g.Host == "" {
		return c.search(ctx, slices.Sorted(maps.Keys(snap.Hosts)), r.Msg.Name)
	}
	if !r.Msg.Follow {
		return wrapConsoleError(c.read(ctx, g.Host, false, func() {}), g)
	}
	err = s.retry(ctx, r.Msg.Name, g.Meta.Uid, func(g *v1.Guest, alive func()) error {
		err := c.read(ctx, g.Host, true, alive)
		if c.begun && connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeNotFound {
			return fail(connect.CodeUnavailable, "host %s has no console of it yet", g.Host)
		}
		if err != nil {
			return err
		}
		// The host's part ended while the guest should run: the guest is moving, or is about to be started again.
		return fail(connect.CodeUnavailable, "the console on host %s ended", g.Host)
	})
	return wrapConsoleError(err, g)
}

func wrapConsoleError(err error, g *v1.Guest) error {
	if err == nil {
		return nil
	}
	return wrapError(err, "read the console of guest %s", g.Meta.Name)
}

// console is a stream of one guest's console over several hosts.
type console struct {
	s      *Server
	uid    string
	out    *connect.ServerStream[v1.GuestConsoleResponse]
	host   string // of the present part
	epoch  uint64 // of a kept part; 0: the part being written now
	base   uint64 // bytes of the earlier parts
	offset uint64 // of the next byte for the caller
	begun  bool   // a host had a part of the console
}

// read streams the part of one host.
func (c *console) read(ctx context.Context, host string, follow bool, alive func()) error {
	client, err := c.s.Sessions.UsersClient(host)
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	if host != c.host {
		if c.host != "" {
			c.base = c.offset
		}
		c.host = host
	}
	in, err := watariv1connect.NewAgentServiceClient(client, hostlink.BaseURL, hostlink.GuestLimit()).Console(ctx,
		connect.NewRequest(&v1.ConsoleRequest{GuestUid: c.uid, Offset: c.offset - c.base, Follow: follow, Epoch: c.epoch}))
	if err != nil {
		return err
	}
	defer in.Close()
	for in.Receive() {
		alive()
		c.begun = true
		m := in.Msg()
		if err := c.out.Send(&v1.GuestConsoleResponse{Data: m.Data, Offset: c.base + m.Offset}); err != nil {
			return final{err} // the caller is gone
		}
		c.offset = c.base + m.Offset + uint64(len(m.Data))
	}
	return in.Err()
}

// search finds the console of a guest that does not run, among the hosts that may still keep it.
func (c *console) search(ctx context.Context, hosts []string, name string) error {
	begin := c.offset
	for _, host := range hosts {
		err := c.read(ctx, host, false, func() {})
		if err == nil && c.offset > begin || ctx.Err() != nil {
			return err
		}
		c.host, c.base, c.offset = "", 0, begin
	}
	return fail(connect.CodeFailedPrecondition, "guest %s runs nowhere; watari guest console --previous %[1]s shows its last life", name)
}
