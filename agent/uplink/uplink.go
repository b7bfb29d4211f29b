// Package uplink connects a host to its managers. It joins once by a token, keeps one connection to the leading
// manager, and fetches content from it.
package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/hostlink"
	"watari/internal/durable"
	"watari/internal/protocol"
)

const (
	firstWait = 100 * time.Millisecond
	longWait  = 3 * time.Second
	// steady is the duration after which a lost connection is replaced without a pause.
	steady = 5 * time.Second
)

// Config has the host's identity and the managers' addresses.
type Config struct {
	Managers  []string // https://host:port
	Name      string
	PKIDir    string // <state>/pki: key.pem, certificate.pem, ca.pem
	TokenFile string // needed until the host has joined
	// Removed is called whenever a manager refuses a connection because the host was removed. It may be nil.
	Removed func()
	Log     *slog.Logger
}

// Uplink connects a host to its managers.
type Uplink struct {
	config  Config
	renewal sync.Mutex // one renewal at a time

	mu      sync.Mutex
	pem     Identity
	tls     *tls.Config
	manager string // the last one connected
	leader  string // the last one that another manager named as the leader
}

// Identity is the host's certificate, its key and the authority's certificate, PEM.
type Identity struct {
	CA, Certificate, Key []byte
}

// Open reads the host's certificate, or joins. It waits for a manager until ctx ends.
func Open(ctx context.Context, config Config) (*Uplink, error) {
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if len(config.Managers) == 0 {
		return nil, errors.New("no manager was named; give --manager https://host:7070")
	}
	u := &Uplink{config: config, manager: config.Managers[0]}
	var err error
	u.pem, err = readPKI(config.PKIDir)
	if errors.Is(err, os.ErrNotExist) {
		u.pem, err = u.join(ctx)
	}
	if err != nil {
		return nil, err
	}
	if u.tls, err = ca.ClientTLS(u.pem.CA, u.pem.Certificate, u.pem.Key); err != nil {
		return nil, fmt.Errorf("use the host's certificate in %s: %w", config.PKIDir, err)
	}
	cert, err := ca.ParseCertificate(u.pem.Certificate)
	if err != nil {
		return nil, fmt.Errorf("use the host's certificate in %s: %w", config.PKIDir, err)
	}
	if id, err := ca.IdentityOf(cert); err != nil || id.Kind != ca.KindHost || id.Name != config.Name {
		return nil, fmt.Errorf("the certificate in %s is not host %s's but %s's; give --name %s, or remove it and join anew with a token",
			config.PKIDir, config.Name, id, id.Name)
	}
	return u, nil
}

// PEM returns the host's certificate, its key and the authority's certificate.
func (u *Uplink) PEM() Identity {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.pem
}

var pkiFiles = []string{"ca.pem", "certificate.pem", "key.pem"}

func readPKI(dir string) (Identity, error) {
	var id Identity
	for i, to := range []*[]byte{&id.CA, &id.Certificate, &id.Key} {
		data, err := os.ReadFile(filepath.Join(dir, pkiFiles[i]))
		if err != nil {
			return Identity{}, fmt.Errorf("read the host's certificate: %w", err)
		}
		*to = data
	}
	return id, nil
}

// join exchanges the token for a certificate. It waits until a manager can be reached. A refusal is final.
func (u *Uplink) join(ctx context.Context) (Identity, error) {
	if u.config.TokenFile == "" {
		return Identity{}, errors.New("this host has not joined yet; give --token-file with a token of `watari token create --host`")
	}
	text, err := os.ReadFile(u.config.TokenFile)
	if err != nil {
		return Identity{}, fmt.Errorf("join: read the token: %w", err)
	}
	token, err := ca.ParseToken(string(text))
	if err != nil {
		return Identity{}, fmt.Errorf("join: the token in %s: %w", u.config.TokenFile, err)
	}
	key, request, err := joinKey(u.config.PKIDir)
	if err != nil {
		return Identity{}, fmt.Errorf("join: %w", err)
	}
	wait := firstWait
	for {
		for _, manager := range u.managers() {
			id, err := u.joinAt(ctx, manager, token, key, request)
			if err == nil {
				u.config.Log.Info("joined", "manager", manager, "name", u.config.Name)
				return id, nil
			}
			switch connect.CodeOf(err) {
			case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeUnknown, connect.CodeCanceled:
				u.config.Log.Warn("join", "manager", manager, "error", err, "again_in", wait)
				if refused := (*connect.Error)(nil); errors.As(err, &refused) {
					u.learn(refused.Meta().Get(protocol.LeaderHeader))
				}
			default:
				return Identity{}, fmt.Errorf("join as host %s at %s: %w", u.config.Name, manager, err)
			}
		}
		if !sleep(ctx, &wait) {
			return Identity{}, ctx.Err()
		}
	}
}

