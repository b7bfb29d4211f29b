package manager

// webconsole_acts_test.go - what users change in the web console: policies, checkpoints, runs and moves. A real browser, and the keyboard
// alone.

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	v1 "watari/api/watariv1"
	"watari/policy"
)

// open logs a browser in as the administrator.
func (r *running) open(ctx context.Context) {
	r.t.Helper()
	url, _ := r.link(r.admin)
	if err := chromedp.Run(ctx, runtime.Enable(), chromedp.Navigate(url)); err != nil {
		r.t.Fatal(err)
	}
	shows(r.t, ctx, "who is logged in", `document.getElementById("who").textContent === "admin"`)
}

// goTo chooses a view with the keyboard.
func goTo(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	tabTo(t, ctx, "the view "+name, `e.hash === "#/`+name+`"`)
	press(t, ctx, kb.Enter)
	shows(t, ctx, "the view "+name, `document.querySelector('nav a[aria-current]')?.hash === "#/`+name+`"`)
}

// pressButton presses a button of the page with the keyboard. name is its accessible name.
func pressButton(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	tabTo(t, ctx, "the button "+name, `e.tagName === "BUTTON" && !e.closest("dialog") && (e.getAttribute("aria-label") ?? e.textContent) === "`+name+`"`)
	press(t, ctx, kb.Enter)
}

// asked waits for a question with the focus on its first answer, and gives an answer with the keyboard.
func asked(t *testing.T, ctx context.Context, question, yes string, answer bool) {
	t.Helper()
	shows(t, ctx, "the question "+question, `document.querySelector("dialog[open]")?.getAttribute("aria-label").startsWith("`+question+`")`)
	shows(t, ctx, "the focus on the answer", `document.activeElement.closest("dialog") && document.activeElement.textContent === "`+yes+`"`)
	if !slices.ContainsFunc(heard(t, ctx), func(e thing) bool { return e.role == "dialog" && strings.HasPrefix(e.name, question) }) {
		t.Errorf("a screen reader does not find the question %s", question)
	}
	if list := unnamed(t, ctx); len(list) > 0 {
		t.Errorf("in the question %s, a screen reader cannot name: %v", question, list)
	}
	press(t, ctx, map[bool]string{true: kb.Enter, false: kb.Escape}[answer])
	shows(t, ctx, "no question", `!document.querySelector("dialog")`)
}

// focused checks which control has the focus, by its accessible name.
func focused(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	shows(t, ctx, "the focus on "+name, `(document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent) === "`+name+`"`)
}

// found checks that a screen reader finds things.
func found(t *testing.T, ctx context.Context, want ...thing) {
	t.Helper()
	all := heard(t, ctx)
	for _, w := range want {
		if !slices.Contains(all, w) {
			t.Errorf("a screen reader does not find the %s %q; it finds %q", w.role, w.name, all)
		}
	}
}

// inForce returns the policy in force.
func (r *running) inForce() *v1.Policy {
	r.t.Helper()
	list, err := r.admin.ListPolicies(r.t.Context(), connect.NewRequest(&v1.ListPoliciesRequest{}))
	if err != nil || len(list.Msg.Policies) == 0 {
		r.t.Fatalf("no policy is in force: %v", err)
	}
	return list.Msg.Policies[0]
}

// Texts of policies. The third line of the wrong one has an error.
const (
	wrongPolicy   = "owners:\n- busy:\n  - when: host.owner_cpuu > 1.0\n  idle: {when: 'true'}\n"
	harvestPolicy = "owners:\n- busy:\n  - when: host.owner_cpu > 0.75\n  idle: {when: host.owner_cpu < 0.2}\nharvest: {}\n"
)

