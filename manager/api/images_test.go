package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/manager/blob"
)

func TestReplacingAnImageLeavesEarlierSnapshotsAlone(t *testing.T) {
	s := openStore(t)
	blobs, err := blob.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("part"))
	part := &v1.Blob{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: 4}
	if _, err := blobs.Put("u1", hex.EncodeToString(sum[:]), 0, 4, strings.NewReader("part")); err != nil {
		t.Fatal(err)
	}
	server := New(Options{Store: s, Blobs: blobs})
	ctx := context.WithValue(t.Context(), callerKey{}, caller{kind: ca.KindUser, name: Admin, admin: true})
	create := func(args string) {
		t.Helper()
		image := &v1.Image{Meta: &v1.Meta{Name: "mpi"}, Kernel: part, Initrd: part, Root: part, RootType: "squashfs", KernelArgs: args}
		if _, err := server.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: image})); err != nil {
			t.Fatal(err)
		}
	}
	create("quiet")
	before := s.Snapshot().Images["mpi"]
	was := proto.CloneOf(before)
	create("debug")
	if !proto.Equal(before, was) {
		t.Errorf("the snapshot's image changed: %v, was %v", before, was)
	}
	if now := s.Snapshot().Images["mpi"]; now.KernelArgs != "debug" || now.Meta.Uid != was.Meta.Uid {
		t.Errorf("replaced by %v", now)
	}
}
