package image

// archive.go - opens OCI and docker archives and selects the image for this machine.

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	ociv1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// openArchive opens the image in an archive written by docker save, podman save, skopeo or buildah. It unpacks an OCI
// archive into scratch, an empty directory.
func openArchive(archive, scratch string) (ociv1.Image, error) {
	docker, oci, err := archiveKind(archive)
	switch {
	case err != nil:
		return nil, err
	case oci:
		if err := unpackLayout(archive, scratch); err != nil {
			return nil, err
		}
		index, err := layout.ImageIndexFromPath(scratch)
		if err != nil {
			return nil, err
		}
		return pickImage(index)
	case docker:
		return tarball.ImageFromPath(archive, nil)
	}
	return nil, errors.New("holds neither index.json (OCI) nor manifest.json (docker)")
}

// archiveKind reports which descriptions an archive contains. Newer versions of docker write both.
func archiveKind(archive string) (docker, oci bool, err error) {
	err = eachEntry(archive, func(header *tar.Header, _ io.Reader) error {
		switch filepath.Clean(header.Name) {
		case "manifest.json":
			docker = true
		case "index.json":
			oci = true
		}
		return nil
	})
	return docker, oci, err
}

// eachEntry calls entry for each entry of a tar file.
func eachEntry(archive string, entry func(*tar.Header, io.Reader) error) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := entry(header, reader); err != nil {
			return err
		}
	}
}

// unpackLayout unpacks the files of an OCI layout.
func unpackLayout(archive, scratch string) error {
	root, err := os.OpenRoot(scratch)
	if err != nil {
		return err
	}
	defer root.Close()
	return eachEntry(archive, func(header *tar.Header, content io.Reader) error {
		if header.Typeflag != tar.TypeReg {
			return nil
		}
		name := filepath.Clean(header.Name)
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		file, err := root.Create(name)
		if err != nil {
			return diskError(err, scratch)
		}
		_, err = io.Copy(file, content)
		return diskError(errors.Join(err, file.Close()), scratch)
	})
}

// pickImage finds the image for this machine's platform in an index. The index may contain other indexes.
func pickImage(index ociv1.ImageIndex) (ociv1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var others []string
	for _, found := range manifest.Manifests {
		if p := found.Platform; p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
			others = append(others, p.String())
			continue
		}
		switch found.MediaType {
		case types.OCIManifestSchema1, types.DockerManifestSchema2:
			return index.Image(found.Digest)
		case types.OCIImageIndex, types.DockerManifestList:
			below, err := index.ImageIndex(found.Digest)
			if err != nil {
				return nil, err
			}
			return pickImage(below)
		}
	}
	return nil, fmt.Errorf("holds no image for linux/%s (it has: %v)", runtime.GOARCH, others)
}