func TestAPolicyIsAppliedInABrowser(t *testing.T) {
	ctx, complaints := chromium(t)
	r := start(t, t.TempDir())
	r.busy = true
	r.host("a1")
	r.open(ctx)
	goTo(t, ctx, "policy")
	shows(t, ctx, "the policy in force", `document.getElementById("text")?.value.includes("harvest")`)
	found(t, ctx, thing{"combobox", "Version"}, thing{"textbox", "Text"}, thing{"combobox", "Test on"}, thing{"button", "Test"}, thing{"textbox", "Note"}, thing{"button", "Apply"})
	write := func(text string) {
		t.Helper()
		tabTo(t, ctx, "the text", `e.id === "text"`)
		if err := chromedp.Run(ctx, chromedp.KeyEvent("a", chromedp.KeyModifiers(input.ModifierCtrl))); err != nil {
			t.Fatal(err)
		}
		press(t, ctx, strings.ReplaceAll(text, "\n", "\r"))
		var now string
		if err := chromedp.Run(ctx, chromedp.Value("#text", &now, chromedp.ByQuery)); err != nil || now != text {
			t.Fatalf("the text is %q: %v", now, err)
		}
	}
	state := func(want v1.HostState) {
		t.Helper()
		r.await("the host is "+want.String(), func() bool {
			hosts, err := r.admin.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
			return err == nil && hosts.Msg.Hosts[0].State == want
		})
	}
	// said waits until the page says something below the editor, where a screen reader hears it.
	said := func(what string, words ...string) {
		t.Helper()
		for _, word := range words {
			shows(t, ctx, what, `[...document.querySelectorAll('main [aria-live="polite"]')].some((e) => e.textContent.includes("`+word+`"))`)
		}
	}
	before := r.inForce()

	t.Run("a policy with an error", func(t *testing.T) {
		write(wrongPolicy)
		pressButton(t, ctx, "Test")
		said("the error of the test", "line 3", "undeclared reference", "owner_cpuu")
		pressButton(t, ctx, "Apply")
		asked(t, ctx, "Apply this policy?", "Apply", true)
		said("the error of the policy", "The policy is not applied", "line 3", "undeclared reference", "owner_cpuu")
		focused(t, ctx, "Apply")
		if now := r.inForce(); now.Version != before.Version {
			t.Errorf("version %d is in force", now.Version)
		}
	})
	t.Run("a test on what has happened", func(t *testing.T) {
		write(harvestPolicy)
		deadline := time.Now().Add(30 * time.Second)
		for there := false; !there; {
			pressButton(t, ctx, "Test")
			said("the answer", "It would have done")
			if err := chromedp.Run(ctx, chromedp.Evaluate(`document.querySelector("main .log")?.textContent.includes("host a1 takes no guests") ?? false`, &there)); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Fatal("the test does not tell that the owner uses the host")
			}
			time.Sleep(500 * time.Millisecond)
		}
		if now := r.inForce(); now.Version != before.Version {
			t.Errorf("the test has put version %d in force", now.Version)
		}
		state(v1.HostState_HOST_STATE_READY)
	})
	t.Run("no, and yes", func(t *testing.T) {
		tabTo(t, ctx, "the note", `e.id === "note"`)
		press(t, ctx, "owners first")
		pressButton(t, ctx, "Apply")
		asked(t, ctx, "Apply this policy?", "Apply", false)
		focused(t, ctx, "Apply")
		if now := r.inForce(); now.Version != before.Version {
			t.Errorf("version %d is in force although the answer was no", now.Version)
		}
		press(t, ctx, kb.Enter)
		asked(t, ctx, "Apply this policy?", "Apply", true)
		said("that it is in force", "It is in force.")
		if now := r.inForce(); now.Version != before.Version+1 || now.Text != harvestPolicy || now.Note != "owners first" || now.Meta.Owner != "admin" {
			t.Errorf("in force is %v", now)
		}
		state(v1.HostState_HOST_STATE_WITHDRAWN)
		shows(t, ctx, "the new version with its note, and no note for the next one",
			`document.getElementById("versions").selectedOptions[0].textContent.includes("2, in force: owners first") && document.getElementById("note").value === ""`)
	})
	t.Run("an earlier version", func(t *testing.T) {
		tabTo(t, ctx, "the versions", `e.id === "versions"`)
		press(t, ctx, kb.ArrowDown)
		shows(t, ctx, "the text of the earlier version", `document.getElementById("text").value.includes("harvest") && !document.getElementById("text").value.includes("host.owner_cpu > 0.75")`)
		pressButton(t, ctx, "Apply")
		asked(t, ctx, "Apply this policy?", "Apply", true)
		said("that it is in force", "It is in force.")
		if now := r.inForce(); now.Version != before.Version+2 || now.Text != before.Text || now.Note != "" {
			t.Errorf("in force is %v", now)
		}
	})
	t.Run("somebody else applies another one", func(t *testing.T) {
		if _, err := r.admin.ApplyPolicy(ctx, connect.NewRequest(&v1.ApplyPolicyRequest{Text: policy.Default + "\n# of somebody else\n"})); err != nil {
			t.Fatal(err)
		}
		write("harvest: {}\n")
		pressButton(t, ctx, "Apply")
		asked(t, ctx, "Apply this policy?", "Apply", true)
		said("that somebody else was faster", "The policy is not applied", "somebody else has changed it")
		if now := r.inForce(); now.Version != before.Version+3 {
			t.Errorf("version %d is in force", now.Version)
		}
		shows(t, ctx, "the text as it was written, and the other one among the versions",
			`document.getElementById("text").value === "harvest: {}\n" && document.getElementById("versions").options[0].textContent.includes("4, in force")`)
		press(t, ctx, kb.Enter)
		asked(t, ctx, "Apply this policy?", "Apply", true)
		said("that it is in force", "It is in force.")
		if now := r.inForce(); now.Version != before.Version+4 || now.Text != "harvest: {}\n" {
			t.Errorf("in force is %v", now)
		}
	})
	if list := complaints(); len(list) > 0 {
		t.Errorf("the browser complains: %q", list)
	}
}

