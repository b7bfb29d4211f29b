package main

// client.go - an administrator's actions: hosts join, an image is registered, clusters are created and deleted.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
)

const imageName = "bench"

// imageParts are the parts of the image: kernel, initrd and root.
var imageParts = []part{"kernel", "initrd", "root"}

type part string

func (p part) blob() *v1.Blob {
	sum := sha256.Sum256([]byte(p))
	return &v1.Blob{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: uint64(len(p))}
}

var registered string

// imageDigest returns the digest of the registered image.
func imageDigest() string { return registered }

// register uploads and registers an image with artificial content.
func (p *process) register(ctx context.Context) error {
	for _, part := range imageParts {
		blob := part.blob()
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, p.url+"/blobs/"+blob.Digest, bytes.NewReader([]byte(part)))
		if err != nil {
			return err
		}
		r.Header.Set("Watari-Size", fmt.Sprint(blob.Size))
		resp, err := p.http.Do(r)
		if err != nil {
			return fmt.Errorf("upload %s: %w", part, err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("upload %s: %s", part, resp.Status)
		}
	}
	resp, err := p.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: &v1.Image{
		Meta: &v1.Meta{Name: imageName}, RootType: "squashfs", Source: "made up", Mpi: []string{"openmpi"},
		Kernel: imageParts[0].blob(), Initrd: imageParts[1].blob(), Root: imageParts[2].blob(),
	}}))
	if err != nil {
		return fmt.Errorf("register an image: %w", err)
	}
	registered = resp.Msg.Image.GetDigest()
	return nil
}

// join exchanges a token for a host's certificate.
func (p *process) join(ctx context.Context, name string) (*tls.Config, error) {
	made, err := p.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Site: "s"}))
	if err != nil {
		return nil, err
	}
	token, err := ca.ParseToken(made.Msg.Token)
	if err != nil {
		return nil, err
	}
	key, request, err := ca.NewKeyAndCSR()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: ca.JoinTLS(token)}
	defer transport.CloseIdleConnections()
	resp, err := watariv1connect.NewJoinServiceClient(&http.Client{Transport: transport}, p.url).Join(ctx,
		connect.NewRequest(&v1.JoinRequest{Token: made.Msg.Token, Name: name, Request: request}))
	if err != nil {
		return nil, err
	}
	return ca.ClientTLS(p.caPEM, resp.Msg.Certificate, key)
}

// create makes a cluster.
func (p *process) create(ctx context.Context, name string, guests int) error {
	_, err := p.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: name, Spec: &v1.ClusterSpec{
		Guests: uint32(guests), Image: imageName, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 30},
	}}))
	if err != nil {
		return fmt.Errorf("create cluster %s of %d guests: %w", name, guests, err)
	}
	return nil
}

// remove deletes a cluster and waits until it is deleted.
func (p *process) remove(ctx context.Context, name string, limit time.Duration) error {
	if _, err := p.DeleteCluster(ctx, connect.NewRequest(&v1.DeleteClusterRequest{Name: name})); err != nil {
		return fmt.Errorf("delete cluster %s: %w", name, err)
	}
	return p.until(ctx, limit, "cluster "+name+" is gone", func() bool {
		time.Sleep(50 * time.Millisecond)
		_, err := p.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{Name: name}))
		return connect.CodeOf(err) == connect.CodeNotFound
	})
}
