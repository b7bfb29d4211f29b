// checkpoints.js - checkpoints of clusters, and snapshots of volumes: made, kept, restored.

import { call } from "./control.js";
import { ask, h, keyed, say, size, table, when, word } from "./dom.js";
import { attempt, trouble, world } from "./app.js";

export function checkpointsView(main) {
  const list = table("Checkpoints", ["Checkpoint", "Of", "State", "Taken", "Size", "Actions"]), clusters = h("select", { id: "cluster" });
  main.append(h("h2", {}, "Checkpoints"),
    h("div", { class: "row" }, h("label", { for: "cluster" }, "Cluster"), clusters,
      h("button", { class: "main", type: "button", onclick: () => attempt(`a checkpoint of ${clusters.value} is being made`, () => call("CreateCheckpoint", { cluster: clusters.value })) }, "Make a checkpoint")),
    list.e);
  let again = null, left = false;

  const act = (c, method, request, said, question, yes) => async () => {
    if (!question || await ask(question, yes)) {
      await attempt(said, () => call(method, request));
      clearTimeout(again);
      load();
    }
  };

  function draw(checkpoints) {
    keyed(list.body, checkpoints, (c) => c.meta.uid, () => h("tr", {}, ...list.cells()), (e, c) => {
      const [name, origin, state, taken, bytes, actions] = e.children, volume = !c.cluster, of = volume ? `volume ${c.volume?.guest}` : c.cluster, done = c.state === "CHECKPOINT_STATE_DONE", key = `${c.state} ${c.pinned}`;
      say(name, c.meta.name + (c.pinned ? " (pinned)" : ""));
      say(origin, of);
      say(state, word(c.state, "CHECKPOINT_STATE_") + (c.message ? `: ${c.message}` : ""));
      state.className = c.state === "CHECKPOINT_STATE_FAILED" ? "error" : "";
      say(taken, when(c.taken));
      say(bytes, done ? size([...c.members ?? [], ...c.volume ? [c.volume] : []].reduce((sum, m) => sum + Number(m.file?.blob?.size ?? 0), 0)) : "");
      if (actions.dataset.key === key) return;
      actions.dataset.key = key;
      const n = c.meta.name, button = (text, does) => h("button", { type: "button", "aria-label": `${text} ${n}`, onclick: does }, text);
      actions.replaceChildren(h("span", { class: "row" },
        done && button("Restore", act(c, "RestoreCheckpoint", { name: n, volume }, `${volume ? of : `cluster ${of}`} goes back to ${n}`, `Go back to ${n}? What ${volume ? "was written" : `the guests of ${of} have done`} since is lost.`, "Go back")) || "",
        button(c.pinned ? "Unpin" : "Pin", act(c, "ChangeCheckpoint", { name: n, pinned: !c.pinned }, `${n} is ${c.pinned ? "unpinned" : "pinned"}`)),
        button("Delete", act(c, "DeleteCheckpoint", { name: n }, `${n} is deleted`, `Delete checkpoint ${n}?`, "Delete"))));
    });
  }

  async function load() {
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