func TestCheckpointsInABrowser(t *testing.T) {
	ctx, complaints := chromium(t)
	r := start(t, t.TempDir())
	r.host("a1")
	r.image("mpi")
	if _, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(2)})); err != nil {
		t.Fatal(err)
	}
	// kept returns the checkpoints as the manager has them, by name.
	kept := func() map[string]*v1.Checkpoint {
		list, err := r.admin.ListCheckpoints(ctx, connect.NewRequest(&v1.ListCheckpointsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]*v1.Checkpoint{}
		for _, c := range list.Msg.Checkpoints {
			all[c.Meta.Name] = c
		}
		return all
	}
	restore := func() *v1.Restore {
		list, err := r.admin.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{Name: "md"}))
		if err != nil {
			t.Fatal(err)
		}
		return list.Msg.Clusters[0].Restore
	}
	row := func(name string) string {
		return `[...document.querySelectorAll("main tbody tr")].find((e) => e.firstChild.textContent.split(" ")[0] === "` + name + `")`
	}
	r.open(ctx)
	shows(t, ctx, "two guests that run", `[...document.querySelectorAll(".chip")].filter((e) => e.getAttribute("aria-label").includes("running")).length === 2`)
	goTo(t, ctx, "checkpoints")
	shows(t, ctx, "the cluster", `document.getElementById("cluster")?.value === "md"`)

	t.Run("make", func(t *testing.T) {
		for _, name := range []string{"md-c1", "md-c2", "md-c3"} {
			pressButton(t, ctx, "Make a checkpoint")
			shows(t, ctx, "the checkpoint "+name, row(name)+`?.textContent.includes("done")`)
			if c := kept()[name]; c.GetState() != v1.CheckpointState_CHECKPOINT_STATE_DONE || c.Cluster != "md" || len(c.Members) != 2 || !strings.Contains(c.Reason, "admin") {
				t.Errorf("the manager has %v", c)
			}
			focused(t, ctx, "Make a checkpoint")
		}
		found(t, ctx, thing{"combobox", "Cluster"}, thing{"button", "Restore md-c1"}, thing{"button", "Pin md-c1"}, thing{"button", "Delete md-c1"}, thing{"table", "Checkpoints"})
	})
	t.Run("pin", func(t *testing.T) {
		pressButton(t, ctx, "Pin md-c1")
		shows(t, ctx, "that it is pinned", row("md-c1")+`.textContent.startsWith("md-c1 (pinned)")`)
		if !kept()["md-c1"].Pinned {
			t.Error("the manager has not pinned it")
		}
		focused(t, ctx, "Unpin md-c1")
		press(t, ctx, kb.Enter)
		shows(t, ctx, "that it is not pinned", `!`+row("md-c1")+`.textContent.includes("(pinned)")`)
		if kept()["md-c1"].Pinned {
			t.Error("the manager has not unpinned it")
		}
		focused(t, ctx, "Pin md-c1")
	})
	t.Run("restore", func(t *testing.T) {
		pressButton(t, ctx, "Restore md-c1")
		asked(t, ctx, "Go back to md-c1? What the guests of md have done since is lost.", "Go back", false)
		focused(t, ctx, "Restore md-c1")
		if now := restore(); now != nil {
			t.Errorf("the cluster goes back although the answer was no: %v", now)
		}
		press(t, ctx, kb.Enter)
		asked(t, ctx, "Go back to md-c1?", "Go back", true)
		shows(t, ctx, "what was done, to a screen reader", `document.getElementById("said").textContent === "cluster md goes back to md-c1"`)
		r.await("the cluster goes on from the checkpoint", func() bool {
			now := restore()
			return now.GetCheckpointUid() == kept()["md-c1"].Meta.Uid && now.State == v1.RestoreState_RESTORE_STATE_DONE
		})
	})
	t.Run("a refusal", func(t *testing.T) {
		if _, err := r.admin.StopGuest(ctx, connect.NewRequest(&v1.StopGuestRequest{Name: "md-1"})); err != nil {
			t.Fatal(err)
		}
		pressButton(t, ctx, "Make a checkpoint")
		shows(t, ctx, "what was refused, and why", `(e => !e.hidden && e.getAttribute("role") === "alert" && e.textContent.startsWith("make a checkpoint of cluster md: ") && e.textContent.includes("md-1"))(document.getElementById("trouble"))`)
		if n := len(kept()); n != 3 {
			t.Errorf("there are %d checkpoints", n)
		}
	})
	t.Run("somebody else deletes one", func(t *testing.T) {
		tabTo(t, ctx, "a button in the row below", `e.getAttribute("aria-label") === "Pin md-c1"`)
		if _, err := r.admin.DeleteCheckpoint(ctx, connect.NewRequest(&v1.DeleteCheckpointRequest{Name: "md-c2"})); err != nil {
			t.Fatal(err)
		}
		shows(t, ctx, "that it is gone", `!`+row("md-c2"))
		focused(t, ctx, "Pin md-c1")
	})
	t.Run("delete", func(t *testing.T) {
		pressButton(t, ctx, "Delete md-c3")
		asked(t, ctx, "Delete checkpoint md-c3?", "Delete", false)
		focused(t, ctx, "Delete md-c3")
		if kept()["md-c3"] == nil {
			t.Error("it is deleted although the answer was no")
		}
		next := []string{"Delete md-c1", "Make a checkpoint"} // has the focus after each
		for i, name := range []string{"md-c3", "md-c1"} {
			press(t, ctx, kb.Enter)
			asked(t, ctx, "Delete checkpoint "+name+"?", "Delete", true)
			shows(t, ctx, "that it is gone", `!`+row(name))
			if kept()[name] != nil {
				t.Errorf("the manager still has %s", name)
			}
			focused(t, ctx, next[i])
		}
	})
	if list := complaints(); len(list) > 0 {
		t.Errorf("the browser complains: %q", list)
	}
}

