package manager

// handshake_test.go - what a stranger can make the manager read and verify before it knows the caller.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"watari/ca"
)

// The manager's own limit applies to both versions of HTTP. A stranger gets no further with a long header in many fields.
func TestAStrangersHeadersAreLimited(t *testing.T) {
	r := start(t, t.TempDir())
	token := mustToken(t, r.hostToken())
	for _, second := range []bool{false, true} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.JoinTLS(token), ForceAttemptHTTP2: second}}
		for _, fields := range []int{1, 100} {
			for size, taken := range map[int]bool{8 << 10: true, 16 << 10: false, 1 << 20: false} {
				request, err := http.NewRequestWithContext(bounded(t), http.MethodGet, r.url+"/blobs/sha256:"+strings.Repeat("0", 64), nil)
				if err != nil {
					t.Fatal(err)
				}
				for range fields {
					request.Header.Add("X", strings.Repeat("x", size/fields))
				}
				resp, err := client.Do(request)
				if err == nil {
					resp.Body.Close()
					if second != (resp.ProtoMajor == 2) {
						t.Fatalf("the protocol is %s", resp.Proto)
					}
				}
				// A client of HTTP/2 knows the limit and sends no larger headers, and a client of HTTP/1.1 may still write when
				// the manager has closed the connection.
				switch {
				case taken && (err != nil || resp.StatusCode != http.StatusUnauthorized):
					t.Errorf("HTTP/2 %v: %d bytes in %d fields: %v, %v", second, size, fields, resp, err)
				case !taken && err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge:
					t.Errorf("HTTP/2 %v: %d bytes in %d fields: %s", second, size, fields, resp.Status)
				}
			}
		}
	}
}

// The manager reads a whole frame of HTTP/2 before it knows who sends it.
func TestAStrangersFramesAreSmall(t *testing.T) {
	r := start(t, t.TempDir())
	config := ca.JoinTLS(mustToken(t, r.hostToken()))
	config.NextProtos = []string{"h2"}
	for size, taken := range map[int]bool{16 << 10: true, 16<<10 + 1: false} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		framer := http2.NewFramer(conn, conn)
		if err := errors.Join(framer.WriteSettings(), framer.WriteRawFrame(0xfe, 0, 0, make([]byte, size)), framer.WritePing(false, [8]byte{1})); err != nil {
			t.Fatal(err)
		}
		answered := false
		for {
			frame, err := framer.ReadFrame()
			if err != nil { // the manager closes the connection
				break
			}
			if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
				answered = true
				break
			}
		}
		if answered != taken {
			t.Errorf("after a frame of %d bytes, the manager answers: %v", size, answered)
		}
	}
}

// A certificate counts only if the authority itself has signed it, whatever the caller sends along. The limit is that of crypto/tls.
func TestAHandshakeTakesSoManyCertificatesAndCountsTheFirst(t *testing.T) {
	r := start(t, t.TempDir())
	authority := r.deps.Load().Authority
	block, _ := pem.Decode(authority.KeyPEM())
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made := int64(0)
	certificate := func(name string, isCA bool, parent *x509.Certificate, signer any) *x509.Certificate {
		t.Helper()
		made++
		template := &x509.Certificate{SerialNumber: big.NewInt(made), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: isCA,
			BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		if !isCA {
			template.URIs = []*url.URL{{Scheme: "watari", Host: "user", Path: "/admin"}}
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	between := certificate("between", true, authority.Certificate(), parsed)
	leaf := certificate("admin", false, between, key)
	direct := certificate("admin", false, authority.Certificate(), parsed)
	most := 256 << 10 / (len(between.Raw) + 5) // each has 5 bytes more in the handshake
	with := func(more int) [][]byte {
		return append([][]byte{direct.Raw}, slices.Repeat([][]byte{between.Raw}, more)...)
	}
	for what, c := range map[string]struct {
		chain [][]byte
		taken bool
	}{
		"signed by the authority, and nearly 256 KiB more": {with(most - 10), true},
		"more than 256 KiB":        {with(most + 10), false},
		"a chain to the authority": {[][]byte{leaf.Raw, between.Raw}, false},
	} {
		config := ca.JoinTLS(mustToken(t, r.hostToken()))
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: c.chain, PrivateKey: key}, nil
		}
		resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config}}).Get(r.url + "/")
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil) != c.taken {
			t.Errorf("%s: %v", what, err)
		}
	}
}
