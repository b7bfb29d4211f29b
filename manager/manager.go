// Package manager is the manager daemon. It opens the store, serves the control API and agents' sessions on one TLS
// port, and runs the controller while it leads.
package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"watari/ca"
	"watari/hostlink"
	"watari/internal/metrics"
	"watari/internal/stamp"
	"watari/internal/version"
	"watari/manager/api"
	"watari/manager/auditlog"
	"watari/manager/blob"
	"watari/manager/controller"
	"watari/manager/history"
	"watari/manager/session"
	"watari/manager/store"
	"watari/manager/view"

	v1 "watari/api/watariv1"
)

const (
	openTimeout     = 2 * time.Minute
	shutdownTimeout = 3 * time.Second
	maxHeader       = 16 << 10 // bytes of a request's headers; a stranger can send them, too
	maxFrame        = 16 << 10 // bytes of a frame of HTTP/2; the manager reads a whole frame before it knows who sends it
)

// Config has a manager's settings.
type Config struct {
	// State is the folder of the manager's state: etcd, blobs, runs, ca.
	State string
	// Listen is the TCP address of the one port, "0.0.0.0:7070".
	Listen string
	// Metrics is the address where Prometheus may ask for metrics, "127.0.0.1:7073"; empty: none.
	Metrics string
	// Advertise is the URL by which agents and users reach this manager; empty: made from Listen.
	Advertise string
	// Name identifies the manager among others; empty: the machine's host name.
	Name string
	// EtcdEndpoints are those of an outside etcd; empty: etcd is embedded.
	EtcdEndpoints []string
	// Secret encrypts the authority's key in the store; nil: the key is stored unencrypted.
	Secret []byte
	// AuditSyslog is a server that also gets the audit log; nil: none.
	AuditSyslog *auditlog.Server
	// EtcdTLS is for the EtcdEndpoints.
	EtcdTLS *tls.Config
	// Blobs is the folder of images' blobs, which has to exist; several managers share one. Empty: State/blobs.
	Blobs string
	// AdminConfig is the path of the first administrator's client config; empty: admin.json beside State.
	AdminConfig string
	// Prefix contains all clusters' prefixes; zero: api.DefaultPrefix.
	Prefix netip.Prefix
	// NoSharing makes each host fetch images from the manager, and make templates itself.
	NoSharing bool
	// FenceCommand is the path of a program that switches off a host which has not answered for FenceAfter; empty: none.
	FenceCommand string
	FenceAfter   time.Duration
	Log          *slog.Logger

	// RunController replaces controller.Run in tests; nil: controller.Run.
	RunController func(context.Context, controller.Deps) error
	// Ready is called with the address when the port is open; may be nil.
	Ready func(net.Addr)
}

// Manager is a running manager.
type Manager struct {
	Config
	store     *store.Store
	auditLog  *auditlog.Log
	authority *ca.Authority
	stamps    *view.Stamps
	sessions  *session.Sessions
	history   *history.History
	watch     *watch
	traffic   traffic
	blobs     *blob.Store
	api       *api.Server
	leading   atomic.Bool
	led       atomic.Pointer[time.Time] // the beginning of this manager's latest term
	renewed   atomic.Pointer[time.Time] // when this manager last ended a term to begin another
}

// Run runs a manager until ctx ends, and then shuts it down. A kill at any time does no harm.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	unlock, err := lock(cfg.State)
	if err != nil {
		return err
	}
	defer unlock()
	m := &Manager{Config: cfg}
	listener, err := net.Listen("tcp", m.Listen)
	if err != nil {
		return fmt.Errorf("open the manager's port: %w", err)
	}
	if err := m.open(ctx); err != nil {
		listener.Close()
		return err
	}
	defer m.store.Close()
	defer m.auditLog.Close()
	if m.AuditSyslog != nil {
		m.auditLog.Forward(ctx, *m.AuditSyslog)
	}
	if m.Advertise == "" {
		m.Advertise = advertised(listener.Addr().(*net.TCPAddr))
	}
	return m.serve(ctx, listener)
}

