// Package session holds the manager's connections to agents (see package hostlink). It sends orders, receives reports,
// and carries calls to agents and guests.
package session

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/hostlink"
	"watari/internal/orders"
	"watari/internal/protocol"
)

var errClosed = errors.New("this manager is ending")

// Sessions are the connected agents and the last report of each host. When a connection ends, the host's last report
// stays.
type Sessions struct {
	// Accept reports whether a host may connect now. The agent gets its error; a *hostlink.Refusal may name another manager.
	// Each connection calls Accept. Sessions holds its lock during the call, so that no host is dropped between Accept's
	// answer and the session. Accept must therefore not call Sessions.
	Accept func(ca.Identity) error
	// Log is nil for slog.Default().
	Log *slog.Logger
	// Sampled gets each sample of a connected host, and may keep the sample. If it is nil, samples are not requested.
	Sampled func(host string, sample *v1.HostSample)
	// OnSession, if set, is called when a host's session begins, and, with the reason, when a session is refused or has to wait.
	OnSession func(id ca.Identity, address string, err error)

	agents watariv1connect.AgentServiceClient // for the session in a call's context (withSession)

	mu     sync.Mutex
	hosts  map[string]*host
	open   map[*session]bool // all sessions, also those that wait to become their host's session
	subs   []chan struct{}
	closed bool
}

// host is the state of one host, which outlasts its sessions.
type host struct {
	session   *session // nil: not connected
	connected bool     // session has reported
	since     time.Time
	observed  *v1.HostObserved
	fixed     []byte // observed without figures
	load      *v1.HostLoad
	wanted    *v1.HostWanted

	boot             string        // of the last report that has one
	reports, samples *rate.Limiter // what the manager takes, in whatever sessions
	boots            *rate.Limiter // how often boot may change
}

// session is one connection. Its first report makes it its host's session, unless takeOver makes it wait.
type session struct {
	id     ca.Identity
	name   string // of the host
	key    []byte // hash of the host's public key
	from   string // source of its last report: an instance of an agent, or the host's boot
	waits  bool   // OnSession was called: another session has to end first
	conn   *tls.Conn
	client *http.Client
	users  *http.Client  // for users' calls
	wake   chan struct{} // holds a token when wanted was replaced
	cancel context.CancelFunc

	reports, samples *rate.Limiter // the host's
}

// New makes an empty set of sessions. A nil accept accepts every host that has a certificate.
func New(accept func(ca.Identity) error, log *slog.Logger) *Sessions {
	if log == nil {
		log = slog.Default()
	}
	return &Sessions{Accept: accept, Log: log, hosts: map[string]*host{}, open: map[*session]bool{}, agents: newAgents()}
}

// TLSNextProto is for http.Server.TLSNextProto: it serves agents' connections until they end. The server's TLS
// configuration must offer hostlink.Protocol.
func (s *Sessions) TLSNextProto() map[string]func(*http.Server, *tls.Conn, http.Handler) {
	return map[string]func(*http.Server, *tls.Conn, http.Handler){
		hostlink.Protocol: func(_ *http.Server, conn *tls.Conn, _ http.Handler) { s.serve(conn) },
	}
}

func (s *Sessions) serve(conn *tls.Conn) {
	defer conn.Close()
	certs := conn.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return
	}
	id, err := ca.IdentityOf(certs[0])
	if err == nil && id.Kind != ca.KindHost {
		err = fmt.Errorf("%s is not a host", id)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	transport := hostlink.NewTransport(conn)
	defer transport.CloseIdleConnections()
	ses := &session{id: id, name: id.Name, key: ca.KeyHash(certs[0]), conn: conn, client: &http.Client{Transport: transport}, users: &http.Client{Transport: hostlink.ForUsers(transport)}, wake: make(chan struct{}, 1), cancel: cancel}
	if err == nil {
		err = s.begin(ses)
	}
	if errors.Is(err, errClosed) {
		return // the agent dials again, and may find another manager
	}
	if err != nil {
		s.Log.Warn("an agent was refused", "identity", id.String(), "address", conn.RemoteAddr().String(), "reason", err)
		s.tell(ses, err)
		hostlink.Refuse(transport, err)
		return
	}
	s.Log.Info("agent connected", "host", id.Name, "address", conn.RemoteAddr().String())
	err = s.sync(ctx, ses)
	s.end(ses)
	s.Log.Info("agent disconnected", "host", id.Name, "reason", explain(err))
}

