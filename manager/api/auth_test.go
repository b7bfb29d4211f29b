package api

import (
	"context"
	"slices"
	"strings"
	"testing"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/manager/store"

	"connectrpc.com/connect"
)

func TestALaterUserOfTheSameNameOwnsNoImageOfTheEarlierOne(t *testing.T) {
	earlier, later := caller{kind: ca.KindUser, name: "ann", uid: "u1"}, caller{kind: ca.KindUser, name: "ann", uid: "u2"}
	part := &v1.Blob{Digest: "sha256:" + strings.Repeat("0", 64), Size: 4}
	image, err := newImage(earlier, &v1.Image{Meta: &v1.Meta{Name: "mpi"}, Kernel: part, Initrd: part, Root: part, RootType: "squashfs"})
	if err != nil {
		t.Fatal(err)
	}
	if !earlier.owns(image.Meta) || later.owns(image.Meta) {
		t.Errorf("the earlier user owns it: %v, the later: %v", earlier.owns(image.Meta), later.owns(image.Meta))
	}
	err = replaceable(context.WithValue(t.Context(), callerKey{}, later), &store.Snapshot{}, image)
	if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "an earlier user ann's") {
		t.Error(err)
	}
	if before := (&v1.Meta{Owner: "ann"}); !later.owns(before) {
		t.Error("an object that holds no owner's uid is nobody's")
	}
}

func TestACertificateIsHonouredByItsUID(t *testing.T) {
	snap := &store.Snapshot{
		Users: map[string]*v1.User{"ann": {Meta: &v1.Meta{Name: "ann", Uid: "u1"}}},
		Hosts: map[string]*v1.Host{"a1": {Meta: &v1.Meta{Name: "a1", Uid: "h1"}}},
	}
	why := map[ca.Kind]string{ca.KindUser: "was removed", ca.KindHost: "is not known"}
	for _, id := range []ca.Identity{{Kind: ca.KindUser, Name: "ann", UID: "u1"}, {Kind: ca.KindHost, Name: "a1", UID: "h1"}} {
		if c := who(snap, id); c.kind != id.Kind || c.name != id.Name || c.uid != id.UID {
			t.Errorf("%+v: %+v", id, c)
		}
		for _, uid := range []string{"", "another"} {
			id.UID = uid
			if c := who(snap, id); c.kind != "" || !strings.Contains(c.why, why[id.Kind]) {
				t.Errorf("%+v is honoured: %+v", id, c)
			}
		}
	}
}

// usersMay are the procedures that each user may call, for the user's own objects.
const usersMay = `
	CancelMigration CancelRun ChangeCheckpoint ClusterTraffic CreateCheckpoint CreateCluster CreateConsoleLink CreateImage
	CreateRun CreateVolume DeleteCheckpoint DeleteCluster DeleteVolume Events Explain GetFile GetStatus GuestConsole
	GuestExec ListCheckpoints ListClusters ListGuestConsoles ListGuests ListHosts ListImages ListMigrations ListRuns
	ListSites ListStorage ListUsers ListVolumes Migrate MoveVolume PlanCheckpoints PublishImage PutFile RemoveImage
	RemoveRun ResizeCluster RestoreCheckpoint RunOutput RunProcesses StartGuest StartRun StopGuest Usage VerifyCheckpoint
	Watch WhoAmI
`

// A procedure is either for administrators or in usersMay: a new one is decided about.
func TestOrdinaryUsersMayNotCallWhatIsForAdministrators(t *testing.T) {
	forUsers := strings.Fields(usersMay)
	service := v1.File_watari_v1_control_proto.Services().ByName("ControlService")
	ann := context.WithValue(t.Context(), callerKey{}, caller{kind: ca.KindUser, name: "ann", uid: "u1"})
	for i := range service.Methods().Len() {
		name := string(service.Methods().Get(i).Name())
		procedure := "/" + string(service.FullName()) + "/" + name
		if slices.Contains(forUsers, name) == adminOnly[procedure] {
			t.Errorf("%s: for users %v, for administrators %v", name, slices.Contains(forUsers, name), adminOnly[procedure])
		}
		if !adminOnly[procedure] {
			continue
		}
		if err := new(guard).check(ann, procedure); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("user ann calls %s: %v", name, err)
		}
	}
}