func (c *Config) complete() error {
	if c.State == "" || c.Listen == "" {
		return errors.New("start the manager: a folder for its state and an address to listen on are needed")
	}
	var err error
	if c.State, err = filepath.Abs(c.State); err != nil {
		return fmt.Errorf("start the manager: %w", err)
	}
	if c.Name == "" {
		if c.Name, err = os.Hostname(); err != nil {
			c.Name = "manager"
		}
	}
	if c.Blobs != "" {
		if c.Blobs, err = filepath.Abs(c.Blobs); err != nil {
			return fmt.Errorf("start the manager: %w", err)
		}
	}
	if c.AdminConfig == "" {
		c.AdminConfig = filepath.Join(filepath.Dir(c.State), "admin.json")
	}
	for _, endpoint := range c.EtcdEndpoints {
		if err := checkEndpoint(endpoint); err != nil {
			return err
		}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.RunController == nil {
		c.RunController = controller.Run
	}
	return nil
}

// checkEndpoint refuses an etcd without TLS on another machine, because access to etcd gives access to all hosts.
func checkEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err == nil && u.Scheme == "unix" {
		return nil
	}
	if err != nil || u.Host == "" {
		return fmt.Errorf("--etcd-endpoints: %q is not a URL such as https://etcd1:2379", endpoint)
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("--etcd-endpoints: %s is not encrypted, and whoever can read or change etcd has root on all hosts; use https:// (http:// and unix:// only on this machine)", endpoint)
}

func (c *Config) storeConfig() store.Config {
	return store.Config{Dir: filepath.Join(c.State, "etcd"), Endpoints: c.EtcdEndpoints, TLS: c.EtcdTLS, Logger: c.Log}
}

func (m *Manager) runsDir() string { return filepath.Join(m.State, "runs") }

// openBlobs opens the folder of blobs. A folder outside the state may be on a file server that is not mounted.
func (m *Manager) openBlobs() (*blob.Store, error) {
	if m.Blobs == "" {
		return blob.Open(filepath.Join(m.State, "blobs"))
	}
	return blob.OpenShared(m.Blobs, filepath.Join(m.State, "blobs-folder"))
}

// open opens the store, and prepares the state outside of it.
func (m *Manager) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	var err error
	if m.blobs, err = m.openBlobs(); err != nil {
		return err
	}
	if err := os.MkdirAll(m.runsDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder of runs' output: %w", err)
	}
	if m.auditLog, err = auditlog.Open(filepath.Join(m.State, "audit"), m.Log); err != nil {
		return err
	}
	begun := time.Now()
	m.store, err = store.Open(ctx, m.storeConfig())
	if err != nil {
		return err
	}
	m.Log.Info("the store is open", "took", time.Since(begun).Round(time.Millisecond).String(), "external", len(m.EtcdEndpoints) > 0)
	if m.authority, err = m.loadAuthority(ctx); err != nil {
		m.store.Close()
		return err
	}
	m.stamps = view.NewStamps(m.authority.Certificate())
	m.store.SignTerms(func(t *v1.Term) error { return stamp.SignTerm(m.authority, t) })
	m.api = api.New(api.Options{
		Store: m.store, Stamps: m.stamps, Blobs: m.blobs, Authority: m.authority, RunsDir: m.runsDir(), AuditLog: m.auditLog, Leading: m.leading.Load, Renewing: m.renewing,
		Prefix: m.Prefix, Version: version.Version, Log: m.Log,
		Began: func() time.Time {
			if led := m.led.Load(); led != nil {
				return *led
			}
			return time.Time{}
		},
	})
	m.sessions = session.New(m.api.AcceptHost, m.Log)
	m.sessions.OnSession = m.api.RecordSession
	m.api.Sessions = m.sessions
	m.history = history.New()
	if err := m.history.Load(m.historyFile()); err != nil {
		m.Log.Warn("what hosts and guests have used before is not known; their history begins anew", "error", err)
	}
	m.watch = newWatch()
	m.sessions.Sampled = m.sampled
	m.api.History, m.api.Signals, m.api.Lately = m.history, m.watch.now, m.watch.usage.Load
	m.api.Traffic = m.traffic.at
	return nil
}

// serve answers on the listener and stands for election until ctx ends.
func (m *Manager) serve(ctx context.Context, listener net.Listener) error {
	config, err := m.serverTLS()
	if err != nil {
		listener.Close()
		return err
	}
	server := &http.Server{
		Handler:      m.api.Handler(),
		TLSConfig:    config,
		TLSNextProto: m.sessions.TLSNextProto(),
		Protocols:    new(http.Protocols),
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 10 * time.Second, MaxConcurrentStreams: 1000,
			MaxReadFrameSize: maxFrame},
		ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes:    maxHeader - 4<<10, // net/http reads 4 KiB more than it is told
		IdleTimeout:       5 * time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // failed handshakes of unknown clients are not worth a message
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		err := server.ServeTLS(listener, "", "")
		cancel(fmt.Errorf("serve on %s: %w", listener.Addr(), err))
	}()
	m.Log.Info("manager is up", "address", listener.Addr().String(), "url", m.Advertise, "state", m.State, "version", version.Version)
	if m.Ready != nil {
		m.Ready(listener.Addr())
	}
	if m.Metrics != "" {
		go metrics.Serve(ctx, m.Metrics, metrics.Hosts(m.measured), m.Log)
	}
	var keeping sync.WaitGroup
	keeping.Go(func() { m.keepHistory(ctx) })
	keeping.Go(func() { m.watch.keepUsage(ctx, m.store.Snapshot, m.usage) })
	m.leadRepeatedly(ctx)
	cause := context.Cause(ctx)
	keeping.Wait()
	ending, done := context.WithTimeout(context.Background(), shutdownTimeout)
	defer done()
	m.sessions.Close()
	if err := server.Shutdown(ending); err != nil {
		server.Close() // streams of watching clients do not end by themselves
	}
	m.Log.Info("manager ended", "reason", cause)
	if errors.Is(cause, context.Canceled) {
		return nil
	}
	return cause
}

// serverTLS returns the port's configuration. It makes a new certificate when half of the old one's lifetime has
// passed.
func (m *Manager) serverTLS() (*tls.Config, error) {
	pair, err := m.authority.IssueServer(m.Name)
	if err != nil {
		return nil, fmt.Errorf("make the manager's certificate: %w", err)
	}
	config, err := ca.ServerTLS(m.authority.CertificatePEM(), pair.Certificate, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("make the manager's certificate: %w", err)
	}
	config.NextProtos = []string{hostlink.Protocol, "h2", "http/1.1"}
	var current atomic.Pointer[tls.Certificate]
	current.Store(&config.Certificates[0])
	config.Certificates = nil
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		c := current.Load()
		if leaf := c.Leaf; leaf == nil || time.Now().Before(leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore)/2)) {
			return c, nil
		}
		pair, err := m.authority.IssueServer(m.Name)
		if err != nil {
			return c, nil
		}
		if renewed, err := tls.X509KeyPair(pair.Certificate, pair.Key); err == nil {
			c = &renewed
			current.Store(c)
		}
		return c, nil
	}
	return config, nil
}
