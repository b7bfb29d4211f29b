package manager

// tidy.go - the leader's periodic cleaning.

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"watari/ca"
	"watari/core"
	"watari/manager/api"
	"watari/manager/store"

	v1 "watari/api/watariv1"

	"google.golang.org/protobuf/proto"
)

const (
	tidyPace = 2 * time.Second
	// collectPace is how often the leader cleans the disk and checks etcd's alarms.
	collectPace = 5 * time.Minute
	// garbageAge is the least age of a blob, upload or output that is removed.
	garbageAge = time.Hour
	// keepRuns is the number of ended runs that are kept for a cluster, or for all deleted clusters of a user together.
	keepRuns = 100
)

// tidy cleans periodically until ctx ends. After a failure it tries again the next time.
func (m *Manager) tidy(ctx context.Context) {
	ticker := time.NewTicker(tidyPace)
	defer ticker.Stop()
	m.maintain(ctx)
	// Wait before the first removal. If the state was rolled back, content may belong to lost objects, and hosts need
	// time to show their stamps.
	collected := time.Now()
	for {
		held := m.store.Snapshot().Held()
		if !held {
			m.tidyObjects(ctx)
		}
		if time.Since(collected) > collectPace {
			collected = time.Now()
			m.maintain(ctx)
			if !held {
				m.tidyDisk(ctx)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// tidyObjects deletes hosts that are being removed, expired tokens, the oldest runs, and the records of removed hosts
// whose certificates have expired.
func (m *Manager) tidyObjects(ctx context.Context) {
	snap := m.store.Snapshot()
	for name, h := range snap.Hosts {
		if h.Meta.Deleting != nil {
			m.complain(ctx, "forget host "+name, m.api.ForgetHost(ctx, name))
		}
	}
	var what []string
	var forget []store.Change
	add := func(object string, op store.Op) {
		what, forget = append(what, object), append(forget, store.Change{op})
	}
	for name, t := range snap.Tokens {
		if time.Since(t.Expires.AsTime()) > garbageAge {
			add("token "+name, store.Delete(proto.CloneOf(t)))
		}
	}
	for uid, r := range snap.Removed {
		if time.Since(r.Meta.Created.AsTime()) > ca.CertificateLife {
			add("removed host "+uid, store.Delete(proto.CloneOf(r)))
		}
	}
	old := oldRuns(snap)
	for _, r := range old {
		add("run "+r.Meta.Name, store.Delete(proto.CloneOf(r)))
	}
	errs := m.store.Batch(ctx, forget)
	for i, err := range errs {
		m.complain(ctx, "forget "+what[i], err)
	}
	for i, r := range old { // they are the last
		if errs[len(errs)-len(old)+i] == nil {
			m.complain(ctx, "remove a run's output", os.RemoveAll(filepath.Join(m.runsDir(), r.Meta.Uid)))
		}
	}
}

// oldRuns returns the ended runs that exceed keepRuns.
func oldRuns(snap *store.Snapshot) (old []*v1.Run) {
	type kept struct{ cluster, owner string } // uids
	ended := map[kept][]*v1.Run{}
	for _, r := range snap.Runs {
		of := kept{owner: r.Meta.OwnerUid}
		if c := snap.Clusters[r.Spec.GetCluster()]; c != nil && core.IsRunOf(r, c) { // not of an earlier cluster with this name
			of = kept{cluster: c.Meta.Uid}
		}
		if core.RunEnded(r.State) {
			ended[of] = append(ended[of], r)
		}
	}
	for _, runs := range ended {
		slices.SortFunc(runs, func(a, b *v1.Run) int {
			return cmp.Compare(b.Meta.Created.AsTime().UnixNano(), a.Meta.Created.AsTime().UnixNano())
		})
		if len(runs) > keepRuns {
			old = append(old, runs[keepRuns:]...)
		}
	}
	return old
}

// maintain renews the administrator's client config, and disarms etcd's alarm.
func (m *Manager) maintain(ctx context.Context) {
	m.complain(ctx, "renew the administrator's client config", m.ensureAdmin(ctx))
	m.complain(ctx, "take back etcd's alarm", m.store.DisarmNoSpace(ctx))
}

// tidyDisk removes blobs and outputs to which no object refers.
func (m *Manager) tidyDisk(ctx context.Context) {
	before := time.Now().Add(-garbageAge)
	freed, err := m.blobs.Collect(before, func() map[string]bool { return api.BlobsInUse(m.store.Snapshot()) })
	m.complain(ctx, "remove unused blobs", err)
	if freed > 0 {
		m.Log.Info("unused blobs were removed", "bytes", freed)
	}
	kept := map[string]bool{}
	for _, r := range m.store.Snapshot().Runs {
		kept[r.Meta.Uid] = true
	}
	entries, err := os.ReadDir(m.runsDir())
	m.complain(ctx, "list runs' outputs", err)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !kept[e.Name()] && info.ModTime().Before(before) {
			m.complain(ctx, "remove a run's output", os.RemoveAll(filepath.Join(m.runsDir(), e.Name())))
		}
	}
}

func (m *Manager) complain(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		m.Log.Warn("could not "+what, "error", err)
	}
}
