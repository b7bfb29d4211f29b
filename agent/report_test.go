package agent

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/hostlink"
)

func TestAReportLeavesOutImagesIfItIsTooLarge(t *testing.T) {
	for blobs, listed := range map[int]bool{10: true, 20_000: false} {
		o := &v1.HostObserved{Sharing: true, Guests: []*v1.GuestObserved{{Uid: "u"}}}
		for i := range blobs {
			o.Blobs = append(o.Blobs, &v1.BlobObserved{Digest: fmt.Sprintf("sha256:%064d", i), Whole: true})
		}
		fit(o)
		if len(o.Blobs) > 0 != listed || o.Sharing != listed || len(o.Problems) == 0 != listed || len(o.Guests) != 1 || proto.Size(o) > hostlink.MaxReport {
			t.Errorf("%d blobs: %d bytes, %d blobs, problems %s", blobs, proto.Size(o), len(o.Blobs), strings.Join(o.Problems, "; "))
		}
	}
}
