package root_test

// policy_test.go - policies: what the command reads, sends, and prints if there is none.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/stub"
	"watari/cmd/watari/root"
)

const policyText = `owners:
  - busy:
      - when: host.input_idle < duration("10s")
    idle:
      when: host.input_idle > duration("5m")
      for: 3m

harvest: {}
`

var policies = []*v1.Policy{
	{Meta: meta("v4"), Version: 4, Text: policyText, Note: "owners are back sooner"},
	{Meta: &v1.Meta{Name: "v3", Owner: "admin", Created: ago(50 * time.Hour)}, Version: 3, Text: "# the default\n"},
}

func listPolicies(r *v1.ListPoliciesRequest) *v1.ListPoliciesResponse {
	if r.UseDefault {
		return &v1.ListPoliciesResponse{Policies: []*v1.Policy{{Text: "# the default\n"}}}
	}
	return &v1.ListPoliciesResponse{Policies: slices.DeleteFunc(slices.Clone(policies), func(p *v1.Policy) bool {
		return r.Version != 0 && p.Version != r.Version
	})}
}

// refused refuses a text with the manager's error.
func refused(text string) error {
	if strings.Contains(text, "host.keyboard") {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("line 3: host has no field keyboard; see docs/guide/policies.md"))
	}
	return nil
}

func applyPolicy(r *v1.ApplyPolicyRequest) (*v1.ApplyPolicyResponse, error) {
	if err := refused(r.Text); err != nil {
		return nil, err
	}
	if r.Text == policyText || r.Version == 4 {
		return &v1.ApplyPolicyResponse{Policy: policies[0], Unchanged: true}, nil
	}
	if r.Version > 4 {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("policy version %d is not kept", r.Version))
	}
	return &v1.ApplyPolicyResponse{Policy: &v1.Policy{Meta: meta("v5"), Version: 5, Text: r.Text, Note: r.Note}}, nil
}

func testPolicy(r *v1.TestPolicyRequest) (*v1.TestPolicyResponse, error) {
	if err := refused(r.Text); err != nil {
		return nil, err
	}
	return &v1.TestPolicyResponse{Notes: []string{"before 2026-02-27 12:00:00 nothing is kept of host b1"}, Steps: []*v1.PolicyStep{
		{At: ago(3 * time.Hour), Policy: "harvest", Host: "b1", Message: "host b1 is withdrawn: the owner is back"},
		{At: ago(3 * time.Hour), Policy: "harvest", Host: "b1", Guest: "md-1", Target: "a1", Message: "guest md-1 moves from b1 to a1: the owner of b1 is back\x1b[2J"},
		{At: ago(2 * time.Hour), Policy: "harvest", Host: "b1", Guest: "lu-0"},
		{At: ago(2 * time.Hour), Policy: "maintenance", Host: "b1", Guest: "lu-1", Target: "a1"},
		{At: ago(time.Hour), Policy: "harvest", Host: "b1", Message: "host b1 takes guests again"}}}, nil
}

func explain(r *v1.ExplainRequest) (*v1.ExplainResponse, error) {
	if r.Name == "a9" {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no %s a9", r.Kind))
	}
	if r.Kind == "guest" {
		return &v1.ExplainResponse{Lines: []string{"guest md-0 runs on a1", "no policy keeps guests from a1"}}, nil
	}
	return &v1.ExplainResponse{Lines: []string{"host b1 is withdrawn by harvest: its owner\x1b[2J is back"}, Conditions: []*v1.PolicyCondition{
		{Expression: `host.input_idle < duration("10s")`, Busy: true, Holds: true, Since: ago(125 * time.Second)},
		{Expression: "host.owner_cpu\n  > 0.5", Busy: true, Holds: true, Since: ago(12 * time.Second), Wait: durationpb.New(time.Minute)},
		{Expression: `host.terminal_idle < duration("10s")`, Busy: true, Error: "the host has not\nmeasured terminal_idle"},
		{Expression: "host.owner_cpu < 0.25", Holds: true},
		{Expression: `host.input_idle > duration("5m")`, Wait: durationpb.New(3 * time.Minute)}}}, nil
}

