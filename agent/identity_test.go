package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// wordy is a guest whose agent answers with a text of some size, and with fields that the host does not know.
type wordy struct {
	watariv1connect.UnimplementedGuestServiceHandler
	size int
}

func (w wordy) Describe(context.Context, *connect.Request[v1.DescribeRequest]) (*connect.Response[v1.DescribeResponse], error) {
	killed := &v1.OutOfMemory{Kills: 3, Process: strings.Repeat("x", w.size), Pid: 123, Bytes: 1 << 30, At: &timestamppb.Timestamp{Seconds: 5, Nanos: 7}}
	answer := &v1.DescribeResponse{OutOfMemory: killed}
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 1<<20))
	for _, m := range []proto.Message{answer, killed, killed.At} {
		m.ProtoReflect().SetUnknown(unknown)
	}
	return connect.NewResponse(answer), nil
}

func (w wordy) RoundTrip(r *http.Request) (*http.Response, error) {
	_, handler := watariv1connect.NewGuestServiceHandler(w)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, r)
	return answer.Result(), nil
}

func (wordy) Close() error { return nil }

// A guest's answers are kept and reported in part.
func TestAGuestsAnswerHasShortTexts(t *testing.T) {
	for length, taken := range map[int]bool{256: true, 257: false} {
		text := strings.Repeat("x", length)
		for what, answer := range map[string]*v1.DescribeResponse{"boot id": {BootId: text}, "hash": {PeersHash: text}} {
			if err := checkAnswer(answer); (err == nil) != taken {
				t.Errorf("a %s of %d bytes: %v", what, length, err)
			}
		}
	}
}

// A report that is too large would end the host's session with the manager, and with it the leases of other users' guests.
func TestAGuestCannotFillTheMemoryOfItsHostsAgentOrTheHostsReport(t *testing.T) {
	for size, large := range map[int]bool{1 << 20: false, 12 << 20: false, 17 << 20: true} {
		a := &Agent{changed: make(chan struct{}), config: Config{Dial: func(string, string) GuestChannel { return wordy{size: size} }}}
		k := newIdentityKeeper(&guest{agent: a})
		answer, err := k.client.Describe(t.Context(), connect.NewRequest(&v1.DescribeRequest{}))
		if large != (connect.CodeOf(err) == connect.CodeResourceExhausted) {
			t.Errorf("an answer of %d bytes: %v", size, err)
		}
		if err != nil {
			continue
		}
		if n := proto.Size(answer.Msg); n < 4<<20 {
			t.Fatalf("the answer has only %d bytes", n)
		}
		k.noteMemory(answer.Msg.OutOfMemory)
		kept := k.outOfMemory()
		if n := proto.Size(kept); n > 128 {
			t.Errorf("the report has %d bytes of an answer of %d", n, size)
		}
		if kept.Kills != 3 || kept.Pid != 123 || kept.Bytes != 1<<30 || kept.At.Seconds != 5 || kept.At.Nanos != 7 || !strings.HasPrefix(kept.Process, "xxx") {
			t.Errorf("the report says %v", kept)
		}
	}
}
