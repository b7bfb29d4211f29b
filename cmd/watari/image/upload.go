package image

// upload.go - uploads a built image to the manager.

import (
	"context"
	"fmt"
	"path/filepath"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/progress"
)

// upload uploads the blobs of an image that the manager lacks, and creates the image under a name. The blobs are the
// files kernel, initrd and root of the directory.
func upload(ctx context.Context, env *cli.Env, name string, built *v1.Image, folder string, publish bool) (*v1.Image, error) {
	c, err := env.Client()
	if err != nil {
		return nil, err
	}
	image := proto.CloneOf(built)
	image.Meta = &v1.Meta{Name: name}
	response, err := c.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: image, Publish: publish}))
	if err != nil {
		return nil, fmt.Errorf("create image %s: %w", name, err)
	}
	files := map[string]string{built.GetKernel().GetDigest(): "kernel", built.GetInitrd().GetDigest(): "initrd", built.GetRoot().GetDigest(): "root"}
	lines := progress.New(env.Err)
	defer lines.Clear()
	for _, blob := range response.Msg.Missing {
		file := files[blob.GetDigest()]
		if file == "" {
			return nil, fmt.Errorf("create image %s: the manager asks for blob %s, which is not part of the image", name, blob.GetDigest())
		}
		err := c.PutBlob(ctx, blob.GetDigest(), filepath.Join(folder, file), lines.Trouble, func(held, size int64) {
			lines.Set(progress.Line{Key: file, Text: "uploading the " + file + " to the manager: " + lines.Bar(uint64(held), uint64(size))})
		})
		if err != nil {
			return nil, fmt.Errorf("upload the %s of image %s to the manager: %w", file, name, err)
		}
	}
	if len(response.Msg.Missing) == 0 {
		return response.Msg.Image, nil
	}
	response, err = c.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: image, Publish: publish}))
	if err == nil && len(response.Msg.Missing) > 0 {
		err = fmt.Errorf("the manager still lacks %d blobs of the image", len(response.Msg.Missing))
	}
	if err != nil {
		return nil, fmt.Errorf("create image %s: %w", name, err)
	}
	return response.Msg.Image, nil
}
