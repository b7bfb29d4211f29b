package controller

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

// answering is a guest, or a host, that gives the same answer to every call.
type answering []byte

func (a answering) Do(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Proto: "HTTP/2.0", ProtoMajor: 2, Request: r,
		Header: http.Header{"Content-Type": {"application/proto"}}, Body: io.NopCloser(bytes.NewReader(a))}, nil
}

func TestAGuestCannotFillTheManagersMemory(t *testing.T) {
	hosts := &fakeHosts{}
	s := &store.Snapshot{Guests: map[string]*v1.Guest{"g": {Meta: &v1.Meta{Name: "g", Uid: "u"}}}}
	for size, want := range map[int]connect.Code{15 << 20: 0, 17 << 20: connect.CodeResourceExhausted} {
		answer, err := proto.Marshal(&v1.ListProcessesResponse{Processes: []*v1.Process{{Message: string(bytes.Repeat([]byte("x"), size))}}})
		if err != nil {
			t.Fatal(err)
		}
		hosts.client = func() (connect.HTTPClient, error) { return answering(answer), nil }
		client, err := GuestProcesses(s, hosts, "g", "u")
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.ListProcesses(t.Context(), connect.NewRequest(&v1.ListProcessesRequest{}))
		if want == 0 && err != nil || want != 0 && connect.CodeOf(err) != want {
			t.Errorf("an answer of %d bytes: %v", size, err)
		}
	}
}

// The message of a run is stored with the run and with an event.
func TestAGuestCannotFillTheStoreWithTheMessageOfARun(t *testing.T) {
	for length, characters := range map[int]int{500: 500, 501: 500, 4 << 20: 500} {
		text := strings.Repeat("\u00fc", length)
		for what, kept := range map[string]string{"refusal": message(connect.NewError(connect.CodeInvalidArgument, errors.New(text))),
			"end": endOf(&v1.Process{Message: text}).Message} {
			if n := utf8.RuneCountInString(kept); n != characters {
				t.Errorf("%s: %d of %d characters are kept", what, n, length)
			}
		}
	}
}

func TestAHostCannotFillTheManagersMemoryWithItsTime(t *testing.T) {
	for size, heard := range map[int]bool{20 << 10: true, 64 << 10: true, 64<<10 + 1: false, 1 << 20: false} {
		answer, err := proto.Marshal(&v1.RenewLeasesResponse{BootId: string(bytes.Repeat([]byte("x"), size-4))})
		if err != nil || len(answer) != size {
			t.Fatal(len(answer), err)
		}
		hosts := &fakeHosts{client: func() (connect.HTTPClient, error) { return answering(answer), nil }}
		l := newLeases(Deps{Sessions: hosts, Log: slog.New(slog.DiscardHandler)})
		l.call(t.Context(), "a1", &v1.RenewLeasesRequest{})
		if l.heard["a1"].response.GetBootId() != "" != heard {
			t.Errorf("an answer of %d bytes: heard %.60v", size, l.heard["a1"].response)
		}
	}
}