// explain returns the reason of a session's end for people.
func explain(err error) string {
	switch text := fmt.Sprint(err); {
	case strings.Contains(text, "connection lost"):
		return "nothing was heard from it"
	case strings.Contains(text, "EOF") || strings.Contains(text, "reset by peer"):
		return "it ended the connection"
	case strings.Contains(text, "use of closed") || strings.Contains(text, "context canceled"):
		return "this manager ended the connection"
	default:
		return text
	}
}

// mostSessions bounds the sessions of a host: one is the host's session, the others wait.
const mostSessions = 8

// begin opens a session, if Accept permits it. It refuses after Close.
func (s *Sessions) begin(ses *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if s.Accept != nil {
		if err := s.Accept(ses.id); err != nil {
			return err
		}
	}
	own := 0
	for other := range s.open {
		if other.name == ses.name {
			own++
		}
	}
	if own >= mostSessions {
		return fmt.Errorf("host %s has %d sessions already", ses.name, own)
	}
	s.open[ses] = true
	h := s.host(ses.name)
	ses.reports, ses.samples = h.reports, h.samples
	return nil
}

// takeOver makes ses the host's session, and reports whether ses now is. It closes an earlier session that is from the same
// instance of the agent and has the same key. Any other earlier session stays until it ends by itself, because it may belong
// to the host, and ses to a copy of the host's disk. The session of a restarted agent also waits in this way. takeOver fails if
// the host has changed its boot too often. s.mu is held.
func (s *Sessions) takeOver(ses *session, from, boot string) (bool, error) {
	if !s.open[ses] {
		return false, nil // it was closed meanwhile
	}
	h := s.host(ses.name)
	ses.from = from
	before := h.session
	if before != nil && before != ses && (before.from != ses.from || !bytes.Equal(before.key, ses.key)) {
		if !ses.waits {
			ses.waits = true
			err := fmt.Errorf("host %s is connected from %s, by another agent or with another key: this session waits until that one ends", ses.name, before.conn.RemoteAddr())
			s.Log.Warn("two machines connect as one host", "host", ses.name, "address", ses.conn.RemoteAddr().String(), "reason", err)
			go s.tell(ses, err)
		}
		return false, nil
	}
	if err := h.noteBoot(ses.name, boot); err != nil {
		s.Log.Warn("a host changes its boot too often", "host", ses.name, "address", ses.conn.RemoteAddr().String(), "reason", err)
		go s.tell(ses, err)
		return false, err
	}
	if before == ses {
		return true, nil
	}
	if before != nil {
		s.close(before)
	}
	if h.connected {
		h.connected, h.since = false, time.Now()
	}
	h.session = ses
	go s.tell(ses, nil)
	return true, nil
}

// noteBoot notes the boot that a report names. It fails if the host has changed its boot too often. Each boot ends the host's guests,
// and others' events would leave the history if a host could do that without limit.
func (h *host) noteBoot(name, boot string) error {
	if boot == "" || boot == h.boot {
		return nil
	}
	if h.boot != "" {
		if turn := h.boots.Reserve(); turn.Delay() > 0 {
			wait := turn.Delay()
			turn.Cancel()
			return fmt.Errorf("host %s has booted %d times and more in a short time: its next boot counts in %v", name, bootBurst, wait.Round(time.Second))
		}
	}
	h.boot = boot
	return nil
}

// tell calls OnSession.
func (s *Sessions) tell(ses *session, err error) {
	if s.OnSession != nil {
		s.OnSession(ses.id, ses.conn.RemoteAddr().String(), err)
	}
}

// close closes a session. s.mu is held.
func (s *Sessions) close(ses *session) {
	delete(s.open, ses)
	ses.cancel()
	ses.conn.NetConn().Close() // closing TLS would wait for the other end
}

// closeAll closes the sessions of a host, or all sessions if host is empty. s.mu is held.
func (s *Sessions) closeAll(host string) {
	for ses := range s.open {
		if host == "" || ses.name == host {
			s.close(ses)
		}
	}
}

func (s *Sessions) end(ses *session) {
	s.mu.Lock()
	delete(s.open, ses)
	h := s.hosts[ses.name]
	if h == nil || h.session != ses {
		s.mu.Unlock()
		return
	}
	h.session = nil
	was := h.connected
	if was {
		h.connected, h.since = false, time.Now()
	}
	s.mu.Unlock()
	if was {
		s.notify()
	}
}

