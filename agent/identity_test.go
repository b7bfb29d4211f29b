package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// wordy is a guest whose agent answers with a text of some size.
type wordy struct {
	watariv1connect.UnimplementedGuestServiceHandler
	size int
}

func (w wordy) Describe(context.Context, *connect.Request[v1.DescribeRequest]) (*connect.Response[v1.DescribeResponse], error) {
	return connect.NewResponse(&v1.DescribeResponse{OutOfMemory: &v1.OutOfMemory{Process: strings.Repeat("x", w.size)}}), nil
}

func (w wordy) RoundTrip(r *http.Request) (*http.Response, error) {
	_, handler := watariv1connect.NewGuestServiceHandler(w)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, r)
	return answer.Result(), nil
}

func (wordy) Close() error { return nil }

// A report that is too large would end the host's session with the manager, and with it the leases of other users' guests.
func TestAGuestCannotFillTheMemoryOfItsHostsAgentOrTheHostsReport(t *testing.T) {
	for size, large := range map[int]bool{1 << 20: false, 64 << 20: true} {
		a := &Agent{changed: make(chan struct{}), config: Config{Dial: func(string, string) GuestChannel { return wordy{size: size} }}}
		k := newIdentityKeeper(&guest{agent: a})
		answer, err := k.client.Describe(t.Context(), connect.NewRequest(&v1.DescribeRequest{}))
		if large != (connect.CodeOf(err) == connect.CodeResourceExhausted) {
			t.Errorf("an answer of %d bytes: %v", size, err)
		}
		if err != nil {
			continue
		}
		k.noteMemory(answer.Msg.OutOfMemory)
		if n := proto.Size(k.outOfMemory()); n > 2*maxProcessName {
			t.Errorf("the report has %d bytes of an answer of %d", n, size)
		}
	}
}
