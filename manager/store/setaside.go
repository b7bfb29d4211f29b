package store

// setaside.go - names objects that cannot be read, and moves them away when a person asks for it.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// asideRoot is the key prefix of objects that were set aside. No code reads them.
const asideRoot = "/watari-set-aside/"

// UnreadableError names the objects that cannot be read. They must not count as absent: a manager that ignored a
// guest's object would start the guest a second time.
type UnreadableError struct{ Objects map[string]error } // by key

// Error names the first object, its fault, and the next step.
func (e *UnreadableError) Error() string {
	keys := slices.Sorted(maps.Keys(e.Objects))
	if len(keys) == 0 {
		return "no object is unreadable"
	}
	text := fmt.Sprintf("object %s in etcd cannot be read: %v", keys[0], e.Objects[keys[0]])
	if len(keys) > 1 {
		text += fmt.Sprintf(" (and %d more: %s)", len(keys)-1, strings.Join(keys[1:], ", "))
	}
	text += "; put a backup of the manager's state back"
	if restsOn(keys[0]) {
		return text
	}
	return text + ", or end the manager and set the object aside: watari manager set-aside " + keys[0]
}

// restsOn reports whether guests depend on an object. Without it they would be ended, or started twice.
func restsOn(key string) bool {
	return slices.ContainsFunc([]string{Hosts.dir, Clusters.dir, Migrations.dir, Holds.dir, termsDir, root + "leader/"}, func(dir string) bool {
		return strings.HasPrefix(key, dir)
	})
}

// Readable returns an *UnreadableError if an object of a snapshot cannot be read.
func Readable(s *Snapshot) error {
	if len(s.Unreadable) > 0 {
		return &UnreadableError{s.Unreadable}
	}
	return nil
}

// note stores whether a key's value can be read.
func (b *builder) note(key string, err error) {
	if err == nil && b.next.Unreadable[key] == nil {
		return
	}
	b.next.Unreadable = maps.Clone(b.next.Unreadable)
	if err == nil {
		delete(b.next.Unreadable, key)
		return
	}
	if b.next.Unreadable == nil {
		b.next.Unreadable = map[string]error{}
	}
	b.next.Unreadable[key] = err
}

// SetAside moves an object that cannot be read to another key, and returns that key. It refuses readable objects, and
// objects on which guests depend: hosts, clusters, moves, the hold and the terms. No manager may use the store
// meanwhile.
func SetAside(ctx context.Context, cfg Config, key string) (kept string, err error) {
	if restsOn(key) {
		return "", fmt.Errorf("set %s aside: guests rest on it, and would be ended or started twice without it; put a backup of the state back", key)
	}
	s, err := Open(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer s.Close()
	if s.Snapshot().Unreadable[key] == nil {
		return "", fmt.Errorf("set %s aside: there is no such object that cannot be read; those are: %s", key,
			strings.Join(slices.Sorted(maps.Keys(s.Snapshot().Unreadable)), ", "))
	}
	got, err := s.client.Get(ctx, key)
	if err != nil {
		return "", fmt.Errorf("set %s aside: %w", key, err)
	}
	if len(got.Kvs) == 0 {
		return "", fmt.Errorf("set %s aside: %w", key, ErrNotFound)
	}
	kv := got.Kvs[0]
	kept = fmt.Sprintf("%s%d/%s", asideRoot, kv.ModRevision, strings.TrimPrefix(key, root))
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
	answer, err := s.client.Txn(ctx).If(unchanged).Then(clientv3.OpPut(kept, string(kv.Value)), clientv3.OpDelete(key)).Commit()
	if err == nil && !answer.Succeeded {
		err = ErrConflict
	}
	if err != nil {
		return "", fmt.Errorf("set %s aside: %w", key, err)
	}
	return kept, nil
}