func (u *Uplink) joinAt(ctx context.Context, manager string, token ca.Token, key, request []byte) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.JoinTLS(token), ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	answer, err := watariv1connect.NewJoinServiceClient(client, manager).Join(ctx, connect.NewRequest(&v1.JoinRequest{
		Token: token.String(), Name: u.config.Name, Request: request}))
	if err != nil {
		return Identity{}, err
	}
	id := Identity{CA: answer.Msg.CaCertificate, Certificate: answer.Msg.Certificate, Key: key}
	if err := token.CheckAuthority(id.CA); err != nil {
		return Identity{}, connect.NewError(connect.CodePermissionDenied, err)
	}
	err = keepSite(u.config.PKIDir, answer.Msg.Site)
	if err == nil {
		err = writePKI(u.config.PKIDir, id)
	}
	if err != nil {
		return Identity{}, connect.NewError(connect.CodeInternal, err)
	}
	return id, nil
}

// writePKI writes the certificate last: its presence means that the host has joined.
func writePKI(dir string, id Identity) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the host's certificate: %w", err)
	}
	for _, file := range []struct {
		name string
		data []byte
	}{{"key.pem", id.Key}, {"ca.pem", id.CA}, {"certificate.pem", id.Certificate}} {
		if err := durable.WriteFile(filepath.Join(dir, file.name), file.data, 0o600); err != nil {
			return fmt.Errorf("keep the host's certificate: %w", err)
		}
	}
	return nil
}

// Run keeps a connection to a manager until ctx ends, and serves handler on it.
func (u *Uplink) Run(ctx context.Context, handler http.Handler) {
	go u.renewing(ctx)
	wait := firstWait
	next := u.config.Managers[0]
	for ctx.Err() == nil {
		begun := time.Now()
		u.enter(next)
		u.renew(ctx, next)
		err := hostlink.Dial(ctx, next, u.clientTLS(), handler)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) > steady {
			wait = firstWait
		}
		u.config.Log.Warn("no connection to the manager; guests run on unless the host was removed", "manager", next, "reason", err)
		var refusal *hostlink.Refusal
		if errors.As(err, &refusal) && refusal.Removed && u.config.Removed != nil {
			u.config.Removed()
		}
		next = u.after(next, err)
		if !sleep(ctx, &wait) {
			return
		}
	}
}

func (u *Uplink) enter(manager string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.manager = manager
}

// after returns the manager to try next: the leader if err names it, else the next in the list.
func (u *Uplink) after(manager string, err error) string {
	var refusal *hostlink.Refusal
	if errors.As(err, &refusal) && u.learn(refusal.Leader) {
		return refusal.Leader
	}
	managers := u.managers()
	return managers[(slices.Index(managers, manager)+1)%len(managers)]
}

// learn notes the URL of a leading manager, which a manager has named, as one to try. It returns false if it is no such URL.
func (u *Uplink) learn(leader string) bool {
	if !strings.HasPrefix(leader, "https://") {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.leader = leader
	return true
}

// managers returns the managers to try: those of the configuration, and the last known leader.
func (u *Uplink) managers() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.leader == "" || slices.Contains(u.config.Managers, u.leader) {
		return u.config.Managers
	}
	return append(slices.Clone(u.config.Managers), u.leader)
}

// sleep waits for a randomised time and doubles the wait; false: ctx ended.
func sleep(ctx context.Context, wait *time.Duration) bool {
	d := *wait/2 + rand.N(*wait/2+1)
	*wait = min(2**wait, longWait)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Get fetches a path from the manager, from an offset in bytes. It tries the other managers if the manager does not
// answer.
func (u *Uplink) Get(ctx context.Context, path string, offset int64) (*http.Response, error) {
	u.mu.Lock()
	managers := []string{u.manager}
	u.mu.Unlock()
	for _, manager := range u.managers() {
		if !slices.Contains(managers, manager) {
			managers = append(managers, manager)
		}
	}
	config := u.clientTLS().Clone()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true,
		ResponseHeaderTimeout: 20 * time.Second, IdleConnTimeout: 30 * time.Second}}
	var errs []error
	for _, manager := range managers {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(manager, "/")+path, nil)
		if err != nil {
			return nil, err
		}
		if offset > 0 {
			request.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
		}
		response, err := client.Do(request)
		if err == nil {
			return response, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
