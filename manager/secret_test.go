package manager

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// keysIn counts the files below a folder that contain an unencrypted key.
func keysIn(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		// JSON has bytes in base64: "-----BEGIN PRIVATE KEY-----" begins with this. The first administrator's key is not encrypted.
		for _, key := range []string{"LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t", "-----BEGIN PRIVATE KEY-----"} {
			if bytes.Contains(text, []byte(key)) && d.Name() != "admin.json" {
				n++
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTheAuthoritysKeyIsEncryptedInTheStore(t *testing.T) {
	secret := []byte("a secret of more than 16 bytes")
	with := func(secret []byte) func(*Config) { return func(c *Config) { c.Secret = secret } }
	dir := t.TempDir()
	r := beginWith(t, dir, with(secret))
	r.awaitLead()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n := keysIn(t, dir); n > 0 {
		t.Errorf("the key is in %d files of the manager", n)
	}
	for text, secret := range map[string][]byte{"--authority-secret FILE": nil, "with another secret": []byte("another secret of this length")} {
		err := Run(context.Background(), Config{State: filepath.Join(dir, "manager"), Listen: "127.0.0.1:0", Secret: secret})
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("with the secret %q: %v", secret, err)
		}
	}
	again := beginWith(t, dir, with(secret))
	again.awaitLead() // using the first administrator's certificate, which the same authority has signed

	// A key that was stored unencrypted is encrypted at the next start.
	dir = t.TempDir()
	plain := start(t, dir)
	if err := plain.stop(); err != nil {
		t.Fatal(err)
	}
	if keysIn(t, filepath.Join(dir, "manager", "etcd")) == 0 {
		t.Fatal("the search for the key is not one")
	}
	later := beginWith(t, dir, with(secret))
	later.awaitLead()
	if err := later.stop(); err != nil {
		t.Fatal(err)
	}
	if err := Run(context.Background(), Config{State: filepath.Join(dir, "manager"), Listen: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), "is encrypted") {
		t.Errorf("it is not encrypted later: %v", err)
	}
}

func TestEtcdOfAnotherMachineIsReachedOverTLSAlone(t *testing.T) {
	for endpoint, good := range map[string]bool{
		"https://etcd1:2379": true, "http://127.0.0.1:2379": true, "http://localhost:2379": true, "http://[::1]:2379": true,
		"http://etcd1:2379": false, "http://192.0.2.1:2379": false, "unix:///run/etcd.sock": true, "etcd1:2379": false, "": false,
	} {
		if err := checkEndpoint(endpoint); (err == nil) != good {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	err := Run(t.Context(), Config{State: t.TempDir(), Listen: "127.0.0.1:0", EtcdEndpoints: []string{"http://192.0.2.1:2379"}})
	if err == nil || !strings.Contains(err.Error(), "http://192.0.2.1:2379") {
		t.Errorf("the manager begins: %v", err)
	}
}
