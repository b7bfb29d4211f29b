package agent

// service.go - the agent's side of the session with the manager, and access to guests' agents.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/internal/orders"
)

// Handler serves AgentService and, under /guest/<uid>/, the guest agents to the manager.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewAgentServiceHandler(service{a}))
	mux.HandleFunc("/guest/{uid}/", a.serveGuest)
	return mux
}

type service struct{ *Agent }

// Sync sends a report at once and after each change, and takes orders. The load is sampled every few seconds, so that
// reports never cease.
func (s service) Sync(ctx context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	received := make(chan error, 1)
	var ordered atomic.Bool // the agent has taken orders in this session
	go func() {
		defer cancel()
		var last *v1.HostWanted // the complete orders that the last message meant
		for {
			w, err := stream.Receive()
			if err == nil {
				w, err = orders.Apply(last, w)
			}
			if err != nil {
				received <- err
				return
			}
			last = w
			if err := s.Take(orders.WithPeers(w)); err != nil {
				s.log.Warn("orders refused", "error", err)
				continue
			}
			if !ordered.Swap(true) {
				s.alone.session(1, time.Now())
				defer func() { s.alone.session(-1, time.Now()) }()
			}
		}
	}()
	for {
		knows := ordered.Load()
		observed, changed := s.Observed()
		if knows {
			trim(observed, s.wants)
		}
		if err := stream.Send(observed); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			select {
			case err := <-received:
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			default:
				return ctx.Err()
			}
		}
	}
}

// Samples sends each sample of the host.
func (s service) Samples(ctx context.Context, _ *connect.Request[v1.SamplesRequest], stream *connect.ServerStream[v1.HostSample]) error {
	for {
		sample, next := s.config.Samples()
		if sample != nil {
			if err := stream.Send(sample); err != nil {
				return err
			}
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wants reports whether the latest orders mention a guest.
func (a *Agent) wants(uid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	view, _ := a.machine.Guest(uid)
	role := view.Wanted.GetRole()
	return role != v1.GuestRole_GUEST_ROLE_UNSPECIFIED && role != v1.GuestRole_GUEST_ROLE_ABSENT
}

// serveGuest forwards a request to a guest's agent, in both directions at once.
func (a *Agent) serveGuest(w http.ResponseWriter, r *http.Request) {
	uid := r.PathValue("uid")
	g := a.guest(uid)
	if g == nil {
		http.Error(w, fmt.Sprintf("host %s has no guest %s", a.config.Name, uid), http.StatusNotFound)
		return
	}
	prefix := "/guest/" + uid
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "guest", "guest"
			p.Out.URL.Path = strings.TrimPrefix(p.In.URL.Path, prefix)
			p.Out.URL.RawPath = ""
		},
		Transport:     g.identity.channel,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "the agent of guest %s does not answer: %v\n", g.name, err)
		},
	}
	proxy.ServeHTTP(w, r)
}
