package manager

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

func TestRunsAreKeptUpToANumber(t *testing.T) {
	snap := &store.Snapshot{Clusters: map[string]*v1.Cluster{"md": {Meta: &v1.Meta{Name: "md", Uid: "md-uid"}}}, Runs: map[string]*v1.Run{}}
	add := func(cluster, owner string, n int, state v1.RunState) {
		cluster, uid, _ := strings.Cut(cluster, "/")
		for i := range n {
			name := fmt.Sprintf("%s-%s-%s-%d", cluster, uid, state, i)
			snap.Runs[name] = &v1.Run{Meta: &v1.Meta{Name: name, Owner: owner, OwnerUid: owner, Created: timestamppb.New(time.Unix(int64(i), 0))},
				Spec: &v1.RunSpec{Cluster: cluster}, ClusterUid: uid, State: state}
		}
	}
	add("md/md-uid", "ann", keepRuns+1, v1.RunState_RUN_STATE_EXITED)
	add("md/earlier", "eve", keepRuns, v1.RunState_RUN_STATE_EXITED) // of an earlier cluster with this name, of another user
	add("md/md-uid", "ann", keepRuns, v1.RunState_RUN_STATE_RUNNING)
	add("gone1", "bob", keepRuns/2, v1.RunState_RUN_STATE_FAILED)
	add("gone2", "bob", keepRuns/2+1, v1.RunState_RUN_STATE_EXITED)
	add("gone3", "ann", keepRuns, v1.RunState_RUN_STATE_EXITED)
	var old []string
	for _, r := range oldRuns(snap) {
		old = append(old, r.Meta.Owner+" "+fmt.Sprint(r.Meta.Created.Seconds))
	}
	if slices.Sort(old); !slices.Equal(old, []string{"ann 0", "bob 0"}) {
		t.Errorf("old: %v", old)
	}
}
