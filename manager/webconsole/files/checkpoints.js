// checkpoints.js - checkpoints of clusters, and snapshots of volumes: made, kept, restored.

import { call } from "./control.js";
import { ask, h, keyed, say, size, table, when, word } from "./dom.js";
import { attempt, trouble, world } from "./state.js";

export function checkpointsView(main) {
  const list = table("Checkpoints", ["Checkpoint", "Of", "State", "Taken", "Size", "Actions"]), clusters = h("select", { id: "cluster" });
  const make = h("button", { class: "main", type: "button", onclick: async () => {
    await attempt(`make a checkpoint of cluster ${clusters.value}`, `a checkpoint of cluster ${clusters.value} is being made`, () => call("CreateCheckpoint", { cluster: clusters.value }));
    load();
  } }, "Make a checkpoint");
  main.append(h("h2", {}, "Checkpoints"), h("div", { class: "row" }, h("label", { for: "cluster" }, "Cluster"), clusters, make), list.e);
  let again = null, left = false;

  // actions are what a checkpoint's buttons do.
  const actions = {
    async Restore(c) {
      const n = c.meta.name, volume = isSnapshot(c), of = origin(c);
      if (await ask(`Go back to ${n}? What ${volume ? "was written" : `the guests of ${of} have done`} since is lost.`, "Go back")) {
        await attempt(`restore ${n}`, `${volume ? of : `cluster ${of}`} goes back to ${n}`, () => call("RestoreCheckpoint", { name: n, volume }));
      }
    },
    async Pin(c) {
      const n = c.meta.name, pinned = !c.pinned;
      await attempt(`${pinned ? "pin" : "unpin"} ${n}`, `${n} is ${pinned ? "pinned" : "unpinned"}`, () => call("ChangeCheckpoint", { name: n, pinned }));
    },
    async Delete(c) {
      const n = c.meta.name;
      if (await ask(`Delete checkpoint ${n}?`, "Delete")) await attempt(`delete ${n}`, `${n} is deleted`, () => call("DeleteCheckpoint", { name: n }));
    },
  };

  // drawActions keeps the buttons of a row, so that the one that was pressed keeps the focus.
  function drawActions(cell, c) {
    if (!cell.firstChild) cell.append(h("span", { class: "row" }));
    cell.checkpoint = c;
    const button = (action) => h("button", { type: "button", onclick: async () => { await actions[action](cell.checkpoint); load(); } });
    keyed(cell.firstChild, Object.keys(actions).filter((a) => a !== "Restore" || c.state === "CHECKPOINT_STATE_DONE"), (a) => a, button, (e, a) => {
      const text = a === "Pin" && c.pinned ? "Unpin" : a;
      say(e, text);
      e.setAttribute("aria-label", `${text} ${c.meta.name}`);
    });
  }

  function draw(checkpoints) {
    const row = list.body.contains(document.activeElement) ? document.activeElement.closest("tr") : null, at = [...list.body.children].indexOf(row);
    keyed(list.body, checkpoints, (c) => c.meta.uid, () => h("tr", {}, ...list.cells()), (e, c) => {
      const [name, of, state, taken, bytes, buttons] = e.children, done = c.state === "CHECKPOINT_STATE_DONE";
      say(name, c.meta.name + (c.pinned ? " (pinned)" : ""));
      say(of, origin(c));
      say(state, word(c.state, "CHECKPOINT_STATE_") + (c.message ? `: ${c.message}` : ""));
      state.className = c.state === "CHECKPOINT_STATE_FAILED" ? "error" : "";
      say(taken, when(c.taken));
      say(bytes, done ? size([...c.members ?? [], ...c.volume ? [c.volume] : []].reduce((sum, m) => sum + Number(m.file?.blob?.size ?? 0), 0)) : "");
      drawActions(buttons, c);
    });
    // The keyboard's focus goes on from the place of a deleted row.
    if (row && !row.isConnected) ([...list.body.children].at(Math.min(at, list.body.children.length - 1))?.querySelector("button:last-child") ?? make).focus();
  }

  async function load() {
    clearTimeout(again);
    try {
      draw(((await call("ListCheckpoints")).checkpoints ?? []).reverse());
    } catch (e) {
      trouble(e.message);
    }
    clearTimeout(again);
    if (!left) again = setTimeout(load, 2000);
  }
  load();
  return {
    update() { keyed(clusters, world.clusters, (c) => c.meta.uid, (c) => h("option", {}, c.meta.name), () => {}); },
    leave() { left = true; clearTimeout(again); },
  };
}

// isSnapshot tells a snapshot of a volume from a checkpoint of a cluster, and origin names either.
const isSnapshot = (c) => !c.cluster;
const origin = (c) => (isSnapshot(c) ? `volume ${c.volume?.guest}` : c.cluster);
