package manager

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// link makes a link to the web console, and returns its key.
func (r *running) link(c watariv1connect.ControlServiceClient) (url, key string) {
	r.t.Helper()
	made, err := c.CreateConsoleLink(r.t.Context(), connect.NewRequest(&v1.CreateConsoleLinkRequest{}))
	if err != nil {
		r.t.Fatal(err)
	}
	_, key, found := strings.Cut(made.Msg.Url, r.url+"/console/#")
	if !found {
		r.t.Fatalf("the link is %s", made.Msg.Url)
	}
	return made.Msg.Url, key
}

// browser is a client without a certificate, like a browser.
type browser struct {
	r      *running
	http   *http.Client
	cookie string
}

func (r *running) browser() *browser {
	return &browser{r: r, http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
}

// do makes a request, and returns the status and the body. header has pairs of names and values.
func (b *browser) do(method, path, body string, header ...string) (int, string) {
	b.r.t.Helper()
	q, err := http.NewRequest(method, b.r.url+path, strings.NewReader(body))
	if err != nil {
		b.r.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Connect-Protocol-Version", "1")
	if b.cookie != "" {
		q.Header.Set("Cookie", b.cookie)
	}
	for pair := range slices.Chunk(header, 2) {
		q.Header.Set(pair[0], pair[1])
	}
	resp, err := b.http.Do(q)
	if err != nil {
		b.r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	for _, c := range resp.Cookies() {
		if !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
			b.r.t.Errorf("the cookie is %v", c)
		}
		b.cookie = c.Name + "=" + c.Value
	}
	return resp.StatusCode, string(text)
}

func (b *browser) logIn(key string) int {
	b.r.t.Helper()
	body, _ := json.Marshal(map[string]string{"key": key})
	status, _ := b.do(http.MethodPost, "/console/session", string(body))
	return status
}

func TestWhoUsesTheWebConsole(t *testing.T) {
	r := start(t, t.TempDir())
	ann, _ := r.user("ann", nil)
	const whoAmI, policies = "/console/api/watari.v1.ControlService/WhoAmI", "/console/api/watari.v1.ControlService/ListPolicies"
	b := r.browser()
	if status, body := b.do(http.MethodPost, whoAmI, "{}"); status != http.StatusUnauthorized || !strings.Contains(body, "watari console") {
		t.Errorf("without a cookie: %d %s", status, body)
	}
	if status := b.logIn("AAAAAAAAAAAAAAAAAAAAAAAAAA"); status != http.StatusUnauthorized {
		t.Errorf("with a made-up key: %d", status)
	}
	_, key := r.link(ann)
	elsewhere := [][]string{{"Origin", "https://elsewhere.example"}, {"Sec-Fetch-Site", "cross-site"}}
	for _, header := range elsewhere {
		if status, body := b.do(http.MethodPost, "/console/session", `{"key": "`+key+`"}`, header...); status != http.StatusForbidden {
			t.Errorf("a log-in from another site's page (%v): %d %s", header, status, body)
		}
	}
	if status := b.logIn(key); status != http.StatusNoContent {
		t.Fatalf("with a link's key: %d", status)
	}
	if status := r.browser().logIn(key); status != http.StatusUnauthorized {
		t.Errorf("the link is good twice: %d", status)
	}
	if status, body := b.do(http.MethodPost, whoAmI, "{}"); status != http.StatusOK || !strings.Contains(body, `"ann"`) {
		t.Errorf("with the cookie: %d %s", status, body)
	}
	if status, body := b.do(http.MethodPost, policies, "{}"); status != http.StatusForbidden || !strings.Contains(body, "not an administrator") {
		t.Errorf("an ordinary user reads policies: %d %s", status, body)
	}
	for _, header := range elsewhere {
		if status, body := b.do(http.MethodPost, whoAmI, "{}", header...); status != http.StatusForbidden {
			t.Errorf("from another site's page (%v): %d %s", header, status, body)
		}
		if status, body := b.do(http.MethodDelete, "/console/session", "", header...); status != http.StatusForbidden {
			t.Errorf("a log-out from another site's page (%v): %d %s", header, status, body)
		}
	}
	if status, _ := b.do(http.MethodPost, "/watari.v1.ControlService/WhoAmI", "{}"); status != http.StatusUnauthorized {
		t.Errorf("a cookie stands for a certificate: %d", status)
	}
	if status, body := b.do(http.MethodPost, "/console/api/watari.v1.ControlService/CreateConsoleLink", "{}"); status != http.StatusForbidden {
		t.Errorf("a session makes a link to its successor: %d %s", status, body)
	}
	other := *b
	ended := make(chan string)
	go func() {
		follow := `{"follow": true}`
		message := "\x00\x00\x00\x00" + string(rune(len(follow))) + follow // the envelope of a message in a stream
		_, body := other.do(http.MethodPost, "/console/api/watari.v1.ControlService/Events", message, "Content-Type", "application/connect+json")
		ended <- body
	}()
	select {
	case body := <-ended:
		t.Errorf("a stream does not last: %q", body)
	case <-time.After(2 * time.Second):
	}
	if status, _ := b.do(http.MethodDelete, "/console/session", ""); status != http.StatusNoContent {
		t.Errorf("log out: %d", status)
	}
	select {
	case body := <-ended:
		if !strings.Contains(body, "you are not logged in") {
			t.Errorf("a stream after the log-out: %q", body)
		}
	case <-time.After(30 * time.Second):
		t.Error("a stream goes on after the log-out")
	}
	if status, _ := other.do(http.MethodPost, whoAmI, "{}"); status != http.StatusUnauthorized {
		t.Errorf("after the log-out: %d", status)
	}
	_, key = r.link(ann)
	if status := b.logIn(key); status != http.StatusNoContent {
		t.Fatal(status)
	}
	if _, err := r.admin.RemoveUser(t.Context(), connect.NewRequest(&v1.RemoveUserRequest{Name: "ann"})); err != nil {
		t.Fatal(err)
	}
	if status, body := b.do(http.MethodPost, whoAmI, "{}"); status != http.StatusUnauthorized || !strings.Contains(body, "removed") {
		t.Errorf("after the user was removed: %d %s", status, body)
	}
	resp, err := b.http.Get(r.url + "/console/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if policy := resp.Header.Get("Content-Security-Policy"); resp.StatusCode != http.StatusOK || !strings.Contains(policy, "script-src 'self'") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("the page: %d, policy %q", resp.StatusCode, policy)
	}
}

// chromium returns a browser's window, and a function that returns the errors in its console.
func chromium(t *testing.T, more ...chromedp.ExecAllocatorOption) (ctx context.Context, complaints func() []string) {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "google-chrome", "chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("chromium is not installed (apt-get install chromium)")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("ignore-certificate-errors", true),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.WindowSize(1280, 800), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), append(options, more...)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	var mu sync.Mutex
	var list []string
	chromedp.ListenTarget(ctx, func(e any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			list = append(list, e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError {
				list = append(list, fmt.Sprint(e.Args))
			}
		}
	})
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return list
	}
}

// shows waits until a script's expression is true.
func shows(t *testing.T, ctx context.Context, what, expression string) {
	t.Helper()
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := chromedp.Run(limited, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(100*time.Millisecond))); err != nil {
		var text string
		_ = chromedp.Run(ctx, chromedp.Evaluate("document.body.innerText", &text))
		t.Fatalf("the page does not show %s: %v; it shows:\n%s", what, err, text)
	}
}