// notes is a manager that records requests.
func notes(asked *[]any) *stub.Manager {
	return &stub.Manager{Unary: func(ctx context.Context, request any) (any, error) {
		*asked = append(*asked, request)
		return answers(ctx, request)
	}}
}

func TestPoliciesAreSentAsTheyAreWritten(t *testing.T) {
	var asked []any
	manager := notes(&asked).Start(t)
	written := "# b\u00fcro\r\nharvest: {}\t\n\n"
	if result := manager.BeginWithInput(t, written, "policy", "apply", "-", "--note", "b").Wait(t); result.Status != 0 || result.Out != "" {
		t.Errorf("%+v", result)
	}
	if got := asked[0].(*v1.ApplyPolicyRequest); got.Text != written || got.Note != "b" || got.UseDefault || got.Version != 0 {
		t.Errorf("asked for %v", got)
	}
	shown := manager.Run(t, "policy", "show").Out
	if result := manager.BeginWithInput(t, shown, "policy", "apply", "-").Wait(t); !strings.Contains(result.Err, "version 4 is in force already") {
		t.Errorf("what is shown is not what is in force: %+v", result)
	}
}

func TestCtrlCEndsTheWaitForStandardInput(t *testing.T) {
	manager := (&stub.Manager{Unary: answers}).Start(t)
	path := save(t, manager.Config())
	in, out := io.Pipe()
	defer out.Close()
	signals := make(chan os.Signal, 1)
	signals <- os.Interrupt
	env := &cli.Env{In: in, Out: io.Discard, Err: io.Discard, Signals: signals, Now: time.Now}
	if status := root.Main(context.Background(), env, []string{"--config", path, "policy", "apply", "-"}); status != cli.StatusInterrupted {
		t.Errorf("status %d", status)
	}
}

