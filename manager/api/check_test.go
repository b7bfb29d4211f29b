package api

import (
	"errors"
	"fmt"
	"testing"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/core"
)

func TestEveryRefusalHasItsCode(t *testing.T) {
	for kind, want := range map[core.RefusalKind]connect.Code{
		core.Invalid: connect.CodeInvalidArgument, core.NotFound: connect.CodeNotFound, core.Exists: connect.CodeAlreadyExists,
		core.Precondition: connect.CodeFailedPrecondition, core.Exhausted: connect.CodeResourceExhausted, core.Unauthenticated: connect.CodeUnauthenticated, core.Denied: connect.CodePermissionDenied, core.Lost: connect.CodeDataLoss,
	} {
		refusal := &core.Refusal{Kind: kind, Message: "no"}
		for _, err := range []error{withCode(refusal), storeError(refusal), storeError(fmt.Errorf("md: %w", refusal))} {
			var coded *connect.Error
			if !errors.As(err, &coded) || coded.Code() != want || coded.Message() != "no" {
				t.Errorf("kind %d: %v, want code %v", kind, err, want)
			}
		}
	}
	if err := errors.New("another"); withCode(err) != err || withCode(nil) != nil {
		t.Error("an error that is no refusal is changed")
	}
}

func TestAQuotaIsForPeopleToRead(t *testing.T) {
	if got := quotaText(&v1.Quota{Vcpus: 8}); got != "8 vCPUs, any amount of memory" {
		t.Error(got)
	}
}
