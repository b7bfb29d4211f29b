// app.js - the web console: who is logged in, which view is shown, and asking for the state.

import { CallError, call, logIn, logOut } from "./control.js";
import { h, say } from "./dom.js";
import { isAway, moving, tell, trouble, world } from "./state.js";
import { mapView } from "./map.js";
import { runsView } from "./runs.js";
import { checkpointsView } from "./checkpoints.js";
import { eventsView } from "./events.js";
import { policyView } from "./policy.js";

const views = { map: mapView, runs: runsView, checkpoints: checkpointsView, events: eventsView, policy: policyView };
const main = document.getElementById("main");

// every is how often the state is asked for, in ms.
const every = 1000;

let view = null, leave = () => {};

// refresh asks for the state of hosts and guests.
async function refresh() {
  const [hosts, guests, migrations, clusters] = await Promise.all(
    [["ListHosts", "hosts"], ["ListGuests", "guests"], ["ListMigrations", "migrations"], ["ListClusters", "clusters"]]
      .map(async ([method, field]) => (await call(method))[field] ?? []));
  const before = new Map(world.guests.map((g) => [g.meta.uid, g]));
  Object.assign(world, { hosts, guests, migrations, clusters });
  for (const g of guests) {
    const was = before.get(g.meta.uid);
    if (was?.host && g.host && was.host !== g.host) tell(`guest ${g.meta.name} has moved from ${was.host} to ${g.host}`);
  }
  const ready = guests.filter((g) => g.ready).length, up = hosts.filter((x) => !isAway(x)).length;
  say(document.getElementById("summary"), `${hosts.length} hosts${up < hosts.length ? `, ${hosts.length - up} out of reach` : ""} · ${guests.length} guests, ${ready} ready · ${moving().length} moving`);
  view?.update?.();
}

async function loop() {
  for (;;) {
    if (!document.hidden && world.user) {
      try {
        await refresh();
        if (document.getElementById("trouble").dataset.ours) clear();
      } catch (e) {
        if (!world.user) return; // the user has logged out meanwhile
        if (e.code === "unauthenticated") return loggedOut(e.message);
        trouble(e.message);
        document.getElementById("trouble").dataset.ours = "yes";
      }
    }
    await new Promise((next) => setTimeout(next, every));
  }
}

function clear() {
  delete document.getElementById("trouble").dataset.ours;
  trouble("");
}

function show() {
  if (!world.user) return;
  const name = /^#\/(\w+)/.exec(location.hash)?.[1] ?? "map";
  leave();
  main.replaceChildren();
  view = (views[name] ?? mapView)(main);
  leave = view.leave ?? (() => {});
  for (const a of document.querySelectorAll("nav a")) {
    if (a.hash === `#/${name}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  document.title = `${document.querySelector("nav a[aria-current]")?.textContent ?? "Hosts and guests"} - Watari`;
  view.update?.();
}

function loggedOut(why) {
  world.user = null;
  leave();
  view = null;
  document.getElementById("logout").hidden = true;
  say(document.getElementById("who"), "");
  main.replaceChildren(h("h2", {}, "You are not logged in"), h("p", {}, why ?? ""), h("p", {}, "Type ", h("code", {}, "watari console"), " on a machine where you use Watari. It prints a link."));
}

async function begin() {
  const key = /^#(\w{20,})$/.exec(location.hash)?.[1];
  if (key) {
    history.replaceState(null, "", "#/map"); // the key does not stay in the history
    try {
      await logIn(key);
    } catch (e) {
      return loggedOut(e.message);
    }
  }
  for (const certificate of [false, true]) {
    try {
      if (certificate) await logIn("");
      world.user = await call("WhoAmI");
      break;
    } catch (e) {
      if (!(e instanceof CallError) || e.code !== "unauthenticated" || certificate) return loggedOut(e.message);
    }
  }
  say(document.getElementById("who"), world.user.user?.meta?.name ?? "");
  const out = document.getElementById("logout");
  out.hidden = false;
  out.onclick = async () => { await logOut(); loggedOut("You have logged out."); };
  show();
  loop();
}

addEventListener("hashchange", () => {
  if (/^#\w{20,}$/.test(location.hash)) return location.reload(); // another link to log in with
  show();
  main.focus({ preventScroll: true });
});
begin();
