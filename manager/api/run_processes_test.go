package api

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

func TestGuestsThatDoNotListTheirProcessesAreNamed(t *testing.T) {
	var guests []*v1.Guest
	for _, name := range []string{"md-0", "md-1", "md-2", "md-3"} {
		guests = append(guests, &v1.Guest{Meta: &v1.Meta{Name: name}, Host: "a1"})
	}
	lists := askForProcesses(t.Context(), guests, 100*time.Millisecond, func(ctx context.Context, g *v1.Guest, most int) (*v1.ListRunProcessesResponse, error) {
		switch g.Meta.Name {
		case "md-0":
			return &v1.ListRunProcessesResponse{Processes: []*v1.RunProcess{{Pid: 7, Name: "lmp"}}, Omitted: 2}, nil
		case "md-1":
			<-ctx.Done()
			return nil, ctx.Err()
		case "md-2":
			return nil, connect.NewError(connect.CodeUnimplemented, errors.New("404 Not Found"))
		}
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("no\x1b[2J"+strings.Repeat("x", 1<<20)))
	})
	if len(lists) != len(guests) {
		t.Fatal(lists)
	}
	if l := lists[0]; l.Guest != "md-0" || l.Host != "a1" || l.Error != "" || l.Omitted != 2 || len(l.Processes) != 1 || l.Processes[0].Name != "lmp" {
		t.Errorf("a guest that answers: %v", l)
	}
	for i, want := range map[int]string{1: "does not answer within 100ms", 2: "earlier version", 3: `no\x1b[2J`} {
		if l := lists[i]; l.Guest != guests[i].Meta.Name || !strings.Contains(l.Error, want) || len(l.Error) > 2*maxListError || len(l.Processes) != 0 {
			t.Errorf("want %q: %.300v", want, l)
		}
	}
}

func TestAGuestCannotFillTheManagersMemoryWithProcesses(t *testing.T) {
	list := &v1.ListRunProcessesResponse{Omitted: 5}
	for range 3 * maxGuestProcesses {
		list.Processes = append(list.Processes, &v1.RunProcess{Name: strings.Repeat("\x1b", 1<<10), State: "long", Cpu: math.Inf(1), Rank: proto.Uint32(3)})
	}
	list.Processes[0].ProtoReflect().SetUnknown([]byte{0x7a, 3, 'x', 'x', 'x'})
	kept, omitted := bounded(list, maxGuestProcesses)
	if len(kept) != maxGuestProcesses || omitted != 5+2*maxGuestProcesses {
		t.Errorf("%d processes, %d omitted", len(kept), omitted)
	}
	if size := proto.Size(&v1.ListRunProcessesResponse{Processes: kept}); size > maxList || kept[0].Cpu != 0 || kept[0].GetRank() != 3 || strings.Contains(kept[0].Name, "\x1b") {
		t.Errorf("%d bytes; the first is %v", size, kept[0])
	}
	asked := 0
	askForProcesses(t.Context(), make([]*v1.Guest, 0), time.Second, nil)
	many := make([]*v1.Guest, 100)
	for i := range many {
		many[i] = &v1.Guest{Meta: &v1.Meta{Name: "g"}}
	}
	for _, l := range askForProcesses(t.Context(), many, time.Minute, func(context.Context, *v1.Guest, int) (*v1.ListRunProcessesResponse, error) { return list, nil }) {
		asked += len(l.Processes)
	}
	if asked > maxRunProcesses {
		t.Errorf("%d processes are passed on", asked)
	}
}

// The page on threats gives these numbers.
func TestAThousandProcessesOfAGuestAndTwentyThousandOfAllAreListed(t *testing.T) {
	list := &v1.ListRunProcessesResponse{Processes: []*v1.RunProcess{{Name: strings.Repeat("x", 100)}}}
	for range 1500 {
		list.Processes = append(list.Processes, &v1.RunProcess{})
	}
	for guests, each := range map[int]int{1: 1000, 20: 1000, 40: 500, 100: 200} {
		many := make([]*v1.Guest, guests)
		for i := range many {
			many[i] = &v1.Guest{Meta: &v1.Meta{Name: "g"}}
		}
		for _, l := range askForProcesses(t.Context(), many, time.Minute, func(context.Context, *v1.Guest, int) (*v1.ListRunProcessesResponse, error) {
			return proto.CloneOf(list), nil
		}) {
			if len(l.Processes) != each || int(l.Omitted) != 1501-each || utf8.RuneCountInString(l.Processes[0].Name) != 32 {
				t.Errorf("of each of %d guests, %d processes are listed and %d omitted; the first is %q", guests, len(l.Processes), l.Omitted, l.Processes[0].Name)
				break
			}
		}
	}
}