// host returns the state of a host, and creates it if it is missing. s.mu is held.
func (s *Sessions) host(name string) *host {
	if s.hosts[name] == nil {
		s.hosts[name] = &host{reports: rate.NewLimiter(rate.Every(reportPause), reportBurst), samples: rate.NewLimiter(rate.Every(samplePause), sampleBurst),
			boots: rate.NewLimiter(rate.Every(bootPause), bootBurst)}
	}
	return s.hosts[name]
}

// sync carries AgentService.Sync until the connection ends.
func (s *Sessions) sync(ctx context.Context, ses *session) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := s.agents.Sync(withSession(ctx, ses))
	defer stream.CloseResponse()
	// Send the request's headers at once, so that the agent reports before it has orders.
	if err := stream.Send(nil); err != nil {
		return fmt.Errorf("begin to talk to the agent: %w", err)
	}
	sent := make(chan error, 1)
	go func() {
		sent <- s.sendWanted(ctx, ses, stream)
		cancel()
	}()
	for first := true; ; first = false {
		// After a pause, the agent sends its newest report.
		_ = ses.reports.Wait(ctx)
		observed, err := stream.Receive()
		if err != nil {
			select {
			case sendErr := <-sent: // sending failed first, which ended the stream
				if sendErr != nil {
					err = sendErr
				}
			default:
				cancel()
				<-sent
			}
			return err
		}
		if err := s.received(ses, observed); err != nil {
			cancel()
			<-sent
			return err
		}
		if first && s.Sampled != nil { // a transport makes its one connection for one request
			go s.followSamples(ctx, ses)
		}
	}
}

const (
	// reportPause is the least time between two reports that the manager takes from a host in the long run, in whatever sessions: it
	// decides anew after each report with a change. reportBurst reports are taken without a pause.
	reportPause = 20 * time.Millisecond
	reportBurst = 100
	// samplePause and sampleBurst are the same for samples. A host sends one sample a second, and another one at once when its owner
	// comes back.
	samplePause = 500 * time.Millisecond
	sampleBurst = 2
	// bootPause and bootBurst are the same for changes of a host's boot.
	bootPause = 10 * time.Minute
	bootBurst = 20
	// sampleAgain is the pause before samples are requested again from a host whose stream of samples has ended.
	sampleAgain = 10 * time.Second
)

// followSamples passes the host's samples on until the connection ends. Agents of earlier versions send no samples.
func (s *Sessions) followSamples(ctx context.Context, ses *session) {
	for ctx.Err() == nil {
		err := s.takeSamples(ctx, ses)
		if connect.CodeOf(err) == connect.CodeUnimplemented {
			return
		}
		pause(ctx, sampleAgain)
	}
}

func (s *Sessions) takeSamples(ctx context.Context, ses *session) error {
	stream, err := s.agents.Samples(withSession(ctx, ses), connect.NewRequest(&v1.SamplesRequest{}))
	if err != nil {
		return err
	}
	defer stream.Close()
	for ses.samples.Wait(ctx) == nil && stream.Receive() {
		if !s.isHosts(ses) {
			continue
		}
		sample := stream.Msg()
		boundMessage(sample.ProtoReflect(), maxName, maxFacts)
		s.Sampled(ses.name, sample)
	}
	return stream.Err()
}

