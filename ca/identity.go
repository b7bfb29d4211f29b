package ca

// identity.go - the subject of a certificate.

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Kind is the kind of a certificate's subject.
type Kind string

// The kinds.
const (
	KindManager Kind = "manager"
	KindHost    Kind = "host"
	KindUser    Kind = "user"
	KindGuest   Kind = "guest"
)

// Identity is the subject of a certificate.
type Identity struct {
	Kind    Kind
	Name    string
	Cluster string // of a guest
	// UID is the uid of the host's or user's object. It is in the subject's serial number, not in the URI. So the
	// certificate of a removed host or user is not valid for a later one of the same name.
	UID string
	// Generation is the generation of a host's, user's or guest's certificates; older generations were revoked.
	Generation uint32
}

// serialNumber is the subject's serial number: the UID and, unless it is 0, the generation.
func (id Identity) serialNumber() string {
	if id.Generation == 0 {
		return id.UID
	}
	return fmt.Sprintf("%s/%d", id.UID, id.Generation)
}

// String is the identity's URI.
func (id Identity) String() string { return id.url().String() }

func (id Identity) url() *url.URL {
	path := "/" + id.Name
	if id.Kind == KindGuest {
		path = "/" + id.Cluster + path
	}
	return &url.URL{Scheme: "watari", Host: string(id.Kind), Path: path}
}

// IdentityOf returns the subject of a certificate. It does not verify the certificate.
func IdentityOf(cert *x509.Certificate) (Identity, error) {
	if cert == nil || len(cert.URIs) != 1 {
		return Identity{}, errors.New("the certificate has no identity (one watari:// URI)")
	}
	u := cert.URIs[0]
	parts := strings.Split(strings.TrimPrefix(u.Path, "/"), "/")
	id := Identity{Kind: Kind(u.Host), Name: parts[len(parts)-1]}
	uid, generation, has := strings.Cut(cert.Subject.SerialNumber, "/")
	id.UID = uid
	if has {
		n, err := strconv.ParseUint(generation, 10, 32)
		if err != nil {
			return Identity{}, fmt.Errorf("the certificate's serial number %q is not one of Watari's", cert.Subject.SerialNumber)
		}
		id.Generation = uint32(n)
	}
	want := 1
	if id.Kind == KindGuest {
		want, id.Cluster = 2, parts[0]
	}
	switch {
	case u.Scheme != "watari" || len(parts) != want || id.Name == "":
		return Identity{}, fmt.Errorf("the certificate's URI %s is not one of Watari's", u)
	case id.Kind != KindManager && id.Kind != KindHost && id.Kind != KindUser && id.Kind != KindGuest:
		return Identity{}, fmt.Errorf("the certificate's URI %s is of an unknown kind", u)
	}
	return id, nil
}
