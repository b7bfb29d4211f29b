package test

// webconsole_test.go - the web console of a lab with real guests, in a real browser.

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestWebConsoleOfALab watches a program and a move in the console. With WATARI_SCREENSHOTS it writes the README's picture.
func TestWebConsoleOfALab(t *testing.T) {
	full(t)
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed (apt-get install chromium)")
	}
	newCluster(t, "seen", 4, "--spread", "site")
	must(t, meltOf("seen", "seen-run", "2000", "--detach")...)
	t.Cleanup(func() { _, _ = shared.watari(time.Minute, "run", "cancel", "seen-run") })
	leave := owner(t, "b2", "busy")
	defer leave()
	made := decoded[struct{ URL, Fingerprint string }](t, "console")
	if len(strings.Split(made.Fingerprint, ":")) != 32 {
		t.Errorf("the certificate's fingerprint is %q", made.Fingerprint)
	}
	_, path, _ := strings.Cut(made.URL, "/console/")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.Flag("ignore-certificate-errors", true),
		chromedp.WindowSize(1180, 720), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	shows := func(what, expression string) {
		t.Helper()
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := chromedp.Run(limited, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(200*time.Millisecond))); err != nil {
			t.Fatalf("the page does not show %s: %v", what, err)
		}
	}
	picture := func(name string) {
		t.Helper()
		folder := os.Getenv("WATARI_SCREENSHOTS")
		if folder == "" {
			return
		}
		var png []byte
		if err := chromedp.Run(ctx, chromedp.CaptureScreenshot(&png)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := chromedp.Run(ctx, chromedp.Navigate("https://127.0.0.1:17070/console/"+path)); err != nil {
		t.Fatal(err)
	}
	shows("four guests that run", `document.querySelectorAll('.chip[aria-label^="guest seen-"][aria-label*="running"]').length === 4`)
	time.Sleep(40 * time.Second) // collects samples
	from, to := elsewhere(t, "seen-2")
	must(t, "migrate", "seen-2", "--to", to, "--detach")
	shows("the move", `document.querySelector(".moves li")?.textContent.includes("seen-2")`)
	time.Sleep(2 * time.Second)
	picture("console")
	shows("the guest at its new host", `document.querySelector('[aria-label="Guests on `+to+`"]').textContent.includes("seen-2")`)
	t.Logf("moved from %s to %s", from, to)
	if err := chromedp.Run(ctx, chromedp.Click(`nav a[href="#/runs"]`), chromedp.Click(`//button[text()="seen-run"]`)); err != nil {
		t.Fatal(err)
	}
	shows("the run's output", `document.querySelector("main pre")?.textContent.includes("LAMMPS")`)
	picture("console-run")
}
