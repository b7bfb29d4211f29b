// events.js - what has happened, and why, as it happens.

import { follow } from "./control.js";
import { h, when } from "./dom.js";
import { trouble } from "./state.js";

const most = 500;

export function eventsView(main) {
  const filter = h("input", { id: "filter", type: "search", oninput: () => [...list.children].forEach(hide) }), list = h("ol", { class: "log", reversed: true, "aria-label": "Events, newest first" });
  const reading = new AbortController();
  main.append(h("h2", {}, "Events"), h("div", { class: "row" }, h("label", { for: "filter" }, "Show those with"), filter), list);
  const hide = (e) => { e.hidden = !e.textContent.toLowerCase().includes(filter.value.toLowerCase()); };
  let last = 0;
  const read = () => follow("Events", { last: last ? 0 : 200, after: String(last), follow: true }, ({ event }) => {
    last = event.id;
    const kind = { SEVERITY_ERROR: "error", SEVERITY_WARNING: "warning" }[event.severity] ?? "";
    const e = h("li", { class: kind }, h("time", { class: "quiet", datetime: event.at }, when(event.at)), h("span", {}, `${event.kind} ${event.name}`), h("span", {}, (kind ? `${kind}: ` : "") + event.message));
    hide(e);
    list.prepend(e);
    if (list.children.length > most) list.lastChild.remove();
  }, reading.signal).then(() => setTimeout(read, 1000), (e) => {
    if (e.name === "AbortError") return;
    trouble(`events: ${e.message}`);
    setTimeout(() => { if (!reading.signal.aborted) read(); }, 3000);
  });
  read();
  return { leave: () => reading.abort() };
}
