package manager

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// The next manager has what hosts have used under the manager before.
func TestUsageOutlivesTheManager(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	r.busy = true
	r.host("a1")
	began := time.Now()
	usage := func(r *running) []*v1.HostSample {
		answer, err := r.admin.Usage(t.Context(), connect.NewRequest(&v1.UsageRequest{Host: "a1", Since: timestamppb.New(began.Add(-time.Minute))}))
		if err != nil {
			t.Fatal(err)
		}
		return answer.Msg.Host
	}
	r.await("the host is measured", func() bool { list := usage(r); return len(list) > 0 && list[0].CpuOwner > 1 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	next := start(t, dir) // the host does not know its address, so it sends no samples
	list := usage(next)
	if len(list) == 0 || list[0].CpuOwner < 1 || list[0].At.AsTime().After(time.Now()) {
		t.Errorf("the next manager has %v", list)
	}
}
