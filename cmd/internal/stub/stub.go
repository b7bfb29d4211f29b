// Package stub is a manager for tests of the command line. It answers over real TLS with the test's answers.
package stub

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/watari/root"
)

// Manager answers calls with its func fields. A call whose field is nil is unimplemented.
type Manager struct {
	watariv1connect.UnimplementedControlServiceHandler
	watariv1connect.UnimplementedJoinServiceHandler
	// Unary answers the calls with one request and one response. The request's type tells them apart. It returns the
	// message of the response.
	Unary func(ctx context.Context, request any) (any, error)

	OnWatch     func(context.Context, *v1.WatchRequest, func(*v1.WatchResponse) error) error
	OnRunOutput func(context.Context, *v1.RunOutputRequest, func(*v1.RunOutputResponse) error) error
	OnAudit     func(context.Context, *v1.AuditRequest, func(*v1.AuditResponse) error) error
	OnEvents    func(context.Context, *v1.EventsRequest, func(*v1.EventsResponse) error) error
	OnConsole   func(context.Context, *v1.GuestConsoleRequest, func(*v1.GuestConsoleResponse) error) error
	OnGetFile   func(context.Context, *v1.ControlGetFileRequest, func(*v1.ControlGetFileResponse) error) error
	OnPutFile   func(first *v1.ControlPutFileRequest, data []byte) error
	OnExec      func(context.Context, *connect.BidiStream[v1.GuestExecRequest, v1.GuestExecResponse]) error

	authority *ca.Authority
	config    *client.Config
	address   string
	server    *http.Server
	listener  net.Listener
}

// Start makes the manager serve until the test ends.
func (m *Manager) Start(t testing.TB) *Manager {
	t.Helper()
	var err error
	if m.authority, err = ca.New("test"); err != nil {
		t.Fatal(err)
	}
	user, err := m.authority.IssueClient(ca.Identity{Kind: ca.KindUser, Name: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	m.address = "127.0.0.1:0"
	m.Resume(t)
	m.config = &client.Config{Managers: []string{"https://" + m.address}, CA: string(m.authority.CertificatePEM()),
		Certificate: string(user.Certificate), Key: string(user.Key)}
	t.Cleanup(m.Stop)
	return m
}

// Stop ends the manager at once, like a crash.
func (m *Manager) Stop() {
	_ = m.listener.Close() // the server may not know the listener yet
	_ = m.server.Close()
}

// Resume starts the manager again at the same address.
func (m *Manager) Resume(t testing.TB) {
	t.Helper()
	own, err := m.authority.IssueServer("test")
	if err != nil {
		t.Fatal(err)
	}
	options, err := ca.ServerTLS(m.authority.CertificatePEM(), own.Certificate, own.Key)
	if err != nil {
		t.Fatal(err)
	}
	options.NextProtos = []string{"h2"}
	listener, err := net.Listen("tcp", m.address)
	if err != nil {
		t.Fatal(err)
	}
	m.address, m.listener = listener.Addr().String(), listener
	routes := http.NewServeMux()
	routes.Handle(watariv1connect.NewControlServiceHandler(m))
	routes.Handle(watariv1connect.NewJoinServiceHandler(m))
	m.server = &http.Server{Handler: routes, TLSConfig: options}
	go func(server *http.Server) { _ = server.Serve(tls.NewListener(listener, options)) }(m.server)
}

// URL returns the manager's URL.
func (m *Manager) URL() string { return "https://" + m.address }

// Token returns a join token of the manager's authority.
func (m *Manager) Token() ca.Token { return m.authority.NewToken() }

// Authority returns the manager's authority.
func (m *Manager) Authority() *ca.Authority { return m.authority }

// Config returns an administrator's client config.
func (m *Manager) Config() client.Config { return *m.config }

// Result is the result of a command.
type Result struct {
	Out, Err string
	Status   int
}

// Command is one run of the program watari.
type Command struct {
	Signals  chan os.Signal
	out, err safeBuffer
	ended    chan int
}

// Now is the current time for the command line.
var Now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Begin starts watari with an administrator's config.
func (m *Manager) Begin(t testing.TB, args ...string) *Command {
	return m.BeginWithInput(t, "", args...)
}

// BeginWithInput is Begin with standard input.
func (m *Manager) BeginWithInput(t testing.TB, input string, args ...string) *Command {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	config := m.Config()
	if err := config.Save(path); err != nil {
		t.Fatal(err)
	}
	c := &Command{Signals: make(chan os.Signal, 2), ended: make(chan int, 1)}
	env := &cli.Env{In: bytes.NewReader([]byte(input)), Out: &c.out, Err: &c.err, Signals: c.Signals, Now: func() time.Time { return Now }}
	go func() { c.ended <- root.Main(context.Background(), env, append([]string{"--config", path}, args...)) }()
	return c
}

// Run runs watari until it ends.
func (m *Manager) Run(t testing.TB, args ...string) Result { return m.Begin(t, args...).Wait(t) }

// deadline limits everything that a test waits for.
const deadline = 20 * time.Second

// Wait waits until the command ends.
func (c *Command) Wait(t testing.TB) Result {
	t.Helper()
	select {
	case status := <-c.ended:
		return Result{c.out.String(), c.err.String(), status}
	case <-time.After(deadline):
		t.Fatalf("the command does not end; it wrote:\n%s%s", c.out.String(), c.err.String())
	}
	return Result{}
}

// AwaitText waits until the command has written a text to either stream.
func (c *Command) AwaitText(t testing.TB, text string) {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		if bytes.Contains([]byte(c.out.String()+c.err.String()), []byte(text)) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("the command does not write %q; it wrote:\n%s%s", text, c.out.String(), c.err.String())
}

type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
