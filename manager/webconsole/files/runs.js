// runs.js - runs, and what they have written.

import { call, follow } from "./control.js";
import { ask, h, keyed, say, table, when, word } from "./dom.js";
import { attempt, trouble } from "./state.js";

const kept = 200_000; // characters of output

export function runsView(main) {
  let chosen = "", reading = null, again = null, left = false;
  const runs = table("Runs, newest first", ["Run", "Cluster", "State", "Began", "Command"]);
  const head = h("h2"), out = h("pre", { tabindex: 0, "aria-label": "Output of the run" }), cancel = h("button", { type: "button", hidden: true, onclick: stop }, "Cancel the run");
  main.append(h("h2", {}, "Runs"), runs.e, head, h("div", { class: "row" }, cancel), out);
  head.hidden = out.hidden = true;

  async function stop() {
    const name = chosen;
    if (!await ask(`Cancel run ${name}? Its processes are ended.`, "Cancel the run")) return;
    await attempt(`cancel run ${name}`, `run ${name} is being cancelled`, () => call("CancelRun", { name }));
    load();
  }

  function choose(run) {
    reading?.abort();
    reading = new AbortController();
    chosen = run.meta.name;
    head.hidden = out.hidden = false;
    say(head, `Output of ${chosen}`);
    out.replaceChildren();
    // Each stream has a decoder, and the offset at which its last part ended.
    const streams = [1, 2].map(() => ({ decoder: new TextDecoder(), end: 0 }));
    const write = (text, stream, offset) => {
      if (!text) return;
      const bottom = out.scrollTop + out.clientHeight > out.scrollHeight - 30;
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), at = Number(offset ?? stream.end);
      if (at < stream.end) {
        stream.decoder = new TextDecoder();
        out.append("\n[The run went back to a checkpoint. Its output goes on from there.]\n");
      }
      stream.end = at + bytes.length;
      out.append(stream.decoder.decode(bytes, { stream: true }));
      if (out.textContent.length > 2 * kept) out.textContent = out.textContent.slice(-kept);
      if (bottom) out.scrollTop = out.scrollHeight;
    };
    follow("RunOutput", { name: chosen, follow: true }, (m) => { write(m.stdout, streams[0], m.stdoutOffset); write(m.stderr, streams[1], m.stderrOffset); }, reading.signal)
      .catch((e) => { if (e.name !== "AbortError") trouble(`output of ${chosen}: ${e.message}`); });
    draw();
  }

  let list = [];
  function draw() {
    keyed(runs.body, list, (r) => r.meta.uid, (r) => h("tr", {}, ...runs.cells()), (e, r) => {
      const [name, cluster, state, began, command] = e.children;
      if (!name.firstChild) name.append(h("button", { type: "button", onclick: () => choose(r) }, r.meta.name));
      e.setAttribute("aria-selected", r.meta.name === chosen);
      say(cluster, r.spec?.cluster ?? "");
      say(state, word(r.state, "RUN_STATE_") + (r.exitCode ? `, status ${r.exitCode}` : "") + (r.message ? `: ${r.message}` : ""));
      state.className = r.state === "RUN_STATE_FAILED" ? "error" : "";
      say(began, when(r.started ?? r.meta.created));
      say(command, (r.spec?.command ?? []).join(" "));
    });
    const now = list.find((r) => r.meta.name === chosen), focused = document.activeElement === cancel;
    cancel.hidden = !now || !/_(PENDING|STARTING|RUNNING)$/.test(now.state);
    if (focused && cancel.hidden) runs.body.querySelector("[aria-selected=true] button")?.focus();
  }

  async function load() {
    try {
      list = ((await call("ListRuns")).runs ?? []).sort((a, b) => ((a.meta.created ?? "") < (b.meta.created ?? "") ? 1 : -1)).slice(0, 100);
      draw();
    } catch (e) {
      trouble(e.message);
    }
    clearTimeout(again);
    if (!left) again = setTimeout(load, 2000);
  }
  load();
  return { leave() { left = true; reading?.abort(); clearTimeout(again); } };
}
