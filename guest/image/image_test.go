package image

// image_test.go - the digest of an image, and the order of kernel versions.

import (
	"crypto/sha256"
	"fmt"
	"testing"

	v1 "watari/api/watariv1"
)

func TestDigestIsThatOfBlobsAndArguments(t *testing.T) {
	image := &v1.Image{Kernel: &v1.Blob{Digest: "sha256:aa"}, Initrd: &v1.Blob{Digest: "sha256:bb"}, Root: &v1.Blob{Digest: "sha256:cc"}, KernelArgs: "quiet"}
	want := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("sha256:aa\nsha256:bb\nsha256:cc\nquiet\n")))
	if got := Digest(image); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}

func TestVersionsAreOrderedByNumber(t *testing.T) {
	ordered := []string{"5.10.0-9-amd64", "5.10.0-28-amd64", "6.1.0-9-amd64", "6.1.0-10-amd64", "6.1.0-10-cloud-amd64", "6.12.1"}
	for i := range ordered {
		for j := range ordered {
			got := compareVersions(ordered[i], ordered[j])
			if (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("compare %s with %s: %d", ordered[i], ordered[j], got)
			}
		}
	}
}
