// policy.js - the rules by which guests move: edited, tested on what has happened, applied.

import { call } from "./control.js";
import { ask, h, say, when } from "./dom.js";
import { trouble } from "./state.js";

export function policyView(main) {
  const text = h("textarea", { id: "text", wrap: "off", spellcheck: "false", "aria-describedby": "hint" }), versions = h("select", { id: "versions" }), span = h("select", { id: "span" },
    h("option", { value: 3600 }, "the last hour"), h("option", { value: 86400 }, "the last day"));
  const result = h("div", { "aria-live": "polite" }), note = h("input", { id: "note", maxlength: 200 });
  main.append(h("h2", {}, "Policy"), h("p", { id: "hint", class: "quiet" }, "One YAML file. A test replays what the hosts and guests have done through the real decisions, and changes nothing."),
    h("div", { class: "row" }, h("label", { for: "versions" }, "Version"), versions),
    h("label", { for: "text" }, "Text"), text,
    h("div", { class: "row" }, h("label", { for: "span" }, "Test on"), span, h("button", { type: "button", onclick: test }, "Test"),
      h("label", { for: "note" }, "Note"), note, h("button", { type: "button", class: "main", onclick: apply }, "Apply")),
    result);
  let policies = [], inForce = 0;

  // load shows the versions, and the text of the one in force unless the editor keeps its own.
  async function load(keep = false) {
    try {
      policies = (await call("ListPolicies")).policies ?? [];
    } catch (e) {
      trouble(e.message);
      return;
    }
    inForce = policies[0]?.version ?? 0;
    versions.replaceChildren(...policies.map((p, i) => h("option", { value: i }, `${p.version}${i ? "" : ", in force"}${p.note ? `: ${p.note}` : ""}, ${when(p.meta?.created)}`)));
    if (keep) versions.selectedIndex = -1;
    else text.value = policies[0]?.text ?? "";
  }
  versions.onchange = () => { text.value = policies[versions.value]?.text ?? ""; };

  async function test() {
    result.replaceChildren(h("p", {}, "Replaying ..."));
    try {
      const r = await call("TestPolicy", { text: text.value, since: new Date(Date.now() - 1000 * Number(span.value)).toISOString() });
      const steps = r.steps ?? [];
      result.replaceChildren(h("h2", {}, steps.length ? `It would have done this (${steps.length})` : "It would have done nothing"),
        h("ol", { class: "log" }, ...steps.map((s) => h("li", {}, h("time", { class: "quiet", datetime: s.at }, when(s.at)), h("span", {}, s.policy ?? ""), h("span", {}, s.message ?? "")))),
        ...(r.notes ?? []).map((n) => h("p", { class: "quiet" }, n)));
    } catch (e) {
      result.replaceChildren(h("p", { class: "error" }, e.message));
    }
  }

  async function apply() {
    if (!await ask("Apply this policy? Guests move by it from now on.", "Apply")) return;
    result.replaceChildren();
    try {
      await call("ApplyPolicy", { text: text.value, note: note.value, expectVersion: inForce });
    } catch (e) {
      const other = e.code === "failed_precondition"; // somebody else has applied another version
      if (other) await load(true);
      result.replaceChildren(h("p", { class: "error" }, `The policy is not applied: ${e.message}`), ...other ? [h("p", {}, "It is among the versions above. Apply again to replace it.")] : []);
      return;
    }
    say(result, "It is in force.");
    note.value = "";
    load();
  }
  load();
  return {};
}
