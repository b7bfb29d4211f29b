package api

import (
	"fmt"
	"slices"
	"testing"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/manager/store"
)

func TestHostsThatTheStateDoesNotKnowAreRemembered(t *testing.T) {
	snap := &store.Snapshot{
		Hosts: map[string]*v1.Host{"a1": {Meta: &v1.Meta{Name: "a1", Uid: "a1-uid"}}, "b1": {Meta: &v1.Meta{Name: "b1", Uid: "b1-uid"}}},
	}
	snap.Removed = map[string]*v1.RemovedHost{"c1-uid": {Meta: &v1.Meta{Name: "c1-uid"}, Host: "c1"}}
	var u unknownHosts
	host := func(name, uid string) ca.Identity { return ca.Identity{Kind: ca.KindHost, Name: name, UID: uid} }
	for _, id := range []ca.Identity{host("k9", "k9-uid"), host("k9", "k9-uid"), host("k9", "earlier"), host("c1", "c1-uid"), host("b1", "b1-uid"), host("a1", "later"), host("d1", "d1-uid")} {
		u.refused(snap, id)
	}
	if got := u.list(snap); !slices.Equal(got, []string{"a1", "d1", "k9"}) {
		t.Error(got)
	}
	u.accepted(host("k9", "new"))
	snap.Removed["d1-uid"] = &v1.RemovedHost{}
	if got := u.list(snap); !slices.Equal(got, []string{"a1"}) {
		t.Error(got)
	}
	for i := range maxUnknownHosts + 10 {
		u.refused(snap, host(fmt.Sprint(i), fmt.Sprint("uid-", i)))
	}
	if len(u.names) != maxUnknownHosts {
		t.Error(len(u.names))
	}
}