func TestFilesThatAreNoPoliciesAreNotSent(t *testing.T) {
	var asked []any
	manager := notes(&asked).Start(t)
	folder := t.TempDir()
	large := filepath.Join(folder, "large.yaml")
	if err := os.WriteFile(large, []byte(strings.Repeat("# long\n", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, said := range map[string]string{
		filepath.Join(folder, "none"): "there is no such file", folder: "is a directory", large: "more than 64 KiB",
		"testdata/files/empty.yaml": "is empty", "testdata/files/binary.yaml": "is not a text: byte 9 is 0x00",
	} {
		for _, verb := range []string{"apply", "diff", "test"} {
			if result := manager.Run(t, "policy", verb, path); result.Status == 0 || !strings.Contains(result.Err, path) || !strings.Contains(result.Err, said) {
				t.Errorf("%s: %+v", verb, result)
			}
		}
	}
	if len(asked) != 0 {
		t.Errorf("asked for %v", asked)
	}
}

func TestARollbackExpectsTheVersionThatIsInForce(t *testing.T) {
	var asked []any
	manager := notes(&asked).Start(t)
	for command, version := range map[string]uint64{"policy rollback": 3, "policy rollback 3": 3, "policy rollback 4": 4} {
		asked = nil
		manager.Run(t, strings.Fields(command)...)
		if got := asked[1].(*v1.ApplyPolicyRequest); got.Version != version || got.ExpectVersion != 4 || got.Text != "" {
			t.Errorf("%s asks for %v", command, got)
		}
	}
}

func TestPoliciesAreTestedWithinAWindow(t *testing.T) {
	var asked []any
	manager := notes(&asked).Start(t)
	for command, want := range map[string][2]time.Time{
		"policy test":               {stub.Now.Add(-24 * time.Hour)},
		"policy test --since 2d12h": {stub.Now.Add(-60 * time.Hour)},
		"policy test --at 09:00":    {stub.Now.Add(-190 * time.Minute), stub.Now.Add(-179 * time.Minute)},
	} {
		asked = nil
		manager.Run(t, strings.Fields(command)...)
		got := asked[0].(*v1.TestPolicyRequest)
		if !got.Since.AsTime().Equal(want[0]) || (got.Until == nil) != want[1].IsZero() || got.Until != nil && !got.Until.AsTime().Equal(want[1]) {
			t.Errorf("%s asks for %v", command, got)
		}
	}
	var response struct{ Steps []struct{ Guest string } }
	result := manager.Run(t, "policy", "test", "--at", "09:00", "-o", "json")
	if err := json.Unmarshal([]byte(result.Out), &response); err != nil || len(response.Steps) != 2 || result.Err != "" {
		t.Errorf("%v, %+v", err, result)
	}
}

func TestASlowReplaySaysThatItIsUnderWay(t *testing.T) {
	answer := make(chan struct{})
	manager := (&stub.Manager{Unary: func(ctx context.Context, request any) (any, error) {
		<-answer
		return answers(ctx, request)
	}}).Start(t)
	command := manager.Begin(t, "policy", "test")
	command.AwaitText(t, "replaying what hosts have measured since 2026-02-28 12:00:00 ...\n")
	close(answer)
	if result := command.Wait(t); result.Status != 0 || !strings.Contains(result.Out, "2 moves") {
		t.Errorf("%+v", result)
	}
}

func TestWithoutAPolicyTheNextStepIsSaid(t *testing.T) {
	manager := (&stub.Manager{Unary: func(ctx context.Context, request any) (any, error) {
		switch request.(type) {
		case *v1.ListPoliciesRequest:
			return &v1.ListPoliciesResponse{}, nil
		case *v1.GetStatusRequest:
			return &v1.GetStatusResponse{}, nil
		}
		return answers(ctx, request)
	}}).Start(t)
	const none = "no policy is in force: guests move only if somebody asks; `watari policy apply --default` puts the default policy in force\n"
	for _, verb := range []string{"show", "history"} {
		if result := manager.Run(t, "policy", verb); result.Status != 0 || result.Out != "" || result.Err != none {
			t.Errorf("%s: %+v", verb, result)
		}
	}
	if result := manager.Run(t, "policy", "history", "-o", "json"); strings.TrimSpace(result.Out) != "[]" || result.Err != "" {
		t.Errorf("%+v", result)
	}
	for _, words := range []string{"policy diff testdata/files/policy.yaml", "policy rollback"} {
		if result := manager.Run(t, strings.Fields(words)...); result.Status != 1 || !strings.Contains(result.Err, "no policy is in force") || !strings.Contains(result.Err, "`watari policy apply`") {
			t.Errorf("%s: %+v", words, result)
		}
	}
	if result := manager.Run(t, "status"); !strings.Contains(result.Out, "policy:     none; guests move only if somebody asks\n") {
		t.Errorf("%+v", result)
	}
}

func TestAWithdrawnHostIsMarked(t *testing.T) {
	manager := (&stub.Manager{Unary: func(ctx context.Context, request any) (any, error) {
		if _, ok := request.(*v1.ListHostsRequest); ok {
			return &v1.ListHostsResponse{Hosts: []*v1.Host{{Meta: meta("b1"), State: v1.HostState_HOST_STATE_WITHDRAWN, Withdrawn: hosts[1].Withdrawn}}}, nil
		}
		return answers(ctx, request)
	}}).Start(t)
	for words, want := range map[string]string{
		"host list":    "withdrawn",
		"host show b1": "withdrawn: harvest since 11:55:00: the owner is back:",
		"top --once":   "withdrawn by harvest for 5m0s, maintenance for 14h0m",
	} {
		if result := manager.Run(t, strings.Fields(words)...); !strings.Contains(strings.Join(strings.Fields(result.Out), " "), want) {
			t.Errorf("%s: %+v", words, result)
		}
	}
}
