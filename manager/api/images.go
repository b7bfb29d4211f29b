package api

// images.go - registering, listing and removing images. Blobs are uploaded separately, next to the API.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"watari/manager/blob"
	"watari/manager/store"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"
)

// CreateImage registers an image whose blobs were uploaded. If some are missing or damaged, it lists them and registers
// nothing.
func (s *Server) CreateImage(ctx context.Context, r *connect.Request[v1.CreateImageRequest]) (*connect.Response[v1.CreateImageResponse], error) {
	image, err := newImage(callerOf(ctx), r.Msg.Image)
	if err != nil {
		return nil, err
	}
	image.Private = !r.Msg.Publish
	resp := &v1.CreateImageResponse{}
	for _, b := range []*v1.Blob{image.Kernel, image.Initrd, image.Root} {
		sum, err := blob.ParseDigest(b.Digest)
		if err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
		err = s.Blobs.Check(sum, int64(b.Size))
		switch {
		case errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrAltered):
			resp.Missing = append(resp.Missing, b)
		case err != nil:
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
	if len(resp.Missing) > 0 {
		return connect.NewResponse(resp), nil
	}
	err = s.change(ctx, func(snap *store.Snapshot) (ops []store.Op, err error) {
		if err := imageQuota(callerOf(ctx), snap, sizesOf(image)); err != nil {
			return nil, connect.NewError(connect.CodeResourceExhausted, err)
		}
		have := snap.Images[image.Meta.Name]
		if have == nil || have.Digest != image.Digest {
			if err := sameFacts(image, snap.Images); err != nil {
				return nil, err
			}
		}
		if have == nil {
			mine := 0
			for _, other := range snap.Images {
				if other.Meta.OwnerUid == image.Meta.OwnerUid {
					mine++
				}
			}
			if mine >= mostImages {
				return nil, fail(connect.CodeResourceExhausted, "user %s has %d images; remove some", image.Meta.Owner, mine)
			}
			return []store.Op{store.Create(image), audit(ctx, "image", image.Meta.Name, "created: %s", image.Source)}, nil
		}
		if have.Digest != image.Digest {
			// A name gets new content, as long as nothing needs the old content. While the manager holds, clusters that need it may be unknown.
			if err := s.mustNotHold(); err != nil {
				return nil, err
			}
			if err := replaceable(ctx, snap, have); err != nil {
				return nil, err
			}
			replacing := proto.CloneOf(image)
			replacing.Meta = proto.CloneOf(have.Meta) // the snapshot's image must not change
			replacing.Private = have.Private && !r.Msg.Publish
			image = replacing
			return []store.Op{store.Update(replacing), audit(ctx, "image", image.Meta.Name, "replaced: %s", image.Source)}, nil
		}
		if have.Private {
			if err := ownImage(ctx, have); err != nil {
				return nil, err
			}
		}
		if image = have; r.Msg.Publish {
			image, ops = published(ctx, have, true)
		}
		return ops, nil
	})
	if err != nil {
		return nil, err
	}
	resp.Image = image
	return connect.NewResponse(resp), nil
}

// mostUploads bounds the uploads of a user that no image of the user has yet. An image has three blobs.
const mostUploads = 30

// imageQuota returns an error if a user's images together with these blobs exceed the user's quota. The sizes are by hex
// digest.
func imageQuota(c caller, snap *store.Snapshot, more map[string]int64) error {
	limit := snap.Users[c.name].GetQuota().GetImageBytes()
	mine := map[string]int64{}
	for _, image := range snap.Images {
		if image.Meta.OwnerUid == c.uid {
			maps.Copy(mine, sizesOf(image))
		}
	}
	had := len(mine)
	for sum, size := range more {
		mine[sum] = max(size, mine[sum])
	}
	if len(mine)-had > mostUploads {
		return fmt.Errorf("user %s has %d uploads that no image has; create images of them, or wait until they are removed, which takes an hour", c.name, mostUploads)
	}
	total := uint64(0)
	for _, size := range mine {
		total += uint64(size)
	}
	if limit == 0 || total <= limit {
		return nil
	}
	return fmt.Errorf("the quota of user %s is %s of images, and they would have %s; remove images, or have an administrator raise it "+
		"(`watari quota set %[1]s --images ...`)", c.name, humanize.IBytes(limit), humanize.IBytes(total))
}

// sizesOf returns the sizes of an image's blobs by hex digest.
func sizesOf(image *v1.Image) map[string]int64 {
	sizes := map[string]int64{}
	for _, b := range []*v1.Blob{image.Kernel, image.Initrd, image.Root} {
		if sum, err := blob.ParseDigest(b.GetDigest()); err == nil {
			sizes[sum] = int64(b.Size)
		}
	}
	return sizes
}

// roomForUploads returns an error if the caller may not upload these blobs.
func (s *Server) roomForUploads(r *http.Request, sizes map[string]int64) error {
	return imageQuota(callerOf(r.Context()), s.Store.Snapshot(), sizes)
}

const (
	maxBlob        = 1 << 50  // bytes of one part of an image
	maxImageRecord = 16 << 10 // bytes of an image's description, which is in the orders of each host with a guest of the image
	mostImages     = 1000     // images of a user
)

// newImage checks a requested image and fills in the derived fields.
func newImage(owner caller, asked *v1.Image) (*v1.Image, error) {
	if err := checkName("image", asked.GetMeta().GetName()); err != nil {
		return nil, err
	}
	image := proto.CloneOf(asked)
	image.Meta = &v1.Meta{Name: asked.Meta.Name, Owner: owner.name, OwnerUid: owner.uid}
	bad := func(format string, a ...any) (*v1.Image, error) {
		return nil, fail(connect.CodeInvalidArgument, "image "+image.Meta.Name+": "+format, a...)
	}
	for part, b := range map[string]*v1.Blob{"kernel": image.Kernel, "initrd": image.Initrd, "root": image.Root} {
		if _, err := blob.ParseDigest(b.GetDigest()); err != nil {
			return bad("its %s: %v", part, err)
		}
		if b.Size == 0 || b.Size > maxBlob {
			return bad("its %s has %s; a part has 1 B to %s", part, humanize.IBytes(b.Size), humanize.IBytes(maxBlob))
		}
	}
	if image.RootType != "squashfs" && image.RootType != "erofs" {
		return bad("its root's type is %q; it must be squashfs or erofs", image.RootType)
	}
	if strings.ContainsAny(image.KernelArgs, "\n\x00") {
		return bad("its kernel arguments have a line break")
	}
	if size := proto.Size(image); size > maxImageRecord {
		return bad("the description has %s; at most %s", humanize.IBytes(uint64(size)), humanize.IBytes(maxImageRecord))
	}
	digest := imageDigest(image)
	if image.Digest != "" && image.Digest != digest {
		return bad("its digest is %s, and its parts make %s", image.Digest, digest)
	}
	image.Digest = digest
	return image, nil
}

// sameFacts refuses an image whose content another image has with other facts. The digest does not have the facts, and hosts start
// guests by digest.
func sameFacts(image *v1.Image, images map[string]*v1.Image) error {
	for name, other := range images {
		if name != image.Meta.Name && other.Digest == image.Digest && (other.RootType != image.RootType || other.Pm != image.Pm || !slices.Equal(other.Mpi, image.Mpi)) {
			return fail(connect.CodeAlreadyExists, "image %s: there is an image with the same content, but another type of the root, other MPI libraries, or PM in one only; "+
				"an administrator sees all images, and can remove the wrong one", image.Meta.Name) // it may be another user's, and private
		}
	}
	return nil
}

// imageDigest is the SHA-256 of the blobs' digests and the kernel arguments, a line each.
func imageDigest(image *v1.Image) string {
	text := fmt.Sprintf("%s\n%s\n%s\n%s\n", image.Kernel.Digest, image.Initrd.Digest, image.Root.Digest, image.KernelArgs)
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ListImages lists the images that the caller may use.
func (s *Server) ListImages(ctx context.Context, r *connect.Request[v1.ListImagesRequest]) (*connect.Response[v1.ListImagesResponse], error) {
	images := callerOf(ctx).coreCaller().UsableImages(s.Store.Snapshot().Images)
	if r.Msg.Name != "" && images[r.Msg.Name] == nil {
		return nil, missing("image", r.Msg.Name, images)
	}
	resp := &v1.ListImagesResponse{}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		if r.Msg.Name == "" || r.Msg.Name == name {
			resp.Images = append(resp.Images, images[name])
		}
	}
	return connect.NewResponse(resp), nil
}

// PublishImage lets all users see and use an image of the caller, or makes it private again.
func (s *Server) PublishImage(ctx context.Context, r *connect.Request[v1.PublishImageRequest]) (*connect.Response[v1.PublishImageResponse], error) {
	var image *v1.Image
	err := s.change(ctx, func(snap *store.Snapshot) (ops []store.Op, err error) {
		usable := callerOf(ctx).coreCaller().UsableImages(snap.Images)
		have := usable[r.Msg.Name]
		if have == nil {
			return nil, missing("image", r.Msg.Name, usable)
		}
		if err := ownImage(ctx, have); err != nil {
			return nil, err
		}
		image, ops = published(ctx, have, !r.Msg.Undo)
		return ops, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.PublishImageResponse{Image: image}), nil
}

// published returns an image made public or private, and the operations to write it.
func published(ctx context.Context, have *v1.Image, public bool) (image *v1.Image, ops []store.Op) {
	if have.Private != public {
		return have, nil
	}
	image, what := proto.CloneOf(have), "published"
	if image.Private = !public; image.Private {
		what = "made private"
	}
	return image, []store.Op{store.Update(image), audit(ctx, "image", image.Meta.Name, "%s", what)}
}

// RemoveImage removes an image that no cluster uses; its blobs are collected later.
func (s *Server) RemoveImage(ctx context.Context, r *connect.Request[v1.RemoveImageRequest]) (*connect.Response[v1.RemoveImageResponse], error) {
	name := r.Msg.Name
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		usable := callerOf(ctx).coreCaller().UsableImages(snap.Images)
		image := usable[name]
		if image == nil {
			return nil, missing("image", name, usable)
		}
		if err := replaceable(ctx, snap, image); err != nil {
			return nil, err
		}
		return []store.Op{store.Delete(proto.CloneOf(image)), audit(ctx, "image", name, "removed")}, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.RemoveImageResponse{}), nil
}

// otherNames reports whether an image's content also has another name.
func otherNames(snap *store.Snapshot, image *v1.Image) bool {
	for name, other := range snap.Images {
		if name != image.Meta.Name && other.Digest == image.Digest {
			return true
		}
	}
	return false
}

// BlobsInUse returns the hex digests of all images' blobs, for blob.Store.Collect.
func BlobsInUse(snap *store.Snapshot) map[string]bool {
	used := map[string]bool{}
	for _, image := range snap.Images {
		for sum := range sizesOf(image) {
			used[sum] = true
		}
	}
	return used
}

// replaceable returns an error if an image's name cannot get new content: another user owns the image, or clusters need it.
func replaceable(ctx context.Context, snap *store.Snapshot, image *v1.Image) error {
	name := image.Meta.Name
	if err := ownImage(ctx, image); err != nil {
		return err
	}
	var users []string
	for cluster, c := range snap.Clusters {
		if c.ImageDigest == image.Digest {
			users = append(users, cluster)
		}
	}
	if slices.Sort(users); len(users) > 0 && !otherNames(snap, image) {
		return fail(connect.CodeFailedPrecondition, "image %s is used by clusters: %s; delete them first, or take another name", name, strings.Join(users, ", "))
	}
	return nil
}

// ownImage returns an error if the caller may not change an image.
func ownImage(ctx context.Context, image *v1.Image) error {
	c := callerOf(ctx)
	if c.owns(image.Meta) {
		return nil
	}
	if image.Private {
		return fail(connect.CodePermissionDenied, "the name %s is taken; take another name", image.Meta.Name)
	}
	whose := "user " + image.Meta.Owner + "'s"
	if image.Meta.Owner == c.name {
		whose = "an earlier user " + c.name + "'s"
	}
	return fail(connect.CodePermissionDenied, "image %s is %s; take another name, or ask an administrator to remove it", image.Meta.Name, whose)
}
