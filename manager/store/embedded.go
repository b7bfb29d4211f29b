package store

// embedded.go - the etcd inside the manager: one member, no listeners.

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
)

const (
	// reserveBytes is the free disk space below which the store writes nothing. etcd ends the whole process when a
	// write of its log fails, so the disk must never be full.
	reserveBytes = 96 << 20
	// quotaBytes bounds etcd's database; when it is reached etcd raises its NOSPACE alarm.
	quotaBytes = 1 << 30
	// maxTxnOps bounds the operations of one transaction in the embedded etcd: a cluster of 1,000 guests fits.
	maxTxnOps = 2048
	// outsideTxnOps is the bound of an outside etcd without --max-txn-ops.
	outsideTxnOps = 128
	// maxRequestBytes bounds one request to the embedded etcd.
	maxRequestBytes = 8 << 20
	// outsideRequestBytes is etcd's default for --max-request-bytes. A client cannot ask an etcd for its own.
	outsideRequestBytes = 3 << 19
)

func quietLogger() *zap.Logger { return zap.NewNop() }

func (s *Store) startEmbedded(ctx context.Context) error {
	if s.cfg.Dir == "" {
		return errors.New("store: neither a directory nor etcd endpoints are given")
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("make etcd's directory: %w", err)
	}
	if free, err := FreeBytes(s.cfg.Dir); err == nil && free < reserveBytes {
		return fmt.Errorf("open %s: %w: %d MiB are free, %d MiB are needed", s.cfg.Dir, ErrNoSpace, free>>20, reserveBytes>>20)
	}
	server, err := embed.StartEtcd(embeddedConfig(s.cfg.Dir))
	if err != nil {
		return fmt.Errorf("start the embedded etcd in %s: %w", s.cfg.Dir, err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case <-server.Server.StopNotify():
		return fmt.Errorf("start the embedded etcd in %s: it stopped by itself, see etcd.log there", s.cfg.Dir)
	case <-ctx.Done():
		server.Close()
		return fmt.Errorf("start the embedded etcd in %s: %w", s.cfg.Dir, ctx.Err())
	}
	s.server = server
	s.client = v3client.New(server.Server)
	s.maxOps, s.maxBytes = maxTxnOps, maxRequestBytes
	return nil
}

func embeddedConfig(dir string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "manager"
	cfg.Dir = filepath.Join(dir, "data")
	// There is no listener: a single member has no peers, and the client is in the process. The peer address only names
	// the member.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.Logger = "zap"
	cfg.LogLevel = "warn"
	cfg.LogOutputs = []string{filepath.Join(dir, "etcd.log")}
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = "30m"
	cfg.QuotaBackendBytes = quotaBytes
	cfg.MaxTxnOps = maxTxnOps
	cfg.MaxRequestBytes = maxRequestBytes
	cfg.EnableGRPCGateway = false
	// A small log matters more than rare snapshots of it.
	cfg.SnapshotCount = 5000
	return cfg
}

// FreeBytes returns the free space of dir's file system for an unprivileged writer, bytes.
func FreeBytes(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// roomToWrite refuses a write to a nearly full disk before etcd sees it.
func (s *Store) roomToWrite() error {
	if s.server == nil {
		return nil
	}
	free, err := FreeBytes(s.cfg.Dir)
	if err == nil && free < reserveBytes {
		return fmt.Errorf("%w: %d MiB are free at %s, %d MiB are needed", ErrNoSpace, free>>20, s.cfg.Dir, reserveBytes>>20)
	}
	return nil
}

// Problems returns the store's problems, a sentence each.
func (s *Store) Problems(ctx context.Context) []string {
	var problems []string
	if err := s.roomToWrite(); err != nil {
		problems = append(problems, fmt.Sprintf("nothing can be changed: %v", err))
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return append(problems, fmt.Sprintf("etcd does not answer: %v", err))
	}
	for _, a := range alarms.Alarms {
		problems = append(problems, fmt.Sprintf("etcd raised the alarm %s", a.Alarm))
	}
	return problems
}

// DisarmNoSpace compacts and defragments the database and disarms a NOSPACE alarm. Without an alarm it does nothing
// harmful. The daemon calls it periodically.
func (s *Store) DisarmNoSpace(ctx context.Context) error {
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("list etcd's alarms: %w", err)
	}
	if len(alarms.Alarms) == 0 || s.server == nil || s.roomToWrite() != nil {
		return nil
	}
	if _, err := s.client.Compact(ctx, s.Snapshot().Revision); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact etcd: %w", err)
	}
	if err := s.server.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("defragment etcd: %w", err)
	}
	for _, a := range alarms.Alarms {
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return fmt.Errorf("disarm etcd's alarm %s: %w", a.Alarm, err)
		}
	}
	return nil
}

// isNoSpace reports whether etcd refused a write because space ran out.
func isNoSpace(err error) bool {
	return errors.Is(err, rpctypes.ErrNoSpace) || err != nil && strings.Contains(err.Error(), "database space exceeded")
}

// isTooLarge reports whether etcd, or the connection to it, refused a request because of its size.
func isTooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		err != nil && (strings.Contains(err.Error(), "request is too large") || strings.Contains(err.Error(), "trying to send message larger than max"))
}
