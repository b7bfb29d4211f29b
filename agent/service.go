package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// Handler serves the manager: AgentService, and the guests' agents under /guest/<uid>/.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewAgentServiceHandler(service{a}))
	mux.HandleFunc("/guest/{uid}/", a.serveGuest)
	return mux
}

type service struct{ *Agent }

// takeLater tries again to take up orders that were refused, until they are taken up or there are newer ones: what they
// were refused for, a full disk say, may pass, and the manager does not send them again.
func (s service) takeLater(ctx context.Context, w *v1.HostWanted) {
	retry := time.NewTicker(2 * time.Second)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
		if err := s.Take(w); err == nil || errors.Is(err, errStale) {
			return
		}
	}
}

// Sync reports, at once and after each change (the load is sampled, and changes, every few seconds), and takes up what
// is wanted.
func (s service) Sync(ctx context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	received := make(chan error, 1)
	go func() {
		defer cancel()
		giveUp := func() {}
		for {
			w, err := stream.Receive()
			giveUp() // the latest orders stand for those before
			if err != nil {
				received <- err
				return
			}
			if err := s.Take(w); err != nil {
				s.log.Warn("orders refused", "error", err)
				if !errors.Is(err, errStale) {
					var later context.Context
					later, giveUp = context.WithCancel(ctx)
					go s.takeLater(later, w)
				}
			}
		}
	}()
	for {
		observed, changed := s.Observed()
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

// Console streams a guest's kept console from an offset. Followed, it ends when the host keeps it no more: the guest has
// moved away.
func (s service) Console(ctx context.Context, req *connect.Request[v1.ConsoleRequest], stream *connect.ServerStream[v1.ConsoleResponse]) error {
	uid := req.Msg.GuestUid
	if !validUID(uid) {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("malformed guest uid %q", uid))
	}
	path := filepath.Join(s.records.GuestDir(uid), "console.log")
	f, err := os.Open(path)
	if err != nil {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("host %s keeps no console of guest %s", s.config.Name, uid))
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	offset := int64(req.Msg.Offset)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		kept := sameFile(f, path) // asked first: what is read after that is all there will be
		n, err := f.ReadAt(buf, offset)
		if n > 0 {
			if err := stream.Send(&v1.ConsoleResponse{Data: buf[:n], Offset: uint64(offset)}); err != nil {
				return err
			}
			offset += int64(n)
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the console: %w", err)
		}
		if !req.Msg.Follow || !kept {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// sameFile tells whether an open file is still the one at path.
func sameFile(f *os.File, path string) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false
	}
	opened, err := f.Stat()
	return err == nil && os.SameFile(now, opened)
}

// serveGuest passes a request on to a guest's agent, in both directions at once.
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
