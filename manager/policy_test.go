package manager

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/policy"
)

func TestPolicies(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.host("a1")
	user, _ := r.user("ann", nil)
	list, err := r.admin.ListPolicies(ctx, connect.NewRequest(&v1.ListPoliciesRequest{}))
	if err != nil || len(list.Msg.Policies) != 1 || list.Msg.Policies[0].Text != policy.Default || list.Msg.Policies[0].Meta.Uid == "" {
		t.Errorf("a new installation has the policies %v, %v", list, err)
	}
	for what, call := range map[string]func() error{
		"apply": func() error {
			_, err := user.ApplyPolicy(ctx, connect.NewRequest(&v1.ApplyPolicyRequest{Text: "harvest: {}"}))
			return err
		},
		"list": func() error {
			_, err := user.ListPolicies(ctx, connect.NewRequest(&v1.ListPoliciesRequest{}))
			return err
		},
		"test": func() error {
			_, err := user.TestPolicy(ctx, connect.NewRequest(&v1.TestPolicyRequest{}))
			return err
		},
	} {
		if err := call(); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("an ordinary user may %s policies: %v", what, err)
		}
	}
	_, err = r.admin.ApplyPolicy(ctx, connect.NewRequest(&v1.ApplyPolicyRequest{Text: "harvest: {}\nwrong: 1\n"}))
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "line 2: ") {
		t.Errorf("an error is refused with %v", err)
	}
	applied, err := r.admin.ApplyPolicy(ctx, connect.NewRequest(&v1.ApplyPolicyRequest{Text: "maintenance:\n  windows:\n  - {begin: 2020-01-01 00:00, end: 2099-01-01 00:00}\n"}))
	if err != nil || applied.Msg.Policy.Version != 2 {
		t.Fatalf("applied: %v, %v", applied, err)
	}
	status, err := r.admin.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
	if err != nil || status.Msg.PolicyVersion != 2 {
		t.Errorf("status: %v, %v", status, err)
	}
	r.await("the host is withdrawn", func() bool {
		hosts, err := user.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
		return err == nil && hosts.Msg.Hosts[0].State == v1.HostState_HOST_STATE_WITHDRAWN
	})
	explained, err := user.Explain(ctx, connect.NewRequest(&v1.ExplainRequest{Kind: "host", Name: "a1"}))
	if err != nil || !strings.Contains(strings.Join(explained.Msg.Lines, "\n"), "by maintenance") || explained.Msg.Conditions != nil {
		t.Errorf("explained: %v, %v", explained, err)
	}
	if _, err := user.Explain(ctx, connect.NewRequest(&v1.ExplainRequest{Kind: "host", Name: "nowhere"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a host that does not exist is explained: %v", err)
	}
	if _, err := r.admin.ApplyPolicy(ctx, connect.NewRequest(&v1.ApplyPolicyRequest{Version: 1, ExpectVersion: 2})); err != nil {
		t.Error(err)
	}
	r.await("the host is given back", func() bool {
		hosts, err := user.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
		return err == nil && hosts.Msg.Hosts[0].State == v1.HostState_HOST_STATE_READY
	})
}
