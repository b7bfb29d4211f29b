package root_test

// access_test.go - which manager is called, and as which user.

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/stub"
	"watari/cmd/watari/root"
	"watari/internal/protocol"
)

// command runs watari with a config at a path.
func command(t *testing.T, config string, args ...string) stub.Result {
	t.Helper()
	var out, err bytes.Buffer
	env := &cli.Env{In: strings.NewReader(""), Out: &out, Err: &err, Signals: make(chan os.Signal), Now: time.Now}
	status := root.Main(context.Background(), env, append([]string{"--config", config}, args...))
	return stub.Result{Out: out.String(), Err: err.String(), Status: status}
}

func save(t *testing.T, config client.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := config.Save(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhatIsSaidWhenNoManagerAnswers(t *testing.T) {
	manager := (&stub.Manager{Unary: answers}).Start(t)
	config := save(t, manager.Config())
	manager.Stop()
	want := "watari: list hosts: no manager answers at " + manager.URL() + ": connection refused; start one with `sudo watari up`\n"
	if result := command(t, config, "host", "list"); result.Err != want || result.Status != 1 {
		t.Errorf("%+v", result)
	}
	if result := command(t, filepath.Join(t.TempDir(), "none"), "host", "list"); result.Status != 1 || !strings.Contains(result.Err, "watari login") {
		t.Errorf("%+v", result)
	}
}

func TestEachManagerIsTried(t *testing.T) {
	gone, there := (&stub.Manager{Unary: answers}).Start(t), (&stub.Manager{Unary: answers}).Start(t)
	config := there.Config()
	config.Managers = []string{gone.URL(), there.URL()}
	gone.Stop()
	if result := command(t, save(t, config), "host", "list"); result.Status != 0 {
		t.Errorf("%+v", result)
	}
}

// A manager that stands by names the leader, which the client config need not list.
func TestTheLeaderThatAManagerNamesIsAsked(t *testing.T) {
	manager := &stub.Manager{}
	var asked atomic.Int32
	manager.Unary = func(ctx context.Context, request any) (any, error) {
		if asked.Add(1) > 1 {
			return answers(ctx, request)
		}
		err := connect.NewError(connect.CodeUnavailable, errors.New("this manager does not lead"))
		err.Meta().Set(protocol.LeaderHeader, strings.Replace(manager.URL(), "127.0.0.1", "localhost", 1))
		return nil, err
	}
	manager.Start(t)
	if result := command(t, save(t, manager.Config()), "host", "list"); result.Status != 0 || asked.Load() != 2 {
		t.Errorf("%+v, asked %d times", result, asked.Load())
	}
}

func TestAnotherCAsManagerIsNotTalkedTo(t *testing.T) {
	one, other := (&stub.Manager{Unary: answers}).Start(t), (&stub.Manager{Unary: answers}).Start(t)
	config := one.Config()
	config.Managers = []string{other.URL()}
	if result := command(t, save(t, config), "host", "list"); result.Status != 1 || !strings.Contains(result.Err, "what answers is not the manager of the client config: its certificate is of another CA") {
		t.Errorf("%+v", result)
	}
}

func TestLoginTradesATokenForACertificate(t *testing.T) {
	manager := &stub.Manager{}
	manager.Unary = func(ctx context.Context, request any) (any, error) {
		r, ok := request.(*v1.JoinRequest)
		if !ok {
			return answers(ctx, request)
		}
		certificate, err := manager.Authority().Sign(r.Request, ca.Identity{Kind: ca.KindUser, Name: "aiko"})
		return &v1.JoinResponse{Certificate: certificate, CaCertificate: manager.Authority().CertificatePEM(), Name: "aiko"}, err
	}
	manager.Start(t)
	config := filepath.Join(t.TempDir(), "sub", "config.json")
	if result := command(t, config, "login", "--manager", manager.URL(), "--token", manager.Token().String()); result.Status != 0 || !strings.Contains(result.Err, "logged in as aiko") {
		t.Fatalf("%+v", result)
	}
	if info, err := os.Stat(config); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("config: %v, %v", info, err)
	}
	if result := command(t, config, "host", "list"); result.Status != 0 {
		t.Errorf("%+v", result)
	}
	before, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(config+".old", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	again := []string{"login", "--manager", manager.URL(), "--token", manager.Token().String()}
	result := command(t, config, again...)
	if text, _ := os.ReadFile(config); result.Status != 1 || !bytes.Equal(text, before) {
		t.Errorf("the only config is lost: %+v", result)
	}
	if err := os.RemoveAll(config + ".old"); err != nil {
		t.Fatal(err)
	}
	result = command(t, config, again...)
	text, err := os.ReadFile(config)
	if old, failed := os.ReadFile(config + ".old"); err != nil || failed != nil || result.Status != 0 || !bytes.Equal(old, before) || bytes.Equal(text, before) {
		t.Errorf("the old config is not kept, %v, %v: %+v", err, failed, result)
	}
	if left, _ := filepath.Glob(config + ".new*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	other := (&stub.Manager{}).Start(t)
	if result := command(t, config+"2", "login", "--manager", other.URL(), "--token", manager.Token().String()); result.Status != 1 {
		t.Errorf("a manager of another CA was joined: %+v", result)
	} else {
		t.Log(result.Err)
	}
}

func TestACertificateIsRenewedInTime(t *testing.T) {
	manager, asked := &stub.Manager{}, 0
	manager.Unary = func(ctx context.Context, request any) (any, error) {
		r, ok := request.(*v1.JoinRequest)
		if !ok {
			return answers(ctx, request)
		}
		if asked++; asked == 1 {
			return nil, connect.NewError(connect.CodeResourceExhausted, errors.New("the disk is full"))
		}
		certificate, err := manager.Authority().Sign(r.Request, ca.Identity{Kind: ca.KindUser, Name: "admin"})
		return &v1.JoinResponse{Certificate: certificate}, err
	}
	manager.Start(t)
	path := save(t, manager.Config())
	list := func(now time.Time) string {
		var out, err bytes.Buffer
		env := &cli.Env{In: strings.NewReader(""), Out: &out, Err: &err, Signals: make(chan os.Signal), Now: func() time.Time { return now }}
		if status := root.Main(context.Background(), env, []string{"--config", path, "host", "list"}); status != 0 {
			t.Fatal(err.String())
		}
		return err.String()
	}
	later := time.Now().AddDate(0, 7, 0)
	if notes := list(time.Now()); notes != "" || asked != 0 {
		t.Errorf("renewed long before it was due: %q", notes)
	}
	if notes := list(later); !strings.Contains(notes, "the certificate in "+path+" was not renewed") || !strings.Contains(notes, "the disk is full") {
		t.Errorf("refused: %q", notes)
	}
	if notes := list(later); notes != "" || asked != 2 {
		t.Errorf("renewed: %q, asked %d times", notes, asked)
	}
	kept, err := client.Load(path)
	if before := manager.Config(); err != nil || kept.Certificate == before.Certificate || kept.Key != before.Key || kept.CA != before.CA {
		t.Error("the new certificate was not kept", err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 {
		t.Errorf("left: %q", left)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error("others can read it", err)
	}
}
