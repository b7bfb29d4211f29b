package agent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/guest/link"
)

// ProcessHeader names, on a call through the door, the process that is to end when the caller does.
const ProcessHeader = "Watari-Process"

// peerLimit bounds a message of another guest, in bytes: the agent is the last one that memory is taken from.
const peerLimit = 4 << 20

// overlay is the agent's side towards other guests: it serves ProcessService to them, and lets programs of
// this guest call theirs. Both ends show certificates of the cluster's authority, which programs never see.
type overlay struct {
	agent  *Agent
	client *http2.Transport

	port int // OverlayPort, but for tests

	mu      sync.Mutex
	tls     *tls.Config // nil: no identity yet
	listen  net.Listener
	address netip.Addr // that is listened on
}

func newOverlay(a *Agent) *overlay {
	o := &overlay{agent: a, port: OverlayPort}
	o.client = &http2.Transport{
		DialTLSContext:     o.dial,
		DisableCompression: true,
		// A peer that has vanished is noticed; a cut of a minute is not held for that.
		ReadIdleTimeout: 20 * time.Second,
		PingTimeout:     70 * time.Second,
	}
	return o
}

// use takes up an identity's certificates, and begins to serve with the first.
func (o *overlay) use(c checked) error {
	if len(c.GetCertificate()) == 0 {
		return nil
	}
	cluster := c.GetCluster()
	config, err := ca.PeerTLS(c.GetCaCertificate(), c.GetCertificate(), c.GetKey(), func(id ca.Identity) error {
		if id.Kind != ca.KindGuest || id.Cluster != cluster {
			return fmt.Errorf("%s is not a guest of cluster %s", id, cluster)
		}
		return nil
	})
	if err != nil {
		return err
	}
	config.NextProtos = []string{"h2"}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tls = config
	o.client.CloseIdleConnections()
	if o.listen != nil && o.address == c.address {
		return nil
	}
	if o.listen != nil {
		o.listen.Close()
	}
	if o.listen, err = net.Listen("tcp4", o.target(c.GetAddress())); err != nil {
		return err
	}
	o.address = c.address
	go o.serve(o.listen)
	return nil
}

// target is where a guest of that address or name listens.
func (o *overlay) target(host string) string { return net.JoinHostPort(host, strconv.Itoa(o.port)) }

// serve serves other guests until the listener is closed.
func (o *overlay) serve(listener net.Listener) {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewProcessServiceHandler(&processService{agent: o.agent, peers: true}, connect.WithReadMaxBytes(peerLimit)))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 20 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			NextProtos: []string{"h2"},
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				o.mu.Lock()
				defer o.mu.Unlock()
				return o.tls, nil
			},
		},
	}
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, net.ErrClosed) {
		o.agent.log.Error("serving other guests ended", "error", err)
	}
}

// dial connects to a peer by name.
func (o *overlay) dial(ctx context.Context, _, target string, _ *tls.Config) (net.Conn, error) {
	name, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	peer := o.agent.findPeer(name)
	o.mu.Lock()
	config := o.tls
	o.mu.Unlock()
	if peer == nil || config == nil {
		return nil, fmt.Errorf("%s is no guest of this cluster", name)
	}
	config = config.Clone()
	config.ServerName = peer.GetName()
	ours := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := ours(state); err != nil {
			return err
		}
		return state.PeerCertificates[0].VerifyHostname(peer.GetName())
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	dialer := &tls.Dialer{Config: config}
	return dialer.DialContext(ctx, "tcp4", o.target(peer.GetAddress()))
}

// findPeer finds a guest of the cluster by name or address.
func (a *Agent) findPeer(name string) *v1.Peer {
	name, _, _ = strings.Cut(name, ".") // a domain says nothing here
	for _, p := range a.current().GetPeers() {
		if p.GetName() == name {
			return p
		}
	}
	return nil
}

// peerOfAddress finds a guest of the cluster by its address.
func (a *Agent) peerOfAddress(text string) *v1.Peer {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return nil
	}
	for _, p := range a.current().GetPeers() {
		if p.GetAddress() == address.String() {
			return p
		}
	}
	return nil
}

// Door is how a program of the guest calls other guests, through the agent's socket: ProcessService of a guest is
// at http://guest/peer/<name>.
func Door(socket string) *link.Client {
	return link.NewClient(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	})
}

// doorHandler passes calls of /peer/<name>/... on to that guest.
func (o *overlay) doorHandler() http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport:     link.EndingStreams{RoundTripper: o.client},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme = "https"
			r.Out.URL.Host = o.target(r.In.PathValue("peer"))
			r.Out.URL.Path = "/" + r.In.PathValue("rest")
			r.Out.Host = r.Out.URL.Host
			r.Out.Header.Del(ProcessHeader)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(w, http.StatusServiceUnavailable, connect.CodeUnavailable, err)
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/peer/{peer}/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("peer")
		peer := o.agent.findPeer(name)
		if peer == nil {
			peer = o.agent.peerOfAddress(name)
		}
		if peer == nil {
			refuse(w, http.StatusNotFound, connect.CodeNotFound, fmt.Errorf("%s is no guest of this cluster", name))
			return
		}
		r.SetPathValue("peer", peer.GetName())
		defer o.endWith(r.Context(), peer.GetName(), r.Header.Get(ProcessHeader))
		proxy.ServeHTTP(w, r)
	})
	return mux
}

// refuse answers as Connect does.
func refuse(w http.ResponseWriter, status int, code connect.Code, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"code": code.String(), "message": err.Error()})
}

// endWith ends a peer's process if the call was left by its caller, who has died then.
func (o *overlay) endWith(ctx context.Context, peer, id string) {
	if id == "" || !errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	client := watariv1connect.NewProcessServiceClient(
		&http.Client{Transport: o.client}, "https://"+o.target(peer))
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for ctx.Err() == nil {
			_, err := client.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: id}))
			if err == nil || connect.CodeOf(err) != connect.CodeUnavailable {
				return
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
}
