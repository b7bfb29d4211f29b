// state.js - what all views share: the state of the hosts and guests, and what the user is told.

import { say } from "./dom.js";

// world is what the manager has said last.
export const world = { hosts: [], guests: [], migrations: [], clusters: [], user: null };

// isAway tells whether a host's agent is not connected, or is cut off.
export const isAway = (host) => host.state === "HOST_STATE_UNREACHABLE" || host.state === "HOST_STATE_QUARANTINED";

// moving returns the moves under way.
export const moving = () => world.migrations.filter((m) => !/_(DONE|FAILED|CANCELLED)$/.test(m.state ?? ""));

// tell shows a text where a screen reader hears it.
export const tell = (text) => say(document.getElementById("said"), text);

// trouble shows what is wrong; empty: nothing is. A dialog has an element of its own for that.
export function trouble(text, e = document.getElementById("trouble")) {
  say(e, text);
  e.hidden = !text;
}

// attempt does something for the user: it says what was done, or shows what was tried and why it failed.
export async function attempt(tried, done, does, element) {
  try {
    trouble("", element);
    await does();
    tell(done);
    return true;
  } catch (e) {
    trouble(`${tried}: ${e.message}`, element);
    return false;
  }
}