// press presses keys, one after the other.
func press(t *testing.T, ctx context.Context, keys string) {
	t.Helper()
	if err := chromedp.Run(ctx, chromedp.KeyEvent(keys)); err != nil {
		t.Fatal(err)
	}
}

// tabTo presses Tab until the element has the focus for which an expression of "e" is true.
func tabTo(t *testing.T, ctx context.Context, what, expression string) {
	t.Helper()
	for range 60 {
		press(t, ctx, kb.Tab)
		var there bool
		if err := chromedp.Run(ctx, chromedp.Evaluate("(() => { const e = document.activeElement; return "+expression+"; })()", &there)); err != nil {
			t.Fatal(err)
		}
		if there {
			return
		}
	}
	t.Fatalf("%s cannot be reached with the Tab key", what)
}

// unnamed returns the controls that a screen reader cannot name.
func unnamed(t *testing.T, ctx context.Context) (list []string) {
	t.Helper()
	controls := []string{"button", "link", "textbox", "searchbox", "combobox", "image", "progressbar", "dialog"}
	for _, n := range heard(t, ctx) {
		if slices.Contains(controls, n.role) && n.name == "" {
			list = append(list, n.role)
		}
	}
	return list
}

// thing is an element of the page, as a screen reader tells of it.
type thing struct{ role, name string }