func TestARunIsCancelledInABrowser(t *testing.T) {
	ctx, complaints := chromium(t)
	r := start(t, t.TempDir())
	r.host("a1")
	r.image("mpi")
	if _, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"r1", "r2"} {
		if _, err := r.admin.CreateRun(ctx, connect.NewRequest(&v1.CreateRunRequest{Name: name, Spec: &v1.RunSpec{Cluster: "md", Command: []string{"lmp"}, Hold: true}})); err != nil {
			t.Fatal(err)
		}
	}
	state := func(name string) v1.RunState {
		list, err := r.admin.ListRuns(ctx, connect.NewRequest(&v1.ListRunsRequest{Name: name}))
		if err != nil {
			t.Fatal(err)
		}
		return list.Msg.Runs[0].State
	}
	r.open(ctx)
	goTo(t, ctx, "runs")
	pressButton(t, ctx, "r1")
	pressButton(t, ctx, "Cancel the run")
	asked(t, ctx, "Cancel run r1? Its processes are ended.", "Cancel the run", false)
	focused(t, ctx, "Cancel the run")
	if now := state("r1"); now != v1.RunState_RUN_STATE_PENDING {
		t.Errorf("the run is %v although the answer was no", now)
	}
	press(t, ctx, kb.Enter)
	asked(t, ctx, "Cancel run r1?", "Cancel the run", true)
	shows(t, ctx, "what was done, to a screen reader", `document.getElementById("said").textContent === "run r1 is being cancelled"`)
	shows(t, ctx, "that it is cancelled", `document.querySelector("main [aria-selected=true]").textContent.includes("cancelled")`)
	if now := state("r1"); now != v1.RunState_RUN_STATE_CANCELLED {
		t.Errorf("the run is %v", now)
	}
	focused(t, ctx, "r1") // the button that had the focus is gone
	if now := state("r2"); now != v1.RunState_RUN_STATE_PENDING {
		t.Errorf("the other run is %v", now)
	}
	if list := complaints(); len(list) > 0 {
		t.Errorf("the browser complains: %q", list)
	}
}

func TestARefusedMoveInABrowser(t *testing.T) {
	ctx, _ := chromium(t)
	r := start(t, t.TempDir())
	r.host("a1")
	r.image("mpi")
	if _, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	r.host("a2")
	if _, err := r.admin.DrainHost(ctx, connect.NewRequest(&v1.DrainHostRequest{Name: "a2"})); err != nil {
		t.Fatal(err)
	}
	r.open(ctx)
	tabTo(t, ctx, "the guest", `e.classList.contains("chip") && e.textContent === "md-0"`)
	press(t, ctx, kb.Enter)
	tabTo(t, ctx, "the choice of a host", `e.id === "to"`)
	press(t, ctx, kb.ArrowDown)
	tabTo(t, ctx, "the button that moves the guest", `e.textContent === "Move"`)
	press(t, ctx, kb.Enter)
	shows(t, ctx, "in the dialog, why the move is refused", `document.querySelector('dialog[open] [role="alert"]')?.textContent.startsWith("move guest md-0: ") && document.querySelector('dialog[open] [role="alert"]').textContent.includes("a2")`)
	if !slices.ContainsFunc(heard(t, ctx), func(e thing) bool { return e.role == "alert" }) {
		t.Error("a screen reader does not hear it")
	}
}
