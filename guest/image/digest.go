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

// Digest returns an image's digest: the SHA-256 of the digests of its three blobs (kernel, initrd, root) and the kernel
// arguments, one per line.
func Digest(image *v1.Image) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n%s\n%s\n", image.GetKernel().GetDigest(), image.GetInitrd().GetDigest(),
		image.GetRoot().GetDigest(), image.GetKernelArgs())
	return "sha256:" + hex.EncodeToString(hash.Sum(nil))
}

// blob is the cache's JSON form of a v1.Blob.
type blob struct {
	Digest string `json:"digest"`
	Size   uint64 `json:"size"`
}

func (b blob) proto() *v1.Blob { return &v1.Blob{Digest: b.Digest, Size: b.Size} }

// hasSize reports whether a cached file still has its full size: a crash or a full disk may have truncated it.
func hasSize(path string, b blob) bool {
	info, err := os.Stat(path)
	return err == nil && uint64(info.Size()) == b.Size
}

// fileBlob returns the hash and size of a file.
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

// readerContext is a reader that fails when its context ends.
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

// lines joins strings, with a newline after each.
func lines(list []string) []byte {
	var text []byte
	for _, line := range list {
		text = append(append(text, line...), '\n')
	}
	return text
}
