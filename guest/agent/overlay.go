package agent

// overlay.go - the connection to other guests' agents over the cluster's network.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/internal/dialer"
)

const (
	// peerLimit bounds a message of another guest, in bytes, because the kernel kills other programs before the agent.
	peerLimit = 4 << 20
	// peerBuffer is the number of bytes of a peer's output that wait in the agent's memory for a launcher that does not
	// read.
	peerBuffer = 64 << 10
	// peerFrame is the longest HTTP/2 frame that a guest accepts from a peer. The sender keeps a buffer of that size.
	peerFrame = 16 << 10
	// peerIdle is how long a connection to a peer outlives its last call.
	peerIdle = 30 * time.Second
)

// overlay connects the agent to other guests. It serves ProcessService to them, and calls theirs for programs of this
// guest. Both ends have certificates of the cluster's authority. Programs cannot read the keys.
type overlay struct {
	agent *Agent
	peers watariv1connect.ProcessServiceClient

	port int // OverlayPort, except in tests

	mu      sync.Mutex
	client  *http.Transport // to other guests
	tls     *tls.Config     // nil: no identity yet
	least   uint32          // generation of the own certificate; certificates of earlier ones were revoked
	listen  net.Listener
	address netip.Addr // on which the agent listens
}

func newOverlay(a *Agent) *overlay {
	o := &overlay{agent: a, port: OverlayPort}
	o.client = o.newTransport()
	o.peers = o.newPeerClient()
	return o
}

func (o *overlay) newTransport() *http.Transport {
	t := &http.Transport{
		DialTLSContext:     o.dial,
		DisableCompression: true,
		Protocols:          new(http.Protocols),
		IdleConnTimeout:    peerIdle,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream:     peerBuffer,
			MaxReceiveBufferPerConnection: peerBuffer,
			MaxReadFrameSize:              peerFrame,
			// Pings detect a peer that has vanished. An interruption of a minute does not count as that.
			SendPingTimeout: 20 * time.Second,
			PingTimeout:     70 * time.Second,
		},
	}
	t.Protocols.SetHTTP2(true)
	return t
}

// use replaces the certificates by an identity's. It begins to serve with the first identity.
func (o *overlay) use(c checked) error {
	if len(c.GetCertificate()) == 0 {
		return nil
	}
	own, err := ca.ParseCertificate(c.GetCertificate())
	if err != nil {
		return err
	}
	me, err := ca.IdentityOf(own)
	if err != nil {
		return err
	}
	cluster := c.GetCluster()
	config, err := ca.PeerTLS(c.GetCaCertificate(), c.GetCertificate(), c.GetKey(), func(id ca.Identity) error {
		if id.Kind != ca.KindGuest || id.Cluster != cluster {
			return fmt.Errorf("%s is not a guest of cluster %s", id, cluster)
		}
		if id.Generation < me.Generation {
			return fmt.Errorf("the certificate of %s was revoked, as all certificates from before a host was cut off", id)
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
	if me.Generation != o.least { // others take no further call on a connection with the earlier certificate
		o.least, o.client = me.Generation, o.newTransport()
	}
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

// target returns the address and port of a guest, given by address or name.
func (o *overlay) target(host string) string { return net.JoinHostPort(host, strconv.Itoa(o.port)) }

// serve serves other guests until the listener is closed.
func (o *overlay) serve(listener net.Listener) {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewProcessServiceHandler(&processService{agent: o.agent, peers: true}, connect.WithReadMaxBytes(peerLimit)))
	server := &http.Server{
		Handler:           o.unrevoked(mux),
		ReadHeaderTimeout: 20 * time.Second,
		HTTP2:             &http.HTTP2Config{MaxReadFrameSize: peerFrame},
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

// unrevoked refuses calls on connections whose certificate has been revoked since.
func (o *overlay) unrevoked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := ca.IdentityOf(r.TLS.PeerCertificates[0]) // use has verified it
		o.mu.Lock()
		least := o.least
		o.mu.Unlock()
		if err != nil || id.Generation < least {
			http.Error(w, "the certificate was revoked", http.StatusServiceUnavailable) // so that the caller tries again, with a new one
			return
		}
		next.ServeHTTP(w, r)
	})
}

// dial connects to a peer by name.
func (o *overlay) dial(ctx context.Context, _, target string) (net.Conn, error) {
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
	secure := &tls.Dialer{NetDialer: dialer.New(), Config: config}
	conn, err := secure.DialContext(ctx, "tcp4", o.target(peer.GetAddress()))
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err) // also after a timeout, so that callers try again
	}
	return conn, nil
}

// findPeer finds a guest of the cluster by its name, with or without a domain.
func (a *Agent) findPeer(name string) *v1.Peer {
	name, _, _ = strings.Cut(name, ".") // ignore a domain
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

// newPeerClient makes a client of ProcessService for the peer that a call's context names. One client serves all peers,
// because each client has its own buffers. It asks for no compression, which takes 40 KiB for each stream.
func (o *overlay) newPeerClient() watariv1connect.ProcessServiceClient {
	return watariv1connect.NewProcessServiceClient(&http.Client{Transport: toPeer{o}}, "https://peer",
		connect.WithReadMaxBytes(peerLimit), connect.WithAcceptCompression("gzip", nil, nil))
}

// peerKey is the context's key for the called peer's name.
type peerKey struct{}

// toPeer carries a call to the peer that its context names.
type toPeer struct{ overlay *overlay }

func (t toPeer) RoundTrip(r *http.Request) (*http.Response, error) {
	name, _ := r.Context().Value(peerKey{}).(string)
	r = r.WithContext(r.Context()) // a copy: a transport must not change its request
	address := *r.URL
	address.Host = t.overlay.target(name)
	r.URL, r.Host = &address, address.Host
	t.overlay.mu.Lock()
	client := t.overlay.client
	t.overlay.mu.Unlock()
	return client.RoundTrip(r)
}

// callPeer finds a guest of the cluster by name or address, and returns a context for calls to it.
func (o *overlay) callPeer(ctx context.Context, host string) (context.Context, error) {
	peer := o.agent.findPeer(host)
	if peer == nil {
		peer = o.agent.peerOfAddress(host)
	}
	if peer == nil {
		return ctx, fmt.Errorf("%s is no guest of this cluster", host)
	}
	return context.WithValue(ctx, peerKey{}, peer.GetName()), nil
}
