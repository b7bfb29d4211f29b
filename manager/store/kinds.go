package store

// kinds.go - the kinds of objects and the calls on one object.

import (
	"context"
	"fmt"
	"strings"

	v1 "watari/api/watariv1"
	"watari/core"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

const root = "/watari/"

// Object is anything the store keeps.
type Object = core.Object

// Kind is one sort of objects.
type Kind[T Object] struct {
	name  string // "host", for messages
	dir   string // key prefix
	empty func() T
}

// The kinds.
var (
	Hosts       = Kind[*v1.Host]{"host", root + "hosts/", func() *v1.Host { return new(v1.Host) }}
	Images      = Kind[*v1.Image]{"image", root + "images/", func() *v1.Image { return new(v1.Image) }}
	Clusters    = Kind[*v1.Cluster]{"cluster", root + "clusters/", func() *v1.Cluster { return new(v1.Cluster) }}
	Guests      = Kind[*v1.Guest]{"guest", root + "guests/", func() *v1.Guest { return new(v1.Guest) }}
	Migrations  = Kind[*v1.Migration]{"migration", root + "migrations/", func() *v1.Migration { return new(v1.Migration) }}
	Runs        = Kind[*v1.Run]{"run", root + "runs/", func() *v1.Run { return new(v1.Run) }}
	Users       = Kind[*v1.User]{"user", root + "users/", func() *v1.User { return new(v1.User) }}
	Tokens      = Kind[*v1.Token]{"token", root + "tokens/", func() *v1.Token { return new(v1.Token) }}
	Removed     = Kind[*v1.RemovedHost]{"removed host", root + "removed/", func() *v1.RemovedHost { return new(v1.RemovedHost) }}
	Checkpoints = Kind[*v1.Checkpoint]{"checkpoint", root + "checkpoints/", func() *v1.Checkpoint { return new(v1.Checkpoint) }}
	Volumes     = Kind[*v1.Volume]{"volume", root + "volumes/", func() *v1.Volume { return new(v1.Volume) }}
	Storages    = Kind[*v1.Storage]{"storage", root + "storage/", func() *v1.Storage { return new(v1.Storage) }}
	Sites       = Kind[*v1.Site]{"site", root + "sites/", func() *v1.Site { return new(v1.Site) }}
	Policies    = Kind[*v1.Policy]{"policy", root + "policies/", func() *v1.Policy { return new(v1.Policy) }}
	Holds       = Kind[*v1.Hold]{"hold", root + "holds/", func() *v1.Hold { return new(v1.Hold) }}
	Revocations = Kind[*v1.Revocations]{"record of revocations", root + "revocations/", func() *v1.Revocations { return new(v1.Revocations) }}
)

// kindOf returns the name of an object's kind, and the object's key.
func kindOf(o Object) (kind, key string, err error) {
	var dir string
	switch o.(type) {
	case *v1.Host:
		kind, dir = Hosts.name, Hosts.dir
	case *v1.Image:
		kind, dir = Images.name, Images.dir
	case *v1.Cluster:
		kind, dir = Clusters.name, Clusters.dir
	case *v1.Guest:
		kind, dir = Guests.name, Guests.dir
	case *v1.Migration:
		kind, dir = Migrations.name, Migrations.dir
	case *v1.Run:
		kind, dir = Runs.name, Runs.dir
	case *v1.User:
		kind, dir = Users.name, Users.dir
	case *v1.Token:
		kind, dir = Tokens.name, Tokens.dir
	case *v1.RemovedHost:
		kind, dir = Removed.name, Removed.dir
	case *v1.Hold:
		kind, dir = Holds.name, Holds.dir
	case *v1.Revocations:
		kind, dir = Revocations.name, Revocations.dir
	case *v1.Checkpoint:
		kind, dir = Checkpoints.name, Checkpoints.dir
	case *v1.Volume:
		kind, dir = Volumes.name, Volumes.dir
	case *v1.Storage:
		kind, dir = Storages.name, Storages.dir
	case *v1.Site:
		kind, dir = Sites.name, Sites.dir
	case *v1.Policy:
		kind, dir = Policies.name, Policies.dir
	default:
		return "", "", fmt.Errorf("store: %T is not kept", o)
	}
	name := o.GetMeta().GetName()
	if name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("store: a %s cannot be named %q", kind, name)
	}
	return kind, dir + name, nil
}

// decode decodes an object from its stored value.
func (k Kind[T]) decode(value []byte, revision int64) (T, error) {
	o := k.empty()
	if err := proto.Unmarshal(value, o); err != nil {
		return o, fmt.Errorf("decode a stored %s: %w", k.name, err)
	}
	if o.GetMeta() == nil {
		return o, fmt.Errorf("decode a stored %s: it has no name", k.name)
	}
	o.GetMeta().Revision = revision
	return o, nil
}

// Get reads one object from etcd itself (the snapshot is cheaper and nearly always enough). The caller owns it.
func (k Kind[T]) Get(ctx context.Context, s *Store, name string) (T, error) {
	var none T
	resp, err := s.client.Get(ctx, k.dir+name)
	if err != nil {
		return none, fmt.Errorf("get %s %s: %w", k.name, name, err)
	}
	if len(resp.Kvs) == 0 {
		return none, fmt.Errorf("get %s %s: %w", k.name, name, ErrNotFound)
	}
	return k.decode(resp.Kvs[0].Value, resp.Kvs[0].ModRevision)
}

// List reads all objects of the kind from etcd itself, by name. The caller owns them.
func (k Kind[T]) List(ctx context.Context, s *Store) ([]T, error) {
	resp, err := s.client.Get(ctx, k.dir, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", k.name, err)
	}
	list := make([]T, 0, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		o, err := k.decode(kv.Value, kv.ModRevision)
		if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, nil
}

// Create stores a new object, and fills in a missing uid and creation time; ErrExists.
func (k Kind[T]) Create(ctx context.Context, s *Store, o T) error { return s.Txn(ctx, Create(o)) }

// Update replaces the object that was read at o's revision; ErrConflict if it has changed since, ErrNotFound.
func (k Kind[T]) Update(ctx context.Context, s *Store, o T) error { return s.Txn(ctx, Update(o)) }

// Delete removes the object that was read at o's revision; ErrConflict, ErrNotFound.
func (k Kind[T]) Delete(ctx context.Context, s *Store, o T) error { return s.Txn(ctx, Delete(o)) }
