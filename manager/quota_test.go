package manager

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// put uploads the beginning of a blob with the declared size.
func (r *running) put(client *http.Client, content, size string) (int, string) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodPut, r.url+"/blobs/sha256:"+hexOf(content), strings.NewReader(content))
	if err != nil {
		r.t.Fatal(err)
	}
	q.Header.Set("Watari-Size", size)
	resp, err := client.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func TestAUserDoesNotFillTheManagersDiskWithImages(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	ann, annHTTP := r.user("ann", &v1.Quota{ImageBytes: 1000})
	if status, text := r.put(annHTTP, "one", "900"); status != http.StatusAccepted {
		t.Fatal(status, text)
	}
	status, text := r.put(annHTTP, "two", "200")
	if status != http.StatusInsufficientStorage || !strings.Contains(text, "the quota of user ann is 1000 B of images, and they would have 1.1 KiB") {
		t.Errorf("%d, %s", status, text)
	}
	if status, text := r.put(annHTTP, "two", "100"); status != http.StatusAccepted {
		t.Errorf("exactly what is left: %d, %s", status, text)
	}
	if _, err := r.admin.SetQuota(ctx, connect.NewRequest(&v1.SetQuotaRequest{Name: "ann", Quota: &v1.Quota{ImageBytes: 10}})); err != nil {
		t.Fatal(err)
	}
	// Parts that other users have uploaded also count.
	list, err := r.admin.ListImages(ctx, connect.NewRequest(&v1.ListImagesRequest{Name: "mpi"}))
	if err != nil {
		t.Fatal(err)
	}
	mine := proto.CloneOf(list.Msg.Images[0])
	mine.Meta = &v1.Meta{Name: "mine"}
	_, err = ann.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: mine}))
	wantCode(t, err, connect.CodeResourceExhausted, "the quota of user ann is 10 B of images")

	seen := r.audited()
	for _, want := range []string{"user ann PutBlob sha256:" + hexOf("one"), "user ann PutBlob sha256:" + hexOf("two") + " resource_exhausted"} {
		if !slices.Contains(seen, want) {
			t.Errorf("not in the log: %q; it has %q", want, seen)
		}
	}
}

func TestUploadsThatNoImageHasAreCounted(t *testing.T) {
	r := start(t, t.TempDir())
	_, annHTTP := r.user("ann", nil)
	for who, client := range map[string]*http.Client{"ann": annHTTP, "admin": r.http} {
		for n := range 30 {
			if status, text := r.put(client, strings.Repeat("x", n+1), "100"); status != http.StatusAccepted {
				t.Fatal(who, n, status, text)
			}
		}
		if status, text := r.put(client, "one more", "100"); status != http.StatusInsufficientStorage || !strings.Contains(text, "30 uploads that no image has") {
			t.Errorf("%s: %d, %s", who, status, text)
		}
	}
}

func TestANewUserHasLimitsAndAnAdministratorHasNone(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	user, err := r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "ann", Quota: &v1.Quota{Vcpus: 4}}))
	if err != nil {
		t.Fatal(err)
	}
	// The page on threats gives these numbers.
	if q := user.Msg.User.Quota; q.Vcpus != 4 || q.MemoryBytes != 0 || q.ImageBytes != 50<<30 || q.Runs != 1000 || q.OutputBytes != 10<<30 {
		t.Errorf("a user's: %v", q)
	}
	again, err := r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "ann", Quota: &v1.Quota{}}))
	if err != nil || again.Msg.Token == "" {
		t.Errorf("a new token for an equal user: %v", err)
	}
	_, err = r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "ann", Quota: &v1.Quota{Vcpus: 5}}))
	wantCode(t, err, connect.CodeAlreadyExists)
	admin, err := r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "ops", Role: v1.Role_ROLE_ADMIN}))
	if err != nil {
		t.Fatal(err)
	}
	if q := admin.Msg.User.Quota; q.GetImageBytes() != 0 || q.GetRuns() != 0 {
		t.Errorf("an administrator's: %v", q)
	}
}
