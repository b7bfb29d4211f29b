// dom.js - makes elements. Text from hosts, guests and users always becomes text, never markup.

// h makes an element: h("p", {class: "quiet", onclick: f}, "text", child).
export function h(tag, properties = {}, ...children) {
  const e = tag === "svg" || svg.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.filter((c) => c !== undefined && c !== null));
  return e;
}
const svg = new Set(["rect", "path", "title"]);

// say sets an element's text, if it has changed.
export function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// keyed makes the children of a parent those that make(item) returns, and keeps the elements of items that it had before, so that focus and
// selection stay.
export function keyed(parent, items, keyOf, make, update) {
  const have = parent.kept ??= new Map();
  const now = new Set(items.map(keyOf));
  for (const [key, e] of have) { // first, so that no element has to change places with one that goes, and loses the focus
    if (!now.has(key)) {
      e.remove();
      have.delete(key);
    }
  }
  let at = null;
  for (const item of items) {
    const key = keyOf(item);
    let e = have.get(key);
    if (!e) have.set(key, (e = make(item)));
    update(e, item);
    const next = at ? at.nextSibling : parent.firstChild;
    if (next !== e) parent.insertBefore(e, next);
    at = e;
  }
}

// table makes a table whose rows stack on a narrow screen.
export function table(caption, columns) {
  const body = h("tbody");
  const e = h("div", { class: "table" }, h("table", { class: "stack" }, h("caption", { class: "heard" }, caption),
    h("thead", {}, h("tr", {}, ...columns.map((c) => h("th", { scope: "col" }, c)))), body));
  return { e, body, cells: () => columns.map((c) => h("td", { "data-label": c })) };
}

// word turns an enum's value into words: "GUEST_STATE_RUNNING" becomes "running".
export const word = (value = "", prefix = "") => value.replace(prefix, "").toLowerCase().replaceAll("_", " ");

// size says bytes for people.
export function size(bytes) {
  let n = Number(bytes ?? 0), unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; unit++; }
  return `${n >= 10 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// when says a time of day, with the date if it is not today.
export function when(at) {
  if (!at) return "";
  const d = new Date(at), today = new Date().toDateString() === d.toDateString();
  return d.toLocaleString([], today ? { timeStyle: "medium" } : { dateStyle: "short", timeStyle: "medium" });
}

// ask shows a question, and resolves to whether the answer is yes.
export function ask(question, yes) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": question }, h("p", {}, question),
      h("div", { class: "row" }, h("button", { class: "main", type: "button", onclick: () => dialog.close("yes") }, yes),
        h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel")));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
