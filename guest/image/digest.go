package image

// digest.go - hashes of blobs and images.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	v1 "watari/api/watariv1"
)

// Digest is an image's digest: the SHA-256 of the three blobs' digests (kernel, initrd, root) and the kernel
// arguments, a line each.
func Digest(image *v1.Image) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n%s\n%s\n", image.GetKernel().GetDigest(), image.GetInitrd().GetDigest(),
		image.GetRoot().GetDigest(), image.GetKernelArgs())
	return "sha256:" + hex.EncodeToString(hash.Sum(nil))
}

// blob is a v1.Blob in the cache's own JSON.
type blob struct {
	Digest string `json:"digest"`
	Size   uint64 `json:"size"`
}

func (b blob) proto() *v1.Blob { return &v1.Blob{Digest: b.Digest, Size: b.Size} }

// hasSize says whether a cached file is there as long as it was: a crash or a full disk may have cut it.
func hasSize(path string, b blob) bool {
	info, err := os.Stat(path)
	return err == nil && uint64(info.Size()) == b.Size
}

// fileBlob hashes a file.
func fileBlob(ctx context.Context, path string) (*v1.Blob, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, readerContext{ctx, file})
	if err != nil {
		return nil, fmt.Errorf("hash %s: %w", path, err)
	}
	return &v1.Blob{Digest: "sha256:" + hex.EncodeToString(hash.Sum(nil)), Size: uint64(size)}, nil
}

// readerContext ends reading when its context does.
type readerContext struct {
	ctx context.Context
	io.Reader
}

func (r readerContext) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// lines joins with a line break after each.
func lines(list []string) []byte {
	var text []byte
	for _, line := range list {
		text = append(append(text, line...), '\n')
	}
	return text
}