// heard returns what a screen reader finds.
func heard(t *testing.T, ctx context.Context) (list []thing) {
	t.Helper()
	type text struct {
		Value any `json:"value"`
	}
	var tree struct {
		Nodes []struct {
			Ignored bool  `json:"ignored"`
			Role    *text `json:"role"`
			Name    *text `json:"name"`
		} `json:"nodes"`
	}
	err := chromedp.Run(ctx, chromedp.ActionFunc(func(ctx context.Context) error {
		return cdp.Execute(ctx, "Accessibility.getFullAXTree", nil, &tree)
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range tree.Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		found := thing{role: fmt.Sprint(n.Role.Value)}
		if n.Name != nil {
			found.name = fmt.Sprint(n.Name.Value)
		}
		list = append(list, found)
	}
	if len(tree.Nodes) < 10 {
		t.Errorf("a screen reader finds %d things", len(tree.Nodes))
	}
	return list
}

// TestTheWebConsoleInABrowser uses the console with the mouse, the keyboard alone, a screen reader, and on a phone.
func TestTheWebConsoleInABrowser(t *testing.T) {
	ctx, complaints := chromium(t)
	r := start(t, t.TempDir())
	r.host("a1")
	r.host("a2")
	r.image("mpi")
	asked := spec(3)
	if _, err := r.admin.CreateCluster(t.Context(), connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: asked})); err != nil {
		t.Fatal(err)
	}
	url, _ := r.link(r.admin)
	if err := chromedp.Run(ctx, runtime.Enable(), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "three guests that run", `[...document.querySelectorAll(".chip")].filter((e) => e.getAttribute("aria-label").includes("running")).length === 3`)
	shows(t, ctx, "both hosts", `document.querySelectorAll(".host").length === 2`)
	shows(t, ctx, "no key in its address", `!location.href.includes("`+url[strings.Index(url, "#")+1:]+`")`)

	t.Run("keyboard", func(t *testing.T) {
		tabTo(t, ctx, "the first guest", `e.classList.contains("chip") && e.textContent === "md-0"`)
		press(t, ctx, kb.Enter)
		shows(t, ctx, "a guest's details", `document.querySelector("dialog[open] h2")?.textContent === "Guest md-0"`)
		shows(t, ctx, "why it is there", `document.querySelectorAll("dialog li").length > 0`)
		tabTo(t, ctx, "the button that moves it", `e.textContent === "Move"`)
		press(t, ctx, kb.Enter)
		shows(t, ctx, "the move", `document.querySelector(".moves li")?.textContent.startsWith("md-0: a")`)
		tabTo(t, ctx, "the events", `e.hash === "#/events"`)
		press(t, ctx, kb.Enter)
		shows(t, ctx, "events", `[...document.querySelectorAll(".log li")].some((e) => e.textContent.includes("md-0"))`)
		tabTo(t, ctx, "the filter", `e.id === "filter"`)
		press(t, ctx, "cluster")
		shows(t, ctx, "fewer events", `[...document.querySelectorAll(".log li")].filter((e) => !e.hidden).every((e) => e.textContent.includes("cluster"))`)
	})
	t.Run("policy", func(t *testing.T) {
		if err := chromedp.Run(ctx, chromedp.Click(`nav a[href="#/policy"]`)); err != nil {
			t.Fatal(err)
		}
		shows(t, ctx, "the policy in force", `document.getElementById("text")?.value.includes("harvest")`)
		if err := chromedp.Run(ctx, chromedp.SetValue("#text", "policies: [", chromedp.ByQuery), chromedp.Click(`//button[text()="Test"]`)); err != nil {
			t.Fatal(err)
		}
		shows(t, ctx, "the error of a policy with its line", `document.querySelector("main .error")?.textContent.includes("line")`)
		if err := chromedp.Run(ctx, chromedp.Evaluate(`document.getElementById("versions").dispatchEvent(new Event("change"))`, nil), chromedp.Click(`//button[text()="Test"]`)); err != nil {
			t.Fatal(err)
		}
		shows(t, ctx, "what a policy would have done", `document.querySelector("main").textContent.includes("It would have done")`)
	})
	t.Run("a run that goes back", func(t *testing.T) {
		if err := chromedp.Run(ctx, chromedp.Evaluate(runThatGoesBack, nil), chromedp.Click(`nav a[href="#/runs"]`)); err != nil {
			t.Fatal(err)
		}
		shows(t, ctx, "the run", `[...document.querySelectorAll("td button, th button")].some((e) => e.textContent === "r1")`)
		if err := chromedp.Run(ctx, chromedp.Click(`//button[text()="r1"]`)); err != nil {
			t.Fatal(err)
		}
		shows(t, ctx, "that the run went back once", `document.querySelector("main pre").textContent === "one two\n[The run went back to a checkpoint. Its output goes on from there.]\nTWO three"`)
		if err := chromedp.Run(ctx, chromedp.Evaluate(`fetch = window.unchanged`, nil)); err != nil {
			t.Fatal(err)
		}
	})
	for _, view := range []string{"map", "runs", "checkpoints", "events", "policy"} {
		t.Run(view, func(t *testing.T) {
			var wide int
			if err := chromedp.Run(ctx, chromedp.Click(fmt.Sprintf(`nav a[href="#/%s"]`, view)), emulation.SetDeviceMetricsOverride(390, 844, 2, true),
				chromedp.Sleep(1500*time.Millisecond), chromedp.Evaluate(`document.scrollingElement.scrollWidth`, &wide)); err != nil {
				t.Fatal(err)
			}
			if wide > 390 {
				t.Errorf("on a phone, the page is %d wide", wide)
			}
			if list := unnamed(t, ctx); len(list) > 0 {
				t.Errorf("a screen reader cannot name: %v", list)
			}
			screenshot(t, ctx, "phone-"+view)
			if err := chromedp.Run(ctx, emulation.ClearDeviceMetricsOverride()); err != nil {
				t.Fatal(err)
			}
			screenshot(t, ctx, view)
		})
	}
	if err := chromedp.Run(ctx, chromedp.Click("#logout")); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "that nobody is logged in", `document.querySelector("main").textContent.includes("You have logged out")`)
	if list := complaints(); len(list) > 0 {
		t.Errorf("the browser complains: %q", list)
	}
}

