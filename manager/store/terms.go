package store

// terms.go - keeps a record of every term. With these records, a manager detects that its store is older than what hosts
// have seen.

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"

	v1 "watari/api/watariv1"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

// termsDir is the key prefix of the terms' records, by id. Records are never removed.
const termsDir = root + "terms/"

// putTerm writes the term in force and the term's own record in one transaction, so that every term has a record.
func putTerm(term *v1.Term) ([]clientv3.Op, error) {
	inForce, err := json.Marshal(termRecord{term.Number, term.Id, term.Leader})
	if err != nil {
		return nil, fmt.Errorf("encode the term record: %w", err)
	}
	record, err := proto.Marshal(term)
	if err != nil {
		return nil, fmt.Errorf("encode the term record: %w", err)
	}
	return []clientv3.Op{clientv3.OpPut(termKey, string(inForce)), clientv3.OpPut(termsDir+term.Id, string(record))}, nil
}

// signTerm signs the record of a term that has begun, because the revision of its beginning is known only now. If a
// crash left a record unsigned, its term has given no orders.
func (s *Store) signTerm(ctx context.Context, term *v1.Term) error {
	s.mu.Lock()
	sign := s.sign
	s.mu.Unlock()
	if sign == nil {
		return nil
	}
	if err := sign(term); err != nil {
		return fmt.Errorf("sign term %d: %w", term.Number, err)
	}
	record, err := proto.Marshal(term)
	if err != nil {
		return fmt.Errorf("encode the term record: %w", err)
	}
	inForce := clientv3.Compare(clientv3.ModRevision(termKey), "=", term.Revision)
	resp, err := s.client.Txn(ctx).If(inForce).Then(clientv3.OpPut(termsDir+term.Id, string(record))).Commit()
	if err != nil {
		return fmt.Errorf("keep the signature of term %d: %w", term.Number, err)
	}
	if !resp.Succeeded {
		return fmt.Errorf("keep the signature of term %d: %w", term.Number, ErrNotLeader)
	}
	return s.cache.wait(ctx, resp.Header.Revision)
}

// applyTerm applies the record of a term (nil: it was deleted). It takes the revision of the term's beginning from
// etcd, not from the record.
func applyTerm(b *builder, id string, kv *mvccpb.KeyValue) error {
	if !b.copied[termsDir] {
		b.next.Terms = maps.Clone(b.next.Terms)
		b.copied[termsDir] = true
	}
	if kv == nil {
		delete(b.next.Terms, id)
		return nil
	}
	term := &v1.Term{}
	if err := proto.Unmarshal(kv.Value, term); err != nil {
		return fmt.Errorf("decode a term record: %w", err)
	}
	if term.Id != id || term.Number == 0 {
		return fmt.Errorf("decode a term record: it is of term %d (%q)", term.Number, term.Id)
	}
	term.Revision = kv.CreateRevision
	b.next.Terms[id] = term
	return nil
}

// SignTerms sets the function that signs terms which begin from now on.
func (s *Store) SignTerms(sign func(*v1.Term) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sign = sign
}

// RaiseTerm makes the next term's number exceed one that a host has shown, because that host refuses orders of lower
// terms. It ignores the highest numbers, which no term could exceed.
func (s *Store) RaiseTerm(above uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if above < math.MaxUint64-1<<32 {
		s.above = max(s.above, above)
	}
}

func (s *Store) raised() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.above
}

// Led returns the last term that this process began; nil: it never led. The caller must not change it.
func (s *Store) Led() *v1.Term {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.led
}
