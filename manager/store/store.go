// Package store keeps Watari's objects in etcd, as protobuf values under /watari/<kind>/<name>. It has compare-and-swap
// updates, transactions over several kinds, an in-memory snapshot that one watch updates, and a bounded history of
// events. It also elects the leader: a manager that has lost leadership can no longer write.
//
// By default etcd is embedded, without listeners: the client calls it in the process. With Config.Endpoints the store
// uses an outside etcd cluster, which several managers may share.
package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	v1 "watari/api/watariv1"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

var (
	// ErrNotFound: there is no object of that kind and name.
	ErrNotFound = errors.New("not found")
	// ErrExists: there is already an object of that kind and name.
	ErrExists = errors.New("already exists")
	// ErrConflict: the object has changed since it was read. Read it again and decide again.
	ErrConflict = errors.New("changed meanwhile")
	// ErrNotLeader: this process has led, and another process leads now. Nothing was written.
	ErrNotLeader = errors.New("another manager leads now")
	// ErrNoSpace: the disk (or etcd's quota) is full; nothing was written.
	ErrNoSpace = errors.New("no space left for the manager's state")
	// ErrTooLarge: etcd will never accept this change, even without others; nothing of it was written.
	ErrTooLarge = errors.New("the change is too large for etcd")
	// ErrWrite: etcd failed or did not answer. The change is not the reason.
	ErrWrite = errors.New("write to etcd")
)

// Config has the location of the objects and the store's settings.
type Config struct {
	// Dir holds the embedded etcd's data (made with mode 0700). Unused when Endpoints are given.
	Dir string
	// Endpoints of an outside etcd cluster, "https://host:2379". Empty: embed one.
	Endpoints []string
	// TLS for the Endpoints; nil only makes sense for Unix sockets and tests.
	TLS *tls.Config
	// MaxEvents bounds the history; 0: 10,000.
	MaxEvents int
	// Logger logs the store's own few messages; nil: slog.Default(). The embedded etcd logs to Dir/etcd.log.
	Logger *slog.Logger
}

// Store is a connection to the objects. Its methods may be called from any goroutine.
type Store struct {
	cfg    Config
	log    *slog.Logger
	server *embed.Etcd // nil: an outside etcd
	client *clientv3.Client
	maxOps int // operations that etcd accepts in one transaction
	// maxBytes is the largest request that etcd accepts.
	maxBytes int
	cache    *cache
	life     context.Context // ends with Close
	stop     context.CancelFunc
	done     sync.WaitGroup

	mu     sync.Mutex
	ledRev int64 // ModRevision of the term record when this process began to lead; 0: never led
	led    *v1.Term
	above  uint64               // every later term's number is above it
	sign   func(*v1.Term) error // nil: terms are not signed
}

// Open starts the embedded etcd or connects to an outside one, and returns when the snapshot is loaded. ctx bounds only
// the opening.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.MaxEvents == 0 {
		cfg.MaxEvents = 10_000
	}
	s := &Store{cfg: cfg, log: cfg.Logger}
	if s.log == nil {
		s.log = slog.Default()
	}
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	s.cache = newCache(cfg.MaxEvents)
	rev, err := s.load(ctx)
	if err != nil {
		s.disconnect()
		return nil, fmt.Errorf("read the manager's objects from etcd: %w", err)
	}
	s.life, s.stop = context.WithCancel(context.Background())
	s.done.Go(func() { s.watch(s.life, rev) })
	return s, nil
}

func (s *Store) connect(ctx context.Context) error {
	if len(s.cfg.Endpoints) == 0 {
		return s.startEmbedded(ctx)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: s.cfg.Endpoints, TLS: s.cfg.TLS, Context: context.Background(),
		DialTimeout: 10 * time.Second, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		Logger: quietLogger(),
	})
	if err != nil {
		return fmt.Errorf("connect to etcd at %v: %w", s.cfg.Endpoints, err)
	}
	s.client, s.maxBytes = client, outsideRequestBytes
	return s.askMaxOps(ctx)
}

// askMaxOps finds out whether an outside etcd accepts as many operations in a transaction as the embedded one. It sends
// a transaction with that many comparisons and no writes.
func (s *Store) askMaxOps(ctx context.Context) error {
	compares := make([]clientv3.Cmp, maxTxnOps)
	for i := range compares {
		compares[i] = clientv3.Compare(clientv3.CreateRevision(termKey), "=", -1)
	}
	s.maxOps = maxTxnOps
	_, err := s.client.Txn(ctx).If(compares...).Commit()
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		s.maxOps, err = outsideTxnOps, nil
	}
	if err != nil {
		s.client.Close()
		return fmt.Errorf("ask etcd at %v how large a transaction may be: %w", s.cfg.Endpoints, err)
	}
	return nil
}

// MaxOps is the number of operations that a Change may hold, including its event.
func (s *Store) MaxOps() int { return s.maxOps - 1 }

func (s *Store) disconnect() {
	if s.server == nil {
		s.client.Close()
		return
	}
	// The in-process client has no connection; its watcher and leases end with the server.
	s.client.Watcher.Close()
	s.client.Lease.Close()
	s.server.Close()
}

// Close ends leadership, the watch and the embedded etcd. Channels of Changes and Subscribe are not closed.
func (s *Store) Close() error {
	s.stop()
	s.done.Wait()
	s.disconnect()
	return nil
}

// Snapshot returns all objects as the watch last saw them. It includes every write whose call has returned. The
// snapshot and its objects are shared: never change them; use proto.Clone.
func (s *Store) Snapshot() *Snapshot { return s.cache.current() }

// Changes returns a channel that holds a token when the snapshot has changed since the last receive. The
// subscription lives as long as the store: call it once per consumer, not once per receive.
func (s *Store) Changes() <-chan struct{} { return s.cache.subscribe(nil) }

// Subscribe is Changes for a consumer that ends with ctx.
func (s *Store) Subscribe(ctx context.Context) <-chan struct{} { return s.cache.subscribe(ctx) }
