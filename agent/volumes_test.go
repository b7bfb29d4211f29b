package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	v1 "watari/api/watariv1"
)

// A host that is cut off, and a host from which the guest has moved away, are readers no more.
func TestAVolumeHasTheReadersThatTheManagerNames(t *testing.T) {
	const uid, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	k := newVolumeKeeper(&Agent{ctx: t.Context(), config: Config{StateDir: t.TempDir(), RunDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)})
	k.held[uid], k.held[other] = &heldVolume{ready: true}, &heldVolume{ready: true}
	orders := func(readers ...*v1.BlobPeer) {
		k.apply(&v1.HostWanted{Volumes: []*v1.VolumeWanted{{Uid: uid, Readers: readers}, {Uid: other}}})
	}
	admitted := func(host, hostUID string) context.Context {
		t.Helper()
		socket, may, err := k.reader(host, hostUID, uid)
		if err != nil || socket == "" || may.Err() != nil {
			t.Fatalf("host %s: %q, %v, %v", host, socket, may, err)
		}
		return may
	}
	a1, a2 := &v1.BlobPeer{Name: "a1", Uid: "uid-of-a1"}, &v1.BlobPeer{Name: "a2", Uid: "uid-of-a2"}
	orders(a1)
	may := admitted("a1", "uid-of-a1")
	for _, who := range []struct{ host, hostUID, uid string }{
		{"a2", "uid-of-a2", uid}, {"a1", "uid-of-an-earlier-a1", uid}, {"a1", "", uid}, {"a1", "uid-of-a1", other}, {"a1", "uid-of-a1", "../../pki"},
	} {
		if socket, _, err := k.reader(who.host, who.hostUID, who.uid); err == nil || !strings.Contains(err.Error(), "may not use volume") {
			t.Errorf("%v: %q, %v", who, socket, err)
		}
	}
	orders(a2, a1)
	if may.Err() != nil {
		t.Error("a host that stays a reader is interrupted")
	}
	orders(a2)
	if may.Err() == nil {
		t.Error("a host that is no reader any more reads on")
	}
	if _, _, err := k.reader("a1", "uid-of-a1", uid); err == nil {
		t.Error("it may begin again")
	}
	may = admitted("a2", "uid-of-a2")
	orders(&v1.BlobPeer{Name: "a2", Uid: "uid-of-a-later-a2"})
	if may.Err() == nil {
		t.Error("a removed host reads on as the later host of its name")
	}
	may = admitted("a2", "uid-of-a-later-a2")
	k.apply(&v1.HostWanted{})
	if may.Err() == nil {
		t.Error("a host reads on though no order names the volume")
	}
}
