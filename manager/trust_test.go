package manager

import (
	"slices"
	"testing"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

func TestAHostIsInTheTrustGroupOfWhoJoinsItUntilAnAdministratorSaysOtherwise(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.host("a1")
	token, err := r.administrator("ops").CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Site: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.join(token.Msg.Token, "a2"); err != nil {
		t.Fatal(err)
	}
	groupOf := func(host string) string {
		hosts, err := r.admin.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{Name: host}))
		if err != nil {
			t.Fatal(err)
		}
		return hosts.Msg.Hosts[0].TrustGroup
	}
	if groupOf("a1") != "admin" || groupOf("a2") != "ops" {
		t.Errorf("joined into groups %q and %q", groupOf("a1"), groupOf("a2"))
	}
	group := func() string { return groupOf("a1") }
	for _, want := range []string{"physics", ""} {
		if _, err := r.admin.TrustHost(ctx, connect.NewRequest(&v1.TrustHostRequest{Name: "a1", Group: want})); err != nil {
			t.Fatal(err)
		}
		if group() != want {
			t.Errorf("group %q instead of %q", group(), want)
		}
	}
	for _, wrong := range []*v1.TrustHostRequest{{Name: "a3", Group: "physics"}, {Name: "a1", Group: "Not a name"}} {
		if _, err := r.admin.TrustHost(ctx, connect.NewRequest(wrong)); err == nil {
			t.Errorf("done: %v", wrong)
		}
	}
}

func TestTrustedLANsAreNamedToAdministrators(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.host("a1")
	r.host("a2")
	ann, _ := r.user("ann", nil)
	for _, trusted := range []bool{true, false} {
		if _, err := r.admin.SetSite(ctx, connect.NewRequest(&v1.SetSiteRequest{Name: "a", TrustedLan: trusted})); err != nil {
			t.Fatal(err)
		}
		status, err := r.admin.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
		if err != nil || slices.Equal(status.Msg.TrustedLans, []string{"a"}) != trusted {
			t.Errorf("trusted %v: an administrator sees %v, %v", trusted, status, err)
		}
		status, err = ann.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
		if err != nil || len(status.Msg.TrustedLans) > 0 {
			t.Errorf("trusted %v: a user sees %v, %v", trusted, status, err)
		}
	}
	_, err := ann.SetSite(ctx, connect.NewRequest(&v1.SetSiteRequest{Name: "a", TrustedLan: true}))
	wantCode(t, err, connect.CodePermissionDenied, "administrator")
}
