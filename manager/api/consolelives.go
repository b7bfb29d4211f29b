package api

// consolelives.go - the consoles of a guest's ended lives: each host keeps its own part of each life.

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/hostlink"
)

// listTime is how long a host may take to list the consoles that it keeps.
const listTime = 10 * time.Second

// ListGuestConsoles lists the consoles that hosts keep.
func (s *Server) ListGuestConsoles(ctx context.Context, r *connect.Request[v1.ListGuestConsolesRequest]) (*connect.Response[v1.ListGuestConsolesResponse], error) {
	snap := s.Store.Snapshot()
	g, err := find(callerOf(ctx), "guest", r.Msg.Name, snap.Guests)
	if err != nil {
		return nil, err
	}
	kept, unreachable := s.keptConsoles(ctx, g, slices.Sorted(maps.Keys(snap.Hosts)))
	return connect.NewResponse(&v1.ListGuestConsolesResponse{Consoles: kept, UnreachableHosts: unreachable}), nil
}

// keptConsoles asks all hosts at once; unreachable lists the hosts that did not answer.
func (s *Server) keptConsoles(ctx context.Context, g *v1.Guest, hosts []string) (kept []*v1.KeptConsole, unreachable []string) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, host := range hosts {
		asked.Go(func() {
			list, err := s.keptOn(ctx, host, g.Meta.Uid)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unreachable = append(unreachable, host)
			}
			kept = append(kept, list...)
		})
	}
	asked.Wait()
	slices.Sort(unreachable)
	numberLives(g, kept)
	return kept, unreachable
}

func (s *Server) keptOn(ctx context.Context, host, uid string) ([]*v1.KeptConsole, error) {
	client, err := s.Sessions.UsersClient(host)
	if err != nil {
		return nil, err
	}
	r, err := watariv1connect.NewAgentServiceClient(client, hostlink.BaseURL, hostlink.GuestLimit()).ListConsoles(ctx,
		connect.NewRequest(&v1.ListConsolesRequest{GuestUid: uid}))
	if err != nil {
		return nil, err
	}
	for _, k := range r.Msg.Consoles {
		k.Host = host
	}
	return r.Msg.Consoles, nil
}

// numberLives orders consoles by epoch and gives each the number of its life. A life begins with a console that was not
// received from another host, or that follows a console whose guest did not move on.
func numberLives(g *v1.Guest, kept []*v1.KeptConsole) {
	slices.SortFunc(kept, func(a, b *v1.KeptConsole) int {
		if a.Epoch != b.Epoch {
			return int(int64(a.Epoch) - int64(b.Epoch))
		}
		return strings.Compare(a.Host, b.Host)
	})
	life := uint32(1)
	if g.Host != "" && len(kept) > 0 && kept[len(kept)-1].Epoch >= g.StartedEpoch {
		life = 0 // the life of the running copy
	}
	for i := len(kept) - 1; i >= 0; i-- {
		kept[i].Life = life
		if i > 0 && (kept[i].Source == "" || kept[i-1].Target == "") {
			life++
		}
	}
}

// previous streams the console of an earlier life, from all hosts that the guest was on.
func (s *Server) previous(ctx context.Context, g *v1.Guest, r *v1.GuestConsoleRequest, hosts []string, out *connect.ServerStream[v1.GuestConsoleResponse]) error {
	kept, unreachable := s.keptConsoles(ctx, g, hosts)
	parts := slices.DeleteFunc(kept, func(k *v1.KeptConsole) bool { return k.Life != r.Previous })
	if len(parts) == 0 {
		also := ""
		if len(unreachable) > 0 {
			also = "; these hosts could not be asked: " + strings.Join(unreachable, ", ")
		}
		return fail(connect.CodeNotFound, "no host keeps a console of life %d before the present one of guest %s%s", r.Previous, r.Name, also)
	}
	c := &console{s: s, uid: g.Meta.Uid, out: out}
	var failed error
	for _, part := range parts {
		c.host, c.epoch = "", part.Epoch
		size, err := c.readPart(ctx, part, r.Offset)
		c.base += size
		failed = errors.Join(failed, err)
	}
	return wrapConsoleError(failed, g)
}

// readPart streams a kept console from offset begin on. The part starts at offset c.base of the whole console.
func (c *console) readPart(ctx context.Context, part *v1.KeptConsole, begin uint64) (size uint64, err error) {
	if begin >= c.base+part.Bytes {
		return part.Bytes, nil
	}
	c.offset = max(begin, c.base)
	c.host = part.Host
	return part.Bytes, c.read(ctx, part.Host, false, func() {})
}
