package manager

// webconsole_certificate_test.go - a browser with a user's client certificate needs no link.

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	v1 "watari/api/watariv1"
	"watari/ca"
)

// withCertificate returns options of a browser whose owner has imported a certificate, and chooses it for the manager's page.
func (r *running) withCertificate(pair ca.KeyPair) []chromedp.ExecAllocatorOption {
	r.t.Helper()
	for _, program := range []string{"openssl", "certutil", "pk12util"} {
		if _, err := exec.LookPath(program); err != nil {
			r.t.Skip(program + " is not installed (apt-get install openssl libnss3-tools)")
		}
	}
	home := r.t.TempDir()
	database, profile := filepath.Join(home, ".pki/nssdb"), filepath.Join(home, "profile")
	run := func(name string, args ...string) {
		r.t.Helper()
		command := exec.Command(name, args...)
		command.Dir = home
		if out, err := command.CombinedOutput(); err != nil {
			r.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	write := func(path string, content []byte) {
		r.t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	write(filepath.Join(home, "pem"), append(pair.Certificate, pair.Key...))
	run("openssl", "pkcs12", "-export", "-in", "pem", "-out", "watari.p12", "-name", "watari", "-passout", "pass:")
	if err := os.MkdirAll(database, 0o700); err != nil {
		r.t.Fatal(err)
	}
	run("certutil", "-N", "-d", "sql:"+database, "--empty-password")
	run("pk12util", "-i", "watari.p12", "-d", "sql:"+database, "-W", "")
	choice := map[string]any{"profile": map[string]any{"content_settings": map[string]any{"exceptions": map[string]any{
		"auto_select_certificate": map[string]any{r.url + ",*": map[string]any{"setting": map[string]any{"filters": []any{map[string]any{}}}}}}}}}
	preferences, err := json.Marshal(choice)
	if err != nil {
		r.t.Fatal(err)
	}
	write(filepath.Join(profile, "Default/Preferences"), preferences)
	return []chromedp.ExecAllocatorOption{chromedp.Env("HOME=" + home), chromedp.UserDataDir(profile)}
}

func TestABrowserLogsInWithACertificate(t *testing.T) {
	r := start(t, t.TempDir())
	added, err := r.admin.AddUser(t.Context(), connect.NewRequest(&v1.AddUserRequest{Name: "ann"}))
	if err != nil {
		t.Fatal(err)
	}
	pair, _, err := r.join(added.Msg.Token, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, complaints := chromium(t, r.withCertificate(pair)...)
	page := r.url + "/console/"
	if err := chromedp.Run(ctx, runtime.Enable(), chromedp.Navigate(page)); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "who is logged in", `document.getElementById("who").textContent === "ann"`)
	shows(t, ctx, "the state of everything", `document.getElementById("summary").textContent.startsWith("0 hosts")`)
	if err := chromedp.Run(ctx, chromedp.Click(`nav a[href="#/policy"]`)); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "that ann is no administrator", `document.getElementById("trouble").textContent.includes("not an administrator")`)
	if err := chromedp.Run(ctx, chromedp.Click("#logout")); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "that nobody is logged in", `document.querySelector("main").textContent.includes("You have logged out")`)
	if err := chromedp.Run(ctx, chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "who is logged in again", `document.getElementById("who").textContent === "ann"`)
	if _, err := r.admin.RemoveUser(t.Context(), connect.NewRequest(&v1.RemoveUserRequest{Name: "ann"})); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "that the user was removed", `document.querySelector("main").textContent.includes("user ann was removed")`)
	if err := chromedp.Run(ctx, chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "that the certificate is worth nothing", `document.querySelector("main").textContent.includes("You are not logged in") && document.querySelector("main").textContent.includes("user ann was removed")`)
	if list := complaints(); len(list) > 0 {
		t.Errorf("the browser complains: %q", list)
	}
}

// A browser that has no certificate is told how to log in.
func TestABrowserWithoutAnything(t *testing.T) {
	ctx, _ := chromium(t)
	r := start(t, t.TempDir())
	if err := chromedp.Run(ctx, chromedp.Navigate(r.url+"/console/")); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "how to log in", `(text => text.includes("you are not logged in") && text.includes("watari console") && !text.includes("used already"))(document.querySelector("main").textContent)`)
}
