package manager

// admin.go - the authority and the first administrator.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"watari/ca"
	"watari/core"
	"watari/internal/durable"
	"watari/internal/lan"
	"watari/manager/api"
	"watari/manager/store"
	"watari/policy"

	v1 "watari/api/watariv1"

	"google.golang.org/protobuf/proto"
)

// loadAuthority loads the authority, or makes it at the first start, and writes its certificate to State/ca. With a secret,
// it encrypts the key in the store, even if the key was stored unencrypted before.
func (m *Manager) loadAuthority(ctx context.Context) (*ca.Authority, error) {
	certificate, key, err := m.store.Authority(ctx, func() ([]byte, []byte, error) {
		a, err := ca.New("watari")
		if err != nil {
			return nil, nil, err
		}
		if m.Secret == nil {
			return a.CertificatePEM(), a.KeyPEM(), nil
		}
		sealed, err := ca.Seal(a.KeyPEM(), m.Secret)
		return a.CertificatePEM(), sealed, err
	}, core.NewPolicy(1, policy.Default, "the default of new installations", ""))
	if err != nil {
		return nil, err
	}
	switch sealed := ca.Sealed(key); {
	case sealed && m.Secret == nil:
		return nil, errors.New("the authority's key is encrypted: start the manager with --authority-secret FILE")
	case sealed:
		if key, err = ca.Unseal(key, m.Secret); err != nil {
			return nil, err
		}
	case m.Secret != nil:
		encrypted, err := ca.Seal(key, m.Secret)
		if err != nil {
			return nil, err
		}
		if err := m.store.SealAuthority(ctx, certificate, key, encrypted); err != nil {
			return nil, err
		}
		m.Log.Info("the authority's key is encrypted from now on")
	}
	path := filepath.Join(m.State, "ca", "ca.crt")
	if err := writeFile(path, certificate, 0o644); err != nil {
		return nil, err
	}
	return ca.Load(certificate, key)
}

// clientConfig is the content of a client config file, which the command line's package client reads.
type clientConfig struct {
	Managers    []string `json:"manager"`
	CA          string   `json:"ca"`
	Certificate string   `json:"certificate"`
	Key         string   `json:"key"`
}

// ensureAdmin makes the user admin if there is none, and the user's client config if it is missing or invalid.
func (m *Manager) ensureAdmin(ctx context.Context) error {
	admin := m.store.Snapshot().Users[api.Admin]
	if admin == nil {
		admin = &v1.User{Meta: &v1.Meta{Name: api.Admin}, Role: v1.Role_ROLE_ADMIN}
		err := store.Users.Create(ctx, m.store, admin)
		if err != nil {
			return fmt.Errorf("make the first administrator: %w", err)
		}
	}
	if err := m.enableAdmin(ctx, admin); err != nil {
		return err
	}
	return m.keepAdminConfig(admin)
}

// keepAdminConfig writes the administrator's client config for programs on this machine, if there is no valid one.
func (m *Manager) keepAdminConfig(admin *v1.User) error {
	url := m.localURL()
	if m.goodAdminConfig(admin, url) {
		return nil
	}
	pair, err := m.authority.IssueClient(ca.Identity{Kind: ca.KindUser, Name: api.Admin, UID: admin.Meta.Uid, Generation: admin.Generation})
	if err != nil {
		return fmt.Errorf("make the first administrator's certificate: %w", err)
	}
	text, err := json.MarshalIndent(clientConfig{
		Managers: []string{url}, CA: string(m.authority.CertificatePEM()), Certificate: string(pair.Certificate), Key: string(pair.Key),
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the administrator's client config: %w", err)
	}
	return writeFile(m.AdminConfig, append(text, '\n'), 0o600)
}

// enableFile, in the manager's state folder, requests that the first administrator is enabled.
const enableFile = "enable-admin"

// EnableAdmin makes the manager with this state folder accept the first administrator again. It overrides other
// administrators, because it needs write access to the folder on the manager's machine.
func EnableAdmin(state string) error { return writeFile(filepath.Join(state, enableFile), nil, 0o600) }

// enableAdmin does what EnableAdmin asked for.
func (m *Manager) enableAdmin(ctx context.Context, admin *v1.User) error {
	asked := filepath.Join(m.State, enableFile)
	if _, err := os.Stat(asked); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if admin.Disabled != nil {
		admin = proto.CloneOf(admin)
		admin.Disabled = nil
		told := &v1.Event{Severity: v1.Severity_SEVERITY_WARNING, Kind: "user", Name: api.Admin, Message: "enabled from the manager's machine"}
		if err := m.store.Txn(ctx, store.Update(admin), store.Record(told)); err != nil {
			return fmt.Errorf("enable the first administrator: %w", err)
		}
	}
	return os.Remove(asked)
}

// goodAdminConfig reports whether the administrator's client config is valid for this manager.
func (m *Manager) goodAdminConfig(admin *v1.User, url string) bool {
	text, err := os.ReadFile(m.AdminConfig)
	if err != nil {
		return false
	}
	var c clientConfig
	if json.Unmarshal(text, &c) != nil || c.CA != string(m.authority.CertificatePEM()) || len(c.Managers) != 1 || c.Managers[0] != url {
		return false
	}
	cert, err := ca.ParseCertificate([]byte(c.Certificate))
	if err != nil {
		return false
	}
	id, err := ca.IdentityOf(cert)
	return err == nil && id.UID == admin.Meta.Uid && id.Generation == admin.Generation && !ca.RenewalDue([]byte(c.Certificate), time.Now())
}

// localURL returns the URL by which programs on this machine reach the manager.
func (m *Manager) localURL() string {
	host, port, err := net.SplitHostPort(m.Listen)
	ip := net.ParseIP(host)
	if err != nil || host != "" && (ip == nil || !ip.IsUnspecified()) || port == "0" {
		return m.Advertise
	}
	return "https://" + net.JoinHostPort("127.0.0.1", port)
}

// advertised returns a URL of the manager's address. If the manager listens on all addresses, it chooses one that other
// machines can reach.
func advertised(at *net.TCPAddr) string {
	address := at.IP.String()
	if at.IP == nil || at.IP.IsUnspecified() {
		found, _ := lan.Find()
		address = found.String()
	}
	return "https://" + net.JoinHostPort(address, fmt.Sprint(at.Port))
}

// writeFile replaces a file completely or not at all, and makes its folder.
func writeFile(path string, text []byte, mode os.FileMode) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = durable.WriteFile(path, text, mode)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
