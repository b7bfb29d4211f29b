package store

// lead.go - elects the leader. Each new leader rewrites the term record, which fences the writes of the leader before.

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "watari/api/watariv1"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	termKey     = root + "leader/term"
	electionKey = root + "leader/election"
	// leaseSeconds is the time after which a dead leader loses leadership.
	leaseSeconds = 6
)

// termRecord is the value of termKey, as JSON.
type termRecord struct {
	Term   uint64 `json:"term"`
	ID     string `json:"id,omitempty"` // empty: an older version began the term
	Leader string `json:"leader"`
}

func decodeTerm(value []byte, into *Snapshot) error {
	var r termRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return fmt.Errorf("decode the term record: %w", err)
	}
	into.Term, into.TermID, into.Leader = r.Term, r.ID, r.Leader
	return nil
}

// Lead waits until this process leads, and returns the new term, which is above every earlier term. The process leads
// until ctx ends. name is this manager's URL, which other managers show to clients. lost is closed when leadership may
// have been lost. Once another manager leads, writes of this store fail with ErrNotLeader until a further call of Lead
// returns. With the embedded etcd, which belongs to one process, the process leads at once and until Close.
func (s *Store) Lead(ctx context.Context, name string) (term uint64, lost <-chan struct{}, err error) {
	if s.server != nil {
		term, err = s.beginTerm(ctx, name)
		return term, s.server.Server.StopNotify(), err
	}
	// Grant the lease here: NewSession would wait for etcd without a limit.
	lease, err := s.client.Grant(ctx, leaseSeconds)
	if err != nil {
		return 0, nil, fmt.Errorf("get a lease for the election: %w", err)
	}
	session, err := concurrency.NewSession(s.client, concurrency.WithLease(lease.ID), concurrency.WithTTL(leaseSeconds))
	if err != nil {
		return 0, nil, fmt.Errorf("open a lease for the election: %w", err)
	}
	election := concurrency.NewElection(session, electionKey)
	if err := election.Campaign(ctx, name); err != nil {
		session.Close()
		return 0, nil, fmt.Errorf("stand for election: %w", err)
	}
	// The term begins only if this process still holds the election's key.
	elected := clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev())
	term, err = s.beginTerm(ctx, name, elected)
	if err != nil {
		session.Close()
		return 0, nil, err
	}
	s.done.Go(func() {
		select {
		case <-session.Done():
		case <-ctx.Done():
		case <-s.life.Done():
		}
		session.Close() // resign at once; otherwise leadership lasts until the lease's end
	})
	return term, session.Done(), nil
}

// beginTerm raises the term under the conditions and remembers the fence.
func (s *Store) beginTerm(ctx context.Context, name string, conditions ...clientv3.Cmp) (uint64, error) {
	if err := s.roomToWrite(); err != nil {
		return 0, err
	}
	for {
		got, err := s.client.Get(ctx, termKey)
		if err != nil {
			return 0, fmt.Errorf("read the term: %w", err)
		}
		var was Snapshot
		var rev int64
		if len(got.Kvs) > 0 {
			if err := decodeTerm(got.Kvs[0].Value, &was); err != nil {
				return 0, err
			}
			rev = got.Kvs[0].ModRevision
		}
		term := &v1.Term{Number: max(was.Term, s.raised()) + 1, Id: NewUID(), Leader: name}
		puts, err := putTerm(term)
		if err != nil {
			return 0, err
		}
		unchanged := clientv3.Compare(clientv3.ModRevision(termKey), "=", rev)
		resp, err := s.client.Txn(ctx).If(append(conditions, unchanged)...).Then(puts...).Commit()
		if err != nil {
			return 0, fmt.Errorf("begin term %d: %w", term.Number, err)
		}
		if !resp.Succeeded {
			if len(conditions) > 0 {
				return 0, fmt.Errorf("begin term %d: %w", term.Number, ErrNotLeader)
			}
			continue
		}
		term.Revision = resp.Header.Revision
		s.mu.Lock()
		s.ledRev, s.led = term.Revision, term
		s.mu.Unlock()
		if err := s.signTerm(ctx, term); err != nil {
			return 0, err
		}
		return term.Number, s.cache.wait(ctx, term.Revision)
	}
}

// Confirm returns nil if this process leads: no other process has begun to lead before this call. Otherwise it fails with
// ErrNotLeader. etcd's answer is agreed upon by most of its members, so a process that is disconnected from them gets no
// answer.
func (s *Store) Confirm(ctx context.Context) error {
	led := s.fence()
	got, err := s.client.Get(ctx, termKey, clientv3.WithKeysOnly())
	switch {
	case err != nil:
		return fmt.Errorf("make sure that this manager leads: %w", err)
	case led == 0 || len(got.Kvs) == 0 || got.Kvs[0].ModRevision != led:
		return ErrNotLeader
	}
	return nil
}

// fence returns the revision that the term record must have for this process to write. 0: the process never led, and
// its writes are not fenced.
func (s *Store) fence() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledRev
}
