package core

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// sameNetwork, sameRest and sameGuest compare each field by itself, so a new field must be added there.
func TestAllFieldsOfOrdersAreCompared(t *testing.T) {
	for _, c := range []struct {
		message proto.Message
		fields  []string
	}{
		{&v1.HostWanted{}, []string{"term", "generation", "guests", "network", "images", "sharing", "blobs", "templates", "trust_group", "boot_id",
			"protocol", "stamp", "checkpoints", "volumes", "revoked", "alone_policy", "base_generation", "dropped"}}, // the last two are only in changes
		{&v1.NetworkWanted{}, []string{"generation", "routes", "peers", "clusters", "mtu", "relayed", "probes", "expelled", "guarded_lan"}},
		{&v1.ClusterNetwork{}, []string{"name", "prefix", "peers", "home_server"}},
		{&v1.GuestWanted{}, []string{"uid", "name", "cluster", "role", "epoch", "shape", "image", "no_fork", "identity", "migration", "platform", "facts",
			"limits", "restore", "lease_ms", "volume"}},
		{&v1.GuestRoute{}, []string{"address", "host"}}, // clusterNetwork.reuse
		{&v1.Peer{}, []string{"name", "address", "slots"}},
	} {
		var fields []string
		all := c.message.ProtoReflect().Descriptor().Fields()
		for i := range all.Len() {
			fields = append(fields, string(all.Get(i).Name()))
		}
		slices.Sort(fields)
		slices.Sort(c.fields)
		if !slices.Equal(fields, c.fields) {
			t.Errorf("%T has the fields %q; compared are %q", c.message, fields, c.fields)
		}
	}
}
