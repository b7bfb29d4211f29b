// map.js - sites, hosts and guests, as they are now.

import { call } from "./control.js";
import { h, keyed, say, size, when, word } from "./dom.js";
import { attempt, isAway, moving, world } from "./state.js";

const samples = 120; // of a strip
const strips = new Map(); // host: its samples, oldest first
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export function mapView(main) {
  const moves = h("ul", { class: "moves", "aria-label": "Moves under way" }), sites = h("div");
  main.append(h("p", {}, h("span", { class: "key guests" }, "guests"), h("span", { class: "key owner" }, "owners"), h("span", { class: "key system" }, "system")), moves, sites);
  return {
    update() {
      const places = before(sites);
      drawMoves(moves);
      const names = [...new Set(world.hosts.map((x) => x.info?.site ?? "?"))].sort();
      keyed(sites, names, (s) => s, (s) => h("section", { "aria-label": `Site ${s}` }, h("h2", {}, `Site ${s}`), h("ul", { class: "site" })), (e, site) => {
        const hosts = world.hosts.filter((x) => (x.info?.site ?? "?") === site);
        keyed(e.lastChild, hosts, (x) => x.meta.uid, card, drawHost);
      });
      const homeless = world.guests.filter((g) => !g.host);
      keyed(homelessIn(sites, homeless.length), homeless, (g) => g.meta.uid, chip, drawChip);
      animate(sites, places);
    },
  };
}

// homelessIn returns the list of guests that no host has.
function homelessIn(sites, n) {
  const e = sites.homeless ??= h("section", { "aria-label": "Guests without a host" }, h("h2", {}, "Without a host"), h("ul", { class: "chips" }));
  if (n && !e.isConnected) sites.after(e);
  if (!n) e.remove();
  return e.lastChild;
}

function drawMoves(list) {
  keyed(list, moving(), (m) => m.meta.uid, () => h("li", {}, h("span"), h("progress", { max: 1 })), (e, m) => {
    const total = Number(m.progress?.totalBytes ?? 0), left = Number(m.progress?.remainingBytes ?? 0);
    say(e.firstChild, `${m.guest}: ${m.source} ➜ ${m.target}, ${word(m.state, "MIGRATION_STATE_")}`);
    e.lastChild.setAttribute("aria-label", `Move of ${m.guest}`);
    if (total) e.lastChild.value = 1 - left / total;
    e.title = m.message ?? m.reason ?? "";
  });
}

function card(host) {
  return h("li", { class: "host", "aria-label": `Host ${host.meta.name}` },
    h("header", {}, h("h3", {}, host.meta.name), h("span", { class: "state" })),
    h("svg", { class: "strip", viewBox: `0 0 ${samples} 40`, preserveAspectRatio: "none", role: "img" }, ...["guests", "owner", "system"].map((c) => h("path", { class: c }))),
    h("p", { class: "figures" }), h("ul", { class: "chips", "aria-label": `Guests on ${host.meta.name}` }));
}

// remember fills a host's strip with what the manager knows of the last minutes.
async function remember(host) {
  try {
    const since = new Date(Date.now() - 1000 * samples), answer = await call("Usage", { host: host.meta.name, since: since.toISOString() });
    const past = (answer.host ?? []).flatMap((s) => Array(Math.max(1, Math.round(s.seconds ?? 1))).fill(use(s)));
    strips.set(host.meta.uid, [...past, ...(strips.get(host.meta.uid) ?? [])].slice(-samples));
  } catch { /* the strip begins now */ }
}

const use = (s) => ({ at: s.at, guests: s.cpuGuests ?? 0, owner: s.cpuOwner ?? 0, system: s.cpuSystem ?? 0 });
const mostRemembered = 60; // hosts, so that a large installation is not asked for all of its history at once

function drawHost(e, host) {
  const [head, strip, figures, chips] = e.children, cores = host.info?.cores || 1, s = host.sample;
  const away = (host.withdrawn ?? []).map((w) => `${w.policy}: ${w.reason}`).join("; ");
  e.classList.toggle("away", isAway(host));
  say(head.lastChild, [word(host.state, "HOST_STATE_"), away].filter(Boolean).join(": "));
  if (!strips.has(host.meta.uid)) {
    if (strips.size < mostRemembered) remember(host);
    strips.set(host.meta.uid, []);
  }
  const list = strips.get(host.meta.uid);
  if (s && list.at(-1)?.at !== s.at) {
    list.push(use(s));
    strips.set(host.meta.uid, list.slice(-samples));
  }
  drawStrip(strip, strips.get(host.meta.uid) ?? [], cores, host.meta.name);
  say(figures, s ? `${((s.cpuGuests ?? 0) + (s.cpuOwner ?? 0) + (s.cpuSystem ?? 0)).toFixed(1)} of ${cores} cores · ${size(s.memoryAvailableBytes)} of ${size(host.info?.memoryBytes)} free · ${host.info?.acceleration?.kind === "ACCELERATION_KIND_KVM" ? "KVM" : "emulated"}`
    : `${cores} cores · not measured`);
  const uses = new Map((s?.guests ?? []).map((g) => [g.uid, g.cpu ?? 0]));
  keyed(chips, world.guests.filter((g) => g.host === host.meta.name), (g) => g.meta.uid, chip, (c, g) => drawChip(c, g, uses.get(g.meta.uid)));
}

