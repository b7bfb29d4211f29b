package store

// authority.go - the certificate authority that all managers of one etcd share.

import (
	"context"
	"encoding/json"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const authorityKey = root + "authority"

// authorityRecord is the value of authorityKey, as JSON.
type authorityRecord struct {
	Certificate []byte `json:"certificate"`
	Key         []byte `json:"key"`
}

// Authority returns the authority's certificate and key, PEM. The first manager that calls it makes and stores them,
// together with the initial objects of a new installation.
func (s *Store) Authority(ctx context.Context, make func() (certificate, key []byte, err error), first ...Object) (certificate, key []byte, err error) {
	for {
		got, err := s.client.Get(ctx, authorityKey)
		if err != nil {
			return nil, nil, fmt.Errorf("read the authority: %w", err)
		}
		if len(got.Kvs) > 0 {
			var r authorityRecord
			if err := json.Unmarshal(got.Kvs[0].Value, &r); err != nil {
				return nil, nil, fmt.Errorf("read the authority: %w", err)
			}
			return r.Certificate, r.Key, nil
		}
		certificate, key, err := make()
		if err != nil {
			return nil, nil, err
		}
		value, err := json.Marshal(authorityRecord{certificate, key})
		if err != nil {
			return nil, nil, fmt.Errorf("encode the authority: %w", err)
		}
		if err := s.roomToWrite(); err != nil {
			return nil, nil, err
		}
		missing := clientv3.Compare(clientv3.CreateRevision(authorityKey), "=", 0)
		puts := []clientv3.Op{clientv3.OpPut(authorityKey, string(value))}
		for _, o := range first {
			o.GetMeta().Uid, o.GetMeta().Created = NewUID(), timestamppb.Now()
			_, key, err := kindOf(o)
			if err != nil {
				return nil, nil, err
			}
			value, err := encode(o)
			if err != nil {
				return nil, nil, err
			}
			puts = append(puts, clientv3.OpPut(key, string(value)))
		}
		if _, err := s.client.Txn(ctx).If(missing).Then(puts...).Commit(); err != nil {
			return nil, nil, fmt.Errorf("keep the authority: %w", err)
		}
	}
}

// SealAuthority replaces the authority's key by the encrypted one, unless another manager has already done so.
func (s *Store) SealAuthority(ctx context.Context, certificate, key, sealed []byte) error {
	was, err := json.Marshal(authorityRecord{certificate, key})
	if err != nil {
		return fmt.Errorf("encode the authority: %w", err)
	}
	value, err := json.Marshal(authorityRecord{certificate, sealed})
	if err != nil {
		return fmt.Errorf("encode the authority: %w", err)
	}
	same := clientv3.Compare(clientv3.Value(authorityKey), "=", string(was))
	if _, err := s.client.Txn(ctx).If(same).Then(clientv3.OpPut(authorityKey, string(value))).Commit(); err != nil {
		return fmt.Errorf("keep the authority's encrypted key: %w", err)
	}
	return nil
}
