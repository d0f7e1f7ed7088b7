"use strict";
// Requests to the server of this page: the token, streams of events, and servers that are away.

const TOKEN = "nest-token", AWAY_MS = 1500;
class Away extends Error {}  // the server does not answer, ends or is busy: ask again
class Refused extends Error {
  constructor(found) { super(found.message); this.found = found; }
}

const access = {
  get token() { try { return sessionStorage.getItem(TOKEN) || this.kept; } catch { return this.kept; } },
  set token(text) { this.kept = text; try { sessionStorage.setItem(TOKEN, text); } catch { /* kept in memory alone */ } },
  kept: "", asked: null,
};

// One request; a server that wants a token is asked again with the one that the user gives.
async function request(method, path, body, signal) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (access.token) headers.Authorization = "Bearer " + access.token;
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Away("The server does not answer");
  }
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({ error: "defect", message: `the server answers ${answer.status}` }));
  if (found.error === "token") {
    await askForToken(access.token ? "That is not the token of this server." : "");
    return request(method, path, body, signal);
  }
  if (["busy", "ending", "starting"].includes(found.error)) throw new Away(found.error === "busy" ? "The server is busy" : "The server ends");
  throw new Refused(found);
}
const asked = async (method, path, body, signal) => (await request(method, path, body, signal)).json();

// The token is kept in this tab alone. Requests that wait for it share one dialog.
function askForToken(why) {
  access.asked ||= new Promise((resolve) => {
    const field = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true, id: "token" });
    const dialog = h("dialog", { "aria-labelledby": "token-title" }, h("form", { onsubmit: (event) => {
      event.preventDefault();
      access.token = field.value.trim();
      access.asked = null;
      dialog.close(); dialog.remove();
      resolve();
    } }, h("h2", { id: "token-title" }, "This server asks for a token"),
    why ? h("p", { class: "wrong", role: "alert" }, why) : null,
    h("p", { class: "muted" }, "Whoever started nest serve knows it (NEST_TOKEN or --token-file). It is kept in this tab only, until the tab is closed."),
    h("label", { for: "token" }, "Token"), field, h("button", { type: "submit", class: "strong" }, "Continue")));
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
  });
  return access.asked;
}

const pause = (ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ms);
  if (signal) signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});

// Repeats work while the server is away; `away` is told why.
async function untilThere(work, away, signal) {
  for (;;) {
    try { return await work(); } catch (error) {
      if (!(error instanceof Away) || (signal && signal.aborted)) throw error;
      away(error.message);
      await pause(AWAY_MS, signal);
    }
  }
}

// Server-sent events of an address, [name, data], until its stream ends. EventSource has no headers for a token.
async function* eventsOf(path, signal) {
  const reader = (await request("GET", path, undefined, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const lines = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        yield [lines[0].slice("event: ".length), JSON.parse(lines[1].slice("data: ".length))];
      }
    }
  } catch (error) {
    if (signal && signal.aborted) throw error;
    throw new Away("The server stopped answering");
  } finally { reader.cancel().catch(() => {}); }
}

// Asks a question and follows it to its end, also on a server that is started anew meanwhile.
async function followed(question, on, signal) {
  return untilThere(async () => {
    // Not aborted itself: what was submitted must be known to be cancelled.
    const { id } = await asked("POST", "/v1/questions", { to: "plan", question });
    const cancel = () => { request("DELETE", "/v1/questions/" + id).catch(() => {}); };
    if (signal.aborted) { cancel(); throw signal.reason; }
    signal.addEventListener("abort", cancel, { once: true });
    try {
      on("submitted", { id });
      for await (const [name, data] of eventsOf(`/v1/questions/${id}/events`, signal)) {
        if (name !== "end") { on(name, data); continue; }
        if (data.state !== "done") throw new Away("The question was cancelled");
        if (["ending", "busy"].includes(data.answer.error)) throw new Away("The server ends");
        if (data.status !== 200) throw new Refused(data.answer);
        return data.answer;
      }
      throw new Away("The server stopped answering");
    } catch (error) {
      if (error instanceof Refused && error.found.message.startsWith("question:")) throw new Away("The server was started anew");
      throw error;
    } finally { signal.removeEventListener("abort", cancel); }
  }, (why) => on("away", why), signal);
}

// Several texts as one .zip file, not compressed (APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12, 4.3.16).
const CRC = Uint32Array.from({ length: 256 }, (_, n) => { for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1; return n; });
function zipped(files) {
  const parts = [], central = [];
  let at = 0;
  const head = (signature, fields) => {
    const view = new DataView(new ArrayBuffer(4 + fields.reduce((sum, one) => sum + one[0], 0)));
    view.setUint32(0, signature, true);
    fields.reduce((place, [size, value]) => { if (size === 2) view.setUint16(place, value, true); else view.setUint32(place, value, true); return place + size; }, 4);
    return new Uint8Array(view.buffer);
  };
  for (const [name, text] of Object.entries(files)) {
    const path = new TextEncoder().encode(name), data = new TextEncoder().encode(text);
    const crc = ~data.reduce((sum, byte) => CRC[(sum ^ byte) & 255] ^ (sum >>> 8), -1) >>> 0;
    const common = [[2, 20], [2, 0x800], [2, 0], [2, 0], [2, 33], [4, crc], [4, data.length], [4, data.length], [2, path.length], [2, 0]];
    parts.push(head(0x04034b50, common), path, data);
    central.push(head(0x02014b50, [[2, 20], ...common, [2, 0], [2, 0], [2, 0], [4, 0], [4, at]]), path);
    at += 30 + path.length + data.length;
  }
  const size = central.reduce((sum, one) => sum + one.length, 0), many = central.length / 2;
  return new Blob([...parts, ...central, head(0x06054b50, [[2, 0], [2, 0], [2, many], [2, many], [4, size], [4, at], [2, 0]])], { type: "application/zip" });
}
function download(name, blob) {
  const address = URL.createObjectURL(blob), link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
const asJson = (value) => new Blob([JSON.stringify(value, null, 2) + "\n"], { type: "application/json" });
