package manager

import (
	"testing"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

func TestAHostIsInTheTrustGroupOfWhoJoinsItUntilAnAdministratorSaysOtherwise(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.host("a1")
	group := func() string {
		hosts, err := r.admin.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{Name: "a1"}))
		if err != nil {
			t.Fatal(err)
		}
		return hosts.Msg.Hosts[0].TrustGroup
	}
	if group() != "admin" {
		t.Errorf("joined into group %q", group())
	}
	for _, want := range []string{"physics", ""} {
		if _, err := r.admin.TrustHost(ctx, connect.NewRequest(&v1.TrustHostRequest{Name: "a1", Group: want})); err != nil {
			t.Fatal(err)
		}
		if group() != want {
			t.Errorf("group %q instead of %q", group(), want)
		}
	}
	for _, wrong := range []*v1.TrustHostRequest{{Name: "a2", Group: "physics"}, {Name: "a1", Group: "Not a name"}} {
		if _, err := r.admin.TrustHost(ctx, connect.NewRequest(wrong)); err == nil {
			t.Errorf("done: %v", wrong)
		}
	}
}
