// control.js - calls of the manager's ControlService, by Connect's protocol with JSON (connectrpc.com/docs/protocol).

const base = "api/watari.v1.ControlService/";

// CallError is a refusal by the manager, or a failure to reach it. code is Connect's, such as "unauthenticated".
export class CallError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

async function refusal(response) {
  try {
    const body = await response.json();
    return new CallError(body.code ?? "unknown", body.message ?? response.statusText);
  } catch {
    return new CallError("unknown", `the manager answers with status ${response.status}`);
  }
}

async function post(method, type, body, signal) {
  try {
    return await fetch(base + method, { method: "POST", headers: { "Content-Type": type, "Connect-Protocol-Version": "1" }, body, signal });
  } catch (e) {
    if (signal?.aborted) throw e;
    throw new CallError("unavailable", "the manager does not answer");
  }
}

// call makes one call, and returns the answer.
export async function call(method, request = {}) {
  const response = await post(method, "application/json", JSON.stringify(request));
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// follow makes a call with a stream of answers, and passes each to take. It returns when the stream has ended.
export async function follow(method, request, take, signal) {
  const text = new TextEncoder().encode(JSON.stringify(request));
  const frame = new Uint8Array(5 + text.length);
  new DataView(frame.buffer).setUint32(1, text.length);
  frame.set(text, 5);
  const response = await post(method, "application/connect+json", frame, signal);
  if (!response.ok) throw await refusal(response);
  const reader = response.body.getReader();
  let have = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const more = new Uint8Array(have.length + value.length);
    more.set(have);
    more.set(value, have.length);
    have = more;
    while (have.length >= 5) {
      const size = new DataView(have.buffer, have.byteOffset).getUint32(1);
      if (have.length < 5 + size) break;
      const message = JSON.parse(new TextDecoder().decode(have.subarray(5, 5 + size)) || "{}");
      const last = (have[0] & 2) !== 0;
      have = have.slice(5 + size);
      if (last && message.error) throw new CallError(message.error.code, message.error.message ?? message.error.code);
      if (last) return;
      take(message);
    }
  }
}

// logIn exchanges a link's key for a cookie; without a key, the browser's certificate says who it is.
export async function logIn(key) {
  const response = await fetch("session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key }) });
  if (!response.ok) throw new CallError("unauthenticated", (await response.text()).trim());
}

export const logOut = () => fetch("session", { method: "DELETE" });
