package orders

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "watari/api/watariv1"
	"watari/internal/protocol"
)

// someOrders returns random orders, with the lists ordered by their keys as the core makes them.
func someOrders(rng *rand.Rand, generation uint64) *v1.HostWanted {
	w := &v1.HostWanted{Term: 3, Generation: generation, BootId: "boot", Sharing: rng.IntN(2) == 0, Protocol: protocol.Version, TrustGroup: fmt.Sprint(rng.IntN(2)),
		Stamp: &v1.Stamp{Term: 3, Revision: int64(generation)}, Network: &v1.NetworkWanted{Generation: generation, Mtu: 1400, GuardedLan: rng.IntN(2) == 0}}
	for i := range 6 {
		key, value := fmt.Sprint("k", i), fmt.Sprint(rng.IntN(2))
		if rng.IntN(3) > 0 {
			w.Guests = append(w.Guests, &v1.GuestWanted{Uid: key, Name: value})
			w.Network.Routes = append(w.Network.Routes, &v1.GuestRoute{Address: key, Host: value})
		}
		if rng.IntN(3) > 0 {
			w.Images = append(w.Images, &v1.Image{Digest: key, Source: value})
			w.Network.Peers = append(w.Network.Peers, &v1.PeerHost{Name: key, Site: value})
		}
		if rng.IntN(3) > 0 {
			w.Blobs = append(w.Blobs, &v1.BlobShare{Digest: key, Reason: value})
			w.Templates = append(w.Templates, &v1.TemplateShare{Key: key, Reason: value})
			w.Network.Clusters = append(w.Network.Clusters, &v1.ClusterNetwork{Name: key, Prefix: value})
		}
		if rng.IntN(3) > 0 {
			w.Checkpoints = append(w.Checkpoints, &v1.CheckpointWanted{CheckpointId: key, GuestUid: value})
			w.Volumes = append(w.Volumes, &v1.VolumeWanted{Uid: key, Drop: value})
			w.Revoked = append(w.Revoked, &v1.RevokedHost{Uid: key})
			if rng.IntN(2) > 0 {
				w.AlonePolicy = value
			}
			w.Network.Relayed = append(w.Network.Relayed, &v1.Relayed{})
			w.Network.Probes = append(w.Network.Probes, &v1.Probe{})
			w.Network.Expelled = append(w.Network.Expelled, key)
		}
	}
	return w
}

// A field that someOrders never sets is not tested.
func TestAllFieldsAreTested(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	all := someOrders(rng, 7)
	for range 100 {
		proto.Merge(all, someOrders(rng, 7))
	}
	for _, m := range []protoreflect.Message{all.ProtoReflect(), all.Network.ProtoReflect()} {
		for i := range m.Descriptor().Fields().Len() {
			if f := m.Descriptor().Fields().Get(i); !m.Has(f) && f.Name() != "base_generation" && f.Name() != "dropped" {
				t.Errorf("%s is never set", f.FullName())
			}
		}
	}
}

func TestAChangeMeansTheOrdersItWasMadeFrom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		before, now := someOrders(rng, 7), someOrders(rng, 9)
		wasBefore := proto.CloneOf(before)
		got, err := Apply(before, Change(before, now, protocol.Version))
		if err != nil || !proto.Equal(got, now) {
			t.Fatalf("from %v\nto %v\ngot %v, %v", before, now, got, err)
		}
		if !proto.Equal(before, wasBefore) {
			t.Fatal("the orders before were changed")
		}
	}
}

func TestAChangeHasOnlyWhatHasChanged(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	before := someOrders(rng, 7)
	now := proto.CloneOf(before)
	now.Generation++
	now.Guests[0].Name = "another"
	dropped := now.Guests[1].Uid
	now.Guests = append(now.Guests[:1], now.Guests[2:]...)
	c := Change(before, now, protocol.Version)
	if len(c.Guests) != 1 || c.Guests[0].Name != "another" || len(c.Dropped.Guests) != 1 || c.Dropped.Guests[0] != dropped {
		t.Errorf("guests %v, dropped %v", c.Guests, c.Dropped.Guests)
	}
	if n := len(c.Images) + len(c.Blobs) + len(c.Templates) + len(c.Network.Routes) + len(c.Network.Peers) + len(c.Network.Clusters); n != 0 {
		t.Errorf("%d elements that have not changed: %v", n, c)
	}
}

func TestOrdersAreSentWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	before, now := someOrders(rng, 7), someOrders(rng, 9)
	another := proto.CloneOf(before)
	another.Term--
	for name, c := range map[string]*v1.HostWanted{
		"at first":               Change(nil, now, protocol.Version),
		"to an older agent":      Change(before, now, protocol.Changes-1),
		"in another term":        Change(another, now, protocol.Version),
		"of no later generation": Change(now, now, protocol.Version),
	} {
		if c != now {
			t.Errorf("%s: %v", name, c)
		}
	}
}

func TestAChangeOfOtherOrdersIsRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	before, now := someOrders(rng, 7), someOrders(rng, 9)
	c := Change(before, now, protocol.Version)
	older, another := proto.CloneOf(before), proto.CloneOf(before)
	older.Generation--
	another.Term++
	for name, last := range map[string]*v1.HostWanted{"nothing went before": nil, "an older generation": older, "another term": another} {
		if got, err := Apply(last, c); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestIdentitiesNameTheGuestsOfTheirCluster(t *testing.T) {
	peers := []*v1.Peer{{Name: "md-0", Address: "10.77.0.10"}, {Name: "md-1", Address: "10.77.0.11"}}
	w := &v1.HostWanted{Term: 3, Generation: 7, BootId: "boot", Protocol: protocol.Version, Sharing: true, TrustGroup: "lab",
		Guests: []*v1.GuestWanted{
			{Uid: "a", Cluster: "md", Identity: &v1.Identity{Name: "md-0"}}, {Uid: "b", Cluster: "md"}, {Uid: "c", Cluster: "other", Identity: &v1.Identity{}}},
		Network: &v1.NetworkWanted{Clusters: []*v1.ClusterNetwork{{Name: "md", Peers: peers, HomeServer: "10.77.0.10"}}}}
	before := proto.CloneOf(w)
	full := WithPeers(w)
	if !proto.Equal(w, before) {
		t.Error("the orders were changed")
	}
	if id := full.Guests[0].Identity; id.Name != "md-0" || len(id.Peers) != 2 || id.HomeServer != "10.77.0.10" {
		t.Errorf("identity %v", id)
	}
	full.Guests[0].Identity = w.Guests[0].Identity
	if !proto.Equal(full, w) {
		t.Errorf("more has changed: %v", full)
	}
}

// A guest's orders keep all fields when its identity gets the list of guests.
func TestAllFieldsOfAGuestsOrdersRemain(t *testing.T) {
	g := &v1.GuestWanted{}
	fields := g.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch value := g.ProtoReflect().NewField(field); field.Kind() {
		case protoreflect.StringKind:
			g.ProtoReflect().Set(field, protoreflect.ValueOfString("md"))
		case protoreflect.BoolKind:
			g.ProtoReflect().Set(field, protoreflect.ValueOfBool(true))
		case protoreflect.EnumKind:
			g.ProtoReflect().Set(field, protoreflect.ValueOfEnum(1))
		case protoreflect.Uint64Kind:
			g.ProtoReflect().Set(field, protoreflect.ValueOfUint64(7))
		case protoreflect.MessageKind:
			g.ProtoReflect().Set(field, value)
		default:
			t.Fatalf("field %s: this test knows no %s", field.Name(), field.Kind())
		}
	}
	w := &v1.HostWanted{Term: 3, BootId: "boot", Guests: []*v1.GuestWanted{g}, Network: &v1.NetworkWanted{
		Clusters: []*v1.ClusterNetwork{{Name: "md", Peers: []*v1.Peer{{Name: "md-0"}}, HomeServer: "10.0.0.1"}}}}
	want := proto.CloneOf(w)
	full := WithPeers(w)
	if !proto.Equal(w, want) {
		t.Error("the orders were changed")
	}
	want.Guests[0].Identity = &v1.Identity{Peers: w.Network.Clusters[0].Peers, HomeServer: "10.0.0.1"}
	if !proto.Equal(full, want) {
		t.Errorf("%v\nwant\n%v", full, want)
	}
}
