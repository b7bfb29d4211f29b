package controller

// strays.go - ends the programs of removed runs that a restore has brought back.

import (
	"context"
	"errors"
	"maps"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

// endStrays begins to end the strays of each restore that has ended. After a restart of the manager, this is repeated: to end what
// has ended does nothing.
func (c *Controller) endStrays(ctx context.Context, s *store.Snapshot) {
	maps.DeleteFunc(c.strays, func(cluster, restore string) bool { return s.Clusters[cluster].GetRestore().GetId() != restore })
	for name, cluster := range s.Clusters {
		r := cluster.Restore
		if r.GetState() == v1.RestoreState_RESTORE_STATE_DONE && len(r.Strays) > 0 && c.strays[name] == "" {
			c.strays[name] = r.Id
			c.driving.Go(func() { c.forgetStrays(ctx, name, r) })
		}
	}
}

// forgetStrays makes a cluster's head guest end and forget the strays of a restore, until it has answered for each, or the cluster is
// gone or was restored again.
func (c *Controller) forgetStrays(ctx context.Context, cluster string, r *v1.Restore) {
	for _, uid := range r.Strays {
		_, err := backoff.Retry(ctx, func() (struct{}, error) {
			s := c.Store.Snapshot()
			if s.Clusters[cluster].GetRestore().GetId() != r.Id {
				return struct{}{}, backoff.Permanent(errors.New("the cluster is gone, or was restored again"))
			}
			ctx, cancel := context.WithTimeout(ctx, forgetWithin)
			defer cancel()
			head, headUID := core.RunHead(s, &v1.Run{Spec: &v1.RunSpec{Cluster: cluster}})
			client, err := GuestProcesses(s, c.Sessions, head, headUID)
			if err == nil {
				_, err = client.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: uid}))
			}
			return struct{}{}, err
		}, backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, _ time.Duration) {
			c.Log.Debug("the program of a removed run is not ended yet", "cluster", cluster, "run", uid, "error", err)
		}))
		if err != nil {
			return
		}
		c.Log.Info("ended the program of a removed run, which a restore had brought back", "cluster", cluster, "run", uid)
	}
}