// isHosts reports whether ses is the session of its host.
func (s *Sessions) isHosts(ses *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[ses.name]
	return h != nil && h.session == ses
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (s *Sessions) sendWanted(ctx context.Context, ses *session, stream *connect.BidiStreamForClient[v1.HostWanted, v1.HostObserved]) error {
	defer stream.CloseRequest()
	var sent *v1.HostWanted // in this session
	for {
		select {
		case <-ses.wake:
		case <-ctx.Done():
			return nil
		}
		s.mu.Lock()
		var wanted *v1.HostWanted
		var version uint32
		if h := s.hosts[ses.name]; h != nil && h.session == ses && h.connected { // otherwise the host was dropped meanwhile
			wanted, version = h.wanted, h.observed.GetProtocol()
		}
		s.mu.Unlock()
		if wanted == nil {
			continue
		}
		message := orders.Change(sent, wanted, version)
		if version < protocol.Changes {
			message = orders.WithPeers(wanted)
		}
		if err := stream.Send(message); err != nil {
			return fmt.Errorf("send orders: %w", err)
		}
		sent = wanted
	}
}

// received stores a report, and wakes the subscribers if it shows a change. After an error, the session has to end.
func (s *Sessions) received(ses *session, observed *v1.HostObserved) error {
	from := cmp.Or(observed.Instance, "boot "+observed.GetInfo().GetBootId()) // an older agent has no instance
	observed.Instance = ""                                                    // it is a secret
	boundLoad(observed.Load)
	fixed, err := withoutFigures(observed)
	s.mu.Lock()
	h := s.hosts[ses.name]
	known := err == nil && h != nil && bytes.Equal(fixed, h.fixed)
	s.mu.Unlock()
	if !known && bound(observed) { // a report that equals the last one was bounded already
		fixed, err = withoutFigures(observed)
	}
	s.mu.Lock()
	if taken, err := s.takeOver(ses, from, observed.GetInfo().GetBootId()); !taken {
		s.mu.Unlock()
		return err
	}
	h = s.hosts[ses.name]
	same := err == nil && h.observed != nil && bytes.Equal(fixed, h.fixed)
	changed := !h.connected || !same
	if !same {
		keepInfo(observed, h.observed)
		h.observed, h.fixed = observed, fixed
	}
	h.load = observed.Load
	if !h.connected {
		h.connected, h.since = true, time.Now()
	}
	s.mu.Unlock()
	if changed {
		s.notify()
	}
	return nil
}

// Send sends orders to a host. They replace earlier orders that have not been sent yet. Send drops orders of an older term
// than the last. It sends no orders before the host's first report in a session, and does not repeat earlier orders in a new
// session: the host may have rebooted, so the caller must read the new report first.
func (s *Sessions) Send(name string, wanted *v1.HostWanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.host(name)
	if wanted.GetTerm() < h.wanted.GetTerm() {
		return
	}
	h.wanted = wanted
	if h.session != nil && h.connected {
		select {
		case h.session.wake <- struct{}{}:
		default:
		}
	}
}

// Observed returns a host's last report, whether the host is connected, and since when (zero: it never was connected). The
// report is nil if the host has sent none since the manager began. The report is shared: do not change it. A host counts as
// connected from its first report on, so a connected host's report is never older than its connection. While reports differ
// only in figures, Observed returns the first of them: readers detect a change by the pointer. Load returns the figures of
// the last report. A report whose info equals that of the host's report before has the same info pointer.
func (s *Sessions) Observed(name string) (observed *v1.HostObserved, since time.Time, connected bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[name]
	if h == nil {
		return nil, time.Time{}, false
	}
	return h.observed, h.since, h.connected
}

// Load returns the load that a host reported last, or nil.
func (s *Sessions) Load(name string) *v1.HostLoad {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[name]; h != nil {
		return h.load
	}
	return nil
}

// HTTPClient returns a client of the host's agent (base URL hostlink.BaseURL) on its present connection, for the manager's own calls.
func (s *Sessions) HTTPClient(name string) (connect.HTTPClient, error) {
	ses, err := s.connected(name)
	if err != nil {
		return nil, err
	}
	return ses.client, nil
}

// UsersClient is HTTPClient for calls that users make.
func (s *Sessions) UsersClient(name string) (connect.HTTPClient, error) {
	ses, err := s.connected(name)
	if err != nil {
		return nil, err
	}
	return ses.users, nil
}

// connected returns the session of a host.
func (s *Sessions) connected(name string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[name]
	if h == nil || h.session == nil {
		return nil, fmt.Errorf("host %s is not connected", name)
	}
	return h.session, nil
}

// Drop ends the session of a removed host and forgets its report.
func (s *Sessions) Drop(name string) {
	s.mu.Lock()
	s.closeAll(name)
	delete(s.hosts, name)
	s.mu.Unlock()
	s.notify()
}

// Cut ends a host's sessions that Accept refuses from now on: those with certificates of generations before the given one. The
// host's last report stays.
func (s *Sessions) Cut(name string, before uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ses := range s.open {
		if ses.name == name && ses.id.Generation < before {
			s.close(ses)
		}
	}
}

// Reset ends all sessions and forgets all reports, because this manager no longer leads.
func (s *Sessions) Reset() { s.reset(false) }

// Close is Reset, and refuses later sessions.
func (s *Sessions) Close() { s.reset(true) }

func (s *Sessions) reset(close bool) {
	s.mu.Lock()
	s.closeAll("")
	s.hosts = map[string]*host{}
	s.closed = s.closed || close
	s.mu.Unlock()
	s.notify() // those who follow changes have to turn to the leader
}