// drawStrip draws the use of a host over time: what guests, the owner and the system use, one above the other.
function drawStrip(strip, list, cores, name) {
  const base = list.map(() => 0), from = samples - list.length;
  for (const path of strip.children) {
    const part = path.getAttribute("class");
    let d = "";
    list.forEach((s, i) => {
      const y = 40 - (40 * base[i]) / cores, high = Math.min(y, (40 * s[part]) / cores);
      if (high > 0.2) d += `M${from + i} ${y.toFixed(1)}h1v${(-high).toFixed(1)}h-1z`;
      base[i] += s[part];
    });
    path.setAttribute("d", d);
  }
  const mean = list.length ? list.slice(-30).reduce((sum, s) => sum + s.guests, 0) / Math.min(30, list.length) : 0;
  strip.setAttribute("aria-label", `Use of ${name}: guests have used ${mean.toFixed(1)} of ${cores} cores lately`);
}

const kinds = { RUNNING: "", MIGRATING: "moving", PENDING: "waits", STARTING: "waits", STOPPED: "waits" };

function chip(g) {
  return h("li", { "data-guest": g.meta.uid }, h("button", { class: "chip", type: "button", onclick: () => details(g.meta.uid) }));
}

function drawChip(e, g, cpu) {
  const button = e.firstChild, state = word(g.state, "GUEST_STATE_");
  button.className = `chip ${kinds[(g.state ?? "").replace("GUEST_STATE_", "")] ?? "bad"}`;
  say(button, g.meta.name);
  button.setAttribute("aria-label", `guest ${g.meta.name}, ${state}${cpu === undefined ? "" : `, uses ${cpu.toFixed(1)} cores`}`);
  button.title = [state, g.message].filter(Boolean).join(": ");
}

// before notes where guests are shown, and animate lets those that are elsewhere now travel there.
function before(root) {
  return new Map([...root.querySelectorAll("[data-guest]")].map((e) => [e.dataset.guest, e.getBoundingClientRect()]));
}

function animate(root, places) {
  if (calm.matches) return;
  for (const e of root.querySelectorAll("[data-guest]")) {
    const was = places.get(e.dataset.guest), is = e.getBoundingClientRect();
    if (was && (Math.abs(was.x - is.x) > 40 || Math.abs(was.y - is.y) > 40)) {
      e.animate([{ transform: `translate(${was.x - is.x}px, ${was.y - is.y}px)` }, { transform: "none" }], { duration: 900, easing: "ease-in-out" });
    }
  }
}

// details shows a guest, why it is where it is, and lets the user move it.
async function details(uid) {
  const g = world.guests.find((x) => x.meta.uid === uid);
  if (!g) return;
  // What is wrong is said inside the dialog: it covers the page, and a screen reader hears nothing behind it.
  const refused = h("p", { class: "error", role: "alert", hidden: true }), why = h("ul"), hosts = h("select", { id: "to" }, h("option", { value: "" }, "the best host"),
    ...world.hosts.filter((x) => x.meta.name !== g.host).map((x) => h("option", {}, x.meta.name)));
  const fact = (name, value) => (value ? [h("dt", {}, name), h("dd", {}, String(value))] : []);
  const dialog = h("dialog", { "aria-labelledby": "guest" }, h("h2", { id: "guest" }, `Guest ${g.meta.name}`),
    h("dl", {}, ...fact("state", word(g.state, "GUEST_STATE_")), ...fact("why", g.message), ...fact("cluster", g.cluster), ...fact("host", g.host),
      ...fact("address", g.address), ...fact("size", `${g.shape?.vcpus ?? 0} vCPU, ${size(g.shape?.memoryBytes)}`), ...fact("owner", g.meta.owner), ...fact("started", when(g.started))),
    h("h3", {}, "What is decided about it, and why"), why,
    h("div", { class: "row" }, h("label", { for: "to" }, "Move it to"), hosts,
      h("button", { type: "button", class: "main", onclick: async () => {
        if (await attempt(`move guest ${g.meta.name}`, `guest ${g.meta.name} is to move`, () => call("Migrate", { guest: g.meta.name, toHost: hosts.value }), refused)) dialog.close();
      } }, "Move"), h("button", { type: "button", onclick: () => dialog.close() }, "Close")), refused);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const answer = await call("Explain", { kind: "guest", name: g.meta.name });
    why.append(...(answer.lines ?? []).map((line) => h("li", {}, line)));
  } catch (e) {
    why.append(h("li", {}, e.message));
  }
}