// runThatGoesBack is a script that answers for the manager: a run is restored from a checkpoint while it writes.
const runThatGoesBack = `
window.unchanged = fetch;
fetch = (url, options) => {
	if (url.endsWith("/ListRuns")) return Promise.resolve(Response.json({ runs: [{ meta: { name: "r1", uid: "1" }, state: "RUN_STATE_RUNNING" }] }));
	if (!url.endsWith("/RunOutput")) return window.unchanged(url, options);
	const frame = (flags, message) => {
		const text = new TextEncoder().encode(JSON.stringify(message)), head = new Uint8Array(5);
		new DataView(head.buffer).setUint32(1, text.length);
		head[0] = flags;
		return [head, text];
	};
	return Promise.resolve(new Response(new Blob([
		...frame(0, { stdout: btoa("one "), stdoutOffset: "0" }), ...frame(0, { stdout: btoa("two"), stdoutOffset: "4" }),
		...frame(0, { stdout: btoa("TWO "), stdoutOffset: "4" }), ...frame(0, { stdout: btoa("three"), stdoutOffset: "8" }), ...frame(2, {})])));
};
`

// screenshot writes a picture of the page into the folder that the environment names, if it names one.
func screenshot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	folder := os.Getenv("WATARI_SCREENSHOTS")
	if folder == "" {
		return
	}
	err := chromedp.Run(ctx, chromedp.ActionFunc(func(ctx context.Context) error {
		picture, err := page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).Do(ctx)
		if err != nil {
			return err
		}
		return os.WriteFile(folder+"/"+name+".png", picture, 0o644)
	}))
	if err != nil {
		t.Fatal(err)
	}
}
