package cache

// pack.go - packs and unpacks templates, which travel between hosts compressed.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	v1 "watari/api/watariv1"
)

// Pack compresses a file (zstd) into a blob that other hosts can fetch, and links it to path.
func (c *Cache) Pack(ctx context.Context, from, path string) (*v1.Blob, error) {
	blob, err := c.pack(ctx, from, path)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", from, err)
	}
	return blob, nil
}

func (c *Cache) pack(ctx context.Context, from, path string) (*v1.Blob, error) {
	source, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	part := path + ".part"
	defer os.Remove(part)
	target, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	hash := sha256.New()
	encoder, err := zstd.NewWriter(io.MultiWriter(target, hash), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(encoder, cancelled{ctx, source})
	if err = errors.Join(err, encoder.Close()); err == nil {
		err = target.Sync()
	}
	if err != nil {
		return nil, err
	}
	info, err := target.Stat()
	if err != nil {
		return nil, err
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	defer c.lock(sum)()
	if err := os.Rename(part, c.blobPath(sum)); err != nil {
		return nil, err
	}
	c.trust(c.blobPath(sum))
	if err := c.link(sum, path); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.whole[sum] = true
	c.mu.Unlock()
	return &v1.Blob{Digest: "sha256:" + sum, Size: uint64(info.Size())}, nil
}

// Unpack decompresses what Pack compressed. The file appears complete and on disk, or not at all. limit bounds its
// size, bytes.
func (c *Cache) Unpack(ctx context.Context, packed, path string, limit int64) error {
	if err := unpack(ctx, packed, path, limit); err != nil {
		return fmt.Errorf("unpack %s: %w", packed, err)
	}
	return nil
}

func unpack(ctx context.Context, packed, path string, limit int64) error {
	source, err := os.Open(packed)
	if err != nil {
		return err
	}
	defer source.Close()
	decoder, err := zstd.NewReader(cancelled{ctx, source})
	if err != nil {
		return err
	}
	defer decoder.Close()
	part := path + ".part"
	defer os.Remove(part)
	target, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer target.Close()
	n, err := io.Copy(target, io.LimitReader(decoder, limit+1))
	if err != nil {
		return err
	}
	if n > limit {
		return fmt.Errorf("it holds more than %d bytes", limit)
	}
	if err := target.Sync(); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// cancelled is a reader that fails after its context has ended.
type cancelled struct {
	ctx  context.Context
	from io.Reader
}

// Read fails once the context has ended.
func (r cancelled) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(p)
}
