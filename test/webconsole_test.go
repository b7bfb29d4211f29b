package test

// webconsole_test.go - the web console of a lab with real guests, in a real browser.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestWebConsoleOfALab watches a program and a move in the console, and makes, restores and deletes a checkpoint there. With WATARI_SCREENSHOTS it writes the README's picture.
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
	ctx, cancel = context.WithTimeout(ctx, 10*time.Minute)
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
		if err := chromedp.Run(ctx, chromedp.FullScreenshot(&png, 100)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := chromedp.Run(ctx, chromedp.Navigate("https://127.0.0.1"+listen[strings.LastIndex(listen, ":"):]+"/console/"+path)); err != nil {
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

	click := func(selectors ...string) {
		t.Helper()
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		for _, selector := range selectors {
			if err := chromedp.Run(limited, chromedp.Click(selector)); err != nil {
				t.Fatalf("click %s: %v", selector, err)
			}
		}
	}
	click(`nav a[href="#/checkpoints"]`)
	shows("the cluster", `document.getElementById("cluster")?.value === "seen"`)
	name := ""
	for try := 1; ; try++ {
		name = fmt.Sprintf("seen-c%d", try)
		click(`//button[text()="Make a checkpoint"]`)
		row := `[...document.querySelectorAll("tbody tr")].find((e) => e.firstChild.textContent === "` + name + `")`
		shows("the checkpoint", row)
		var made savedCluster
		until(t, 3*time.Minute, "checkpoint "+name+" ends", func() (bool, string) {
			made = decoded[savedCluster](t, "checkpoint", "show", name)
			return strings.HasSuffix(made.State, "_DONE") || strings.HasSuffix(made.State, "_FAILED"), made.State + " " + made.Message
		})
		shows("the end of the checkpoint", `/^(done|failed)/.test(`+row+`.children[2].textContent)`)
		if strings.HasSuffix(made.State, "_DONE") {
			break
		}
		if try == 4 {
			t.Fatalf("checkpoint %s: %s", name, made.Message)
		}
		t.Logf("checkpoint %s: %s", name, made.Message)
	}
	picture("console-checkpoints")
	click(`button[aria-label="Restore `+name+`"]`, `//dialog//button[text()="Go back"]`)
	until(t, 2*time.Minute, "the program goes on from the checkpoint", func() (bool, string) {
		r := decoded[run](t, "run", "show", "seen-run")
		return r.Restores == 1 && strings.HasSuffix(r.State, "_RUNNING"), fmt.Sprintf("%+v", r)
	})
	settled(t, "seen", 4)
	click(`button[aria-label="Delete `+name+`"]`, `//dialog//button[text()="Delete"]`)
	until(t, time.Minute, "the checkpoint is deleted", func() (bool, string) {
		out := must(t, "checkpoint", "list", "seen")
		return !strings.Contains(out, name), out
	})
}
