"use strict";
// The explorer: a question on the left, its answer as it is found on the right, and a second of both.

const state = stateOf(location.hash), view = { at: "a", shown: "both", pair: null };
const runs = { a: run(), b: run() };
const LATER_MS = 250;  // between the last move of a slider and the question
const entries = new Map();
let known = null;  // names, and the limits of the server

function run() { return { controller: null, phase: "idle", plan: null, page: null, progress: null, problems: null, note: "", seconds: 0, first: 0 }; }
const side = () => state[view.at];
const letters = () => (state.b ? ["a", "b"] : ["a"]);

async function entryOf(one, signal) {
  if (one.cluster === OTHER) return null;
  if (!entries.has(one.cluster)) entries.set(one.cluster, await untilThere(() => asked("GET", "/v1/catalog/clusters/" + encodeURIComponent(one.cluster), undefined, signal), () => {}, signal));
  return entries.get(one.cluster);
}

// ---------------------------------------------------------------- asking

let waits = 0;
function changed(later) {
  clearTimeout(waits);
  waits = setTimeout(ask, later ? LATER_MS : 0, view.at);
}

async function ask(letter) {
  const one = runs[letter], mine = state[letter];
  if (one.controller) one.controller.abort(new DOMException("a later question", "AbortError"));
  if (view.pair) view.pair.abort(new DOMException("a later question", "AbortError"));
  view.pairPage = null;
  const { signal } = one.controller = new AbortController(), began = performance.now();
  history.replaceState(null, "", linkOf(state));
  Object.assign(one, { phase: "asking", progress: null, problems: null, note: "", first: 0 });
  const after = () => (performance.now() - began) / 1000;
  showCard(letter);
  const page = (body) => untilThere(() => asked("POST", "/v1/page", body, signal), () => {}, signal);
  try {
    const answer = await followed(questionOf(mine, await entryOf(mine, signal)), (name, data) => {
      if (signal.aborted) return;
      one.note = "";
      if (name === "away") { one.note = `${data}; asking again.`; one.progress = null; say(one.note); }
      if (name === "progress") one.progress = data;
      if (name === "plan") {
        one.first ||= after();
        Object.assign(one, { plan: data.plan, page: data.page });
        showPage();
      }
      showCard(letter);
    }, signal);
    Object.assign(one, { plan: answer.plan, phase: "done", seconds: after(), first: one.first || after(), notes: answer.notes || [] });
    showCard(letter);
    const first = (await page({ plan: one.plan, whole: false })).page;
    Object.assign(one, { page: first, phase: "drawing" });
    showCard(letter); showPage();
    say(`Question ${letter.toUpperCase()}: ${first.title}. ${one.plan.optimal ? "Proved to be the fastest." : "Not proved."}`);
    if (state.b) both();
    one.page = (await page({ plan: one.plan })).page;
    one.phase = "done";
  } catch (error) {
    if (signal.aborted) return;
    const found = error instanceof Refused ? error.found : { problems: [`${error.name}: ${error.message}`] };
    Object.assign(one, { phase: "refused", problems: found.problems && found.problems.length ? found.problems : [found.message], plan: null, page: null });
    say(`Question ${letter.toUpperCase()}: ${one.problems.join("; ")}`);
  }
  showCard(letter); showPage();
}

// The page of two plans, once both are known.
async function both() {
  const { a, b } = runs, ready = (one) => one.plan && ["done", "drawing"].includes(one.phase);
  if (!state.b || !ready(a) || !ready(b)) return;
  if (view.pair) view.pair.abort(new DOMException("a later question", "AbortError"));
  const { signal } = view.pair = new AbortController();
  try {
    view.pairPage = (await untilThere(() => asked("POST", "/v1/page", { plan: a.plan, other: b.plan, names: ["A", "B"] }, signal), () => {}, signal)).page;
    showPage();
  } catch (error) { if (!signal.aborted) throw error; }
}

// ---------------------------------------------------------------- the question

const FORM = h("section", { id: "question", "aria-labelledby": "question-title" });

function field(id, name, input, shown) {
  input.id = "ask-" + id;
  return h("div", { class: "field" }, h("label", { for: input.id }, name, shown || null), input);
}
function choice(id, name, options, value, set) {
  return field(id, name, h("select", { onchange: (event) => set(event.target.value) }, options.map(([key, text]) => h("option", { value: key, selected: key === value || null }, text))));
}
function pasted(id, words, value, set, then) {
  const read = async (event) => { if (event.target.files[0]) { set(await event.target.files[0].text()); form(); changed(false); } };
  const found = field(id, words, h("textarea", { spellcheck: "false", onchange: (event) => then(event.target.value) }, value));
  found.append(h("input", { type: "file", accept: ".json,application/json", "aria-label": `${words}: read from a file`, onchange: read }));
  return found;
}

// A slider over listed values, with its figure; a number beside it takes any other value.
function slider(id, name, values, value, shown, set, exact) {
  const near = values.reduce((best, one, n) => (Math.abs(one - value) < Math.abs(values[best] - value) ? n : best), 0);
  const figure = h("b", null, shown(value));
  const told = (found) => { figure.textContent = shown(found); range.setAttribute("aria-valuetext", shown(found)); if (number) number.value = found; };
  const range = h("input", { type: "range", min: 0, max: values.length - 1, value: near, "aria-valuetext": shown(value), oninput: (event) => { const found = values[Number(event.target.value)]; told(found); set(found); changed(true); } });
  const number = exact ? h("input", { type: "number", min: exact[0], max: exact[1], step: 1, value, "aria-label": `${name}, exactly`, id: `ask-${id}-exact`, onchange: (event) => { const found = Number(event.target.value); if (!Number.isFinite(found)) return; figure.textContent = shown(found); set(found); changed(false); } }) : null;
  range.id = "ask-" + id;
  return h("div", { class: "field" }, h("label", { for: range.id }, name, number ? null : figure), number ? h("div", { class: "tools" }, h("div", { style: { flex: "1 1 120px" } }, range), number) : range);
}
const doubling = (from, most, value) => {
  const found = new Set([value]);
  for (let one = 1; one <= most; one *= 2) if (one >= 1) found.add(one);
  for (let one = from; from > 1 && one <= most; one *= 2) found.add(one);
  return [...found].sort((a, b) => a - b);
};

function form() {
  const mine = side(), entry = entries.get(mine.cluster), set = (name) => (value) => { mine[name] = value; };
  const then = (name, again) => (value) => { mine[name] = value; if (again) form(); changed(false); };
  const kept = document.activeElement && FORM.contains(document.activeElement) ? document.activeElement.id : "";
  const names = (list) => list.map((one) => [one, one]);
  const node = entry ? Number(levels(mine, entry)[0].size) || 1 : 1;
  FORM.replaceChildren(
    h("h2", { id: "question-title" }, "What to train, and where"),
    h("div", { class: "tabs" },
      state.b ? letters().map((letter) => h("button", { type: "button", "aria-pressed": String(letter === view.at), onclick: () => { view.at = letter; form(); showCards(); } }, `Question ${letter.toUpperCase()}`)) : null,
      state.b ? h("button", { type: "button", onclick: () => second(false) }, "Remove B") : h("button", { type: "button", onclick: () => second(true) }, "Compare with a second question")),
    choice("model", "Model", [...names(known.models), [OTHER, "Paste a config.json ..."]], mine.model, then("model", true)),
    ...(mine.model === OTHER ? [pasted("model-text", "config.json of Hugging Face, or a model of NEST", mine.modelText, set("modelText"), then("modelText"))] : []),
    choice("cluster", "Cluster", [...names(known.clusters), [OTHER, "Another network ..."]], mine.cluster, async (value) => {
      Object.assign(mine, { cluster: value, levels: null, device: "", rate: 1, rateOf: -1 });
      const found = await entryOf(mine);
      if (found) mine.devices = Math.min(found.facts.any_number_of_devices ? mine.devices : found.facts.devices, known.limits.devices);
      form(); changed(false);
    }),
    ...(mine.cluster === OTHER ? [pasted("cluster-text", "A network to generate, such as fat-tree:k=8, or a cluster as JSON", mine.clusterText, set("clusterText"), then("clusterText"))] : [
      slider("devices", "Devices", doubling(node, known.limits.devices, mine.devices), mine.devices, (n) => n.toLocaleString("en"), (n) => { mine.devices = n; drawing(mine, entry); }, [1, known.limits.devices]),
      h("details", { open: view.levels || null, ontoggle: (event) => { view.levels = event.target.open; redraw(true); } }, h("summary", null, mine.levels || mine.device ? "Levels of the network (edited)" : "Levels of the network"), levelsEditor(mine, entry)),
      slider("rate", "Bandwidth", RATES, mine.rate, (x) => `x ${x}`, set("rate")),
      h("div", { class: "field under" }, h("select", { id: "ask-rate-of", "aria-label": "Links whose bandwidth changes", onchange: (event) => { mine.rateOf = Number(event.target.value); if (mine.rate !== 1) changed(false); } },
        [["-1", "of all links"], ...(entry ? levels(mine, entry) : []).map((one, n) => [String(n), `of level ${one.name}`])].map(([value, words]) => h("option", { value, selected: value === String(mine.rateOf) || null }, words))))]),
    slider("batch", "Batch: sequences of a step", doubling(1, 65536, mine.batch), mine.batch, (n) => n.toLocaleString("en"), set("batch"), [1, 1e7]),
    slider("seq", "Tokens of a sequence", doubling(1, 1048576, mine.seq).filter((n) => n >= 128), mine.seq, (n) => n.toLocaleString("en"), set("seq"), [1, 1e8]),
    slider("margin", "Memory kept free", Array.from({ length: 31 }, (_, n) => n - 1), mine.margin === null ? -1 : Math.round(100 * mine.margin), (n) => (n < 0 ? "as usual for the software" : `${n} %`), (n) => { mine.margin = n < 0 ? null : n / 100; }),
    h("div", { class: "pair" },
      choice("precision", "Precision", names(known.precisions), mine.precision, then("precision")),
      choice("stack", "Software", [["", "as usual"], ...names(known.stacks)], mine.stack, then("stack"))),
    h("details", { open: view.json || null, ontoggle: (event) => { view.json = event.target.open; } }, h("summary", null, "The question as JSON"), h("pre", { tabindex: "0" }, shownQuestion(mine, entry))));
  if (kept && document.getElementById(kept)) document.getElementById(kept).focus();
  drawing(mine, entry);
  mark();
}
function shownQuestion(mine, entry) {
  try { return JSON.stringify(questionOf(mine, entry), null, 2); } catch (error) { return error.found ? error.found.problems.join("\n") : String(error); }
}

// ---------------------------------------------------------------- levels

const levels = (mine, entry) => mine.levels || entry.fields.levels;

function levelsEditor(mine, entry) {
  if (!entry) return null;
  const edit = (make) => { const list = levels(mine, entry).map((one) => ({ ...one })); make(list); mine.levels = list; form(); changed(false); };
  const cell = (n, name, value, label, kind) => h("td", { class: kind }, h("input", { type: "text", value, "aria-label": `${label} of level ${n + 1}`, id: `ask-level-${n}-${name}`, onchange: (event) => edit((list) => {
    const text = event.target.value.trim();
    list[n][name] = name === "size" && /^\d+$/.test(text) ? Number(text) : text;
    if (name === "bandwidth") delete list[n].oversubscription;
    delete list[n].source;
  }) }));
  const rate = (one, n) => (one.bandwidth !== undefined ? String(one.bandwidth) : `${Number((rateOf(one, entry, n) / 1e9).toPrecision(4))} GB/s`);
  const list = levels(mine, entry);
  return h("div", null,
    h("table", { class: "levels" }, h("thead", null, h("tr", null, ["level", "groups", "bandwidth", "latency"].map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col" }, h("span", { class: "quiet" }, "remove")))),
      h("tbody", null, list.map((one, n) => h("tr", null,
        cell(n, "name", one.name, "Name"), cell(n, "size", String(one.size), "Groups", "narrow"), cell(n, "bandwidth", rate(one, n), "Bandwidth"), cell(n, "latency", one.latency === undefined ? "" : String(one.latency), "Latency"),
        h("td", null, list.length > 1 ? h("button", { type: "button", "aria-label": `Remove level ${one.name}`, onclick: () => edit((all) => all.splice(n, 1)) }, "\u00d7") : null))))),
    h("div", { class: "tools" },
      h("button", { type: "button", onclick: () => edit((all) => { const last = all[all.length - 1], fixed = typeof last.size === "number" ? last.size : 4; all[all.length - 1] = { ...last, size: fixed }; all.push({ name: `level${all.length + 1}`, size: "n", bandwidth: rate(last, all.length - 1), latency: last.latency ?? "10 us" }); }) }, "Add a level"),
      mine.levels || mine.device ? h("button", { type: "button", onclick: () => { Object.assign(mine, { levels: null, device: "" }); form(); changed(false); } }, "As in the catalog") : null),
    choice("device", "Device", [["", entry.facts.device], ...known.devices.filter((one) => one !== entry.facts.device).map((one) => [one, one])], mine.device, (value) => { mine.device = value; form(); changed(false); }),
    h("div", { class: "drawing" }, DRAWING), h("p", { class: "muted small" }, "A level joins so many groups of the level above it in this list; n: as many as there are devices."));
}

const DRAWN_WIDTH = 336;  // pixels of the picture of levels
const DRAWING = drawn("The cluster, by its levels", () => {});
const DRAW = FIGURES[FIGURES.length - 1];
function drawing(mine, entry) {
  if (!entry) return;
  let inside = 1;
  const found = levels(mine, entry).map((one) => {
    inside *= Number(one.size) || Math.max(1, Math.ceil(mine.devices / inside));
    return { name: one.name, devices: inside, note: "" };
  });
  const size = Math.min(mine.devices, found[found.length - 1].devices), each = [1, ...found.map((one) => one.devices)].find((one) => size / one <= 256) || 1;
  const places = { size, idle: 0, each, levels: found, stages: [], replicas: [], types: [""], type_runs: [] };
  DRAW.draw = (node) => {
    const picture = levelPicture(places, 2 * DRAWN_WIDTH, () => null, () => "");
    picture.setAttribute("viewBox", `0 0 ${picture.getAttribute("width")} ${picture.getAttribute("height")}`);
    for (const [name, size] of [["width", Math.min(DRAWN_WIDTH, picture.getAttribute("width"))], ["height", null]]) if (size) picture.setAttribute(name, size); else picture.removeAttribute(name);
    node.replaceChildren(picture, each > 1 ? h("p", { class: "muted small" }, `A square stands for ${each} devices.`) : "");
  };
  redraw(true);
}

// ---------------------------------------------------------------- bounds

const BOUNDS = h("div", { class: "bounds", role: "group", "aria-label": "Bounds of the plan" });
function bounds() {
  const mine = side(), plan = runs[view.at].plan, open = document.activeElement && BOUNDS.contains(document.activeElement) ? document.activeElement.id : "";
  const chosen = DIMENSIONS.map(([name, words, values]) => {
    const found = plan ? [...new Set(values(plan))].join(",") : "";
    if (mine.space[name] !== undefined) return h("span", { class: "fixed" }, h("label", { for: "ask-bound-" + name }, `${words} =`), h("input", { id: "ask-bound-" + name, type: "text", value: mine.space[name], "data-tip": "A number, several with commas, or a range such as 1..8", onchange: (event) => { mine.space[name] = event.target.value; changed(false); } }), h("button", { type: "button", "aria-label": `Leave ${words} open again`, onclick: () => { delete mine.space[name]; bounds(); changed(false); } }, "\u00d7"));
    return plan ? h("button", { type: "button", class: "bound", id: "ask-free-" + name, "data-tip": TERMS[words] || `Fix ${words} at ${found} and ask again`, onclick: () => { mine.space[name] = found; bounds(); document.getElementById("ask-bound-" + name).focus(); changed(false); } }, words, h("b", null, found)) : null;
  }).filter(Boolean);
  BOUNDS.replaceChildren(chosen.length ? h("span", { class: "muted small" }, "Fix a choice by a click:") : "", ...chosen);
  if (open && document.getElementById(open)) document.getElementById(open).focus();
}

// ---------------------------------------------------------------- the answer

const CARDS = h("div", { class: "cards" }), REPORT = h("div", { id: "report" }), LIVE = h("p", { class: "quiet", role: "status" });
const say = (words) => { LIVE.textContent = words; };

function stateText(one) {
  const plan = one.plan, p = one.progress;
  if (one.note) return ["warn", one.note];
  if (one.phase === "idle") return ["", "Not asked yet."];
  if (one.phase === "asking") {
    if (!p) return ["", one.first ? "Looking for better plans ..." : `Looking for a first plan ${plan ? "; above is the answer to the question before" : ""} ...`.replace(" ;", ";")];
    const proof = p.total ? `${p.proved} of ${p.total} outer choices are proved to hold nothing better` : "the rest of the space is searched";
    if (p.step_time_s === null || !one.first) return ["", `Looking for a first plan, ${p.seconds.toFixed(1)} s ...`];
    return ["", `Best so far; the first came after ${one.first.toFixed(1)} s. ${proof[0].toUpperCase()}${proof.slice(1)}` + (p.gap === null ? " ..." : `; at most ${percent(p.gap / (1 + p.gap))} can be gained ...`)];
  }
  const time = `${one.seconds.toFixed(1)} s` + (one.first && one.first + 0.1 < one.seconds ? `, first plan after ${one.first.toFixed(1)} s` : "");
  if (plan && plan.optimal) return ["good", `Proved: no plan in the searched space is faster (${time}).`];
  return ["warn", plan && plan.gap !== null ? `Not proved in time: at most ${percent(plan.gap / (1 + plan.gap))} can be gained (${time}).` : `Not proved (${time}).`];
}

function showCard(letter) {
  const one = runs[letter], plan = one.plan, p = one.progress, mine = state[letter];
  const [tone, words] = stateText(one), asking = one.phase === "asking";
  const share = p && p.total && one.first ? p.proved / p.total : null;
  const rate = plan ? (plan.tokens_per_s ? `${count(plan.tokens_per_s)} tokens/s` : `${count(plan.samples_per_s)} samples/s`) : "";
  const fresh = h("div", { class: "card" + (state.b && letter === view.at ? " at" : ""), id: "card-" + letter, "aria-busy": String(asking) },
    h("h2", null, `${state.b ? letter.toUpperCase() + ": " : ""}${subject(mine)}`),
    one.phase === "refused" ? h("div", null, h("p", { class: "big wrong" }, "No plan"), h("ul", { class: "problems" }, one.problems.flatMap((text) => String(text).split("\n")).map((text) => problem(letter, text))))
      : [h("p", { class: "big" + (asking && !one.first ? " before" : "") }, plan ? seconds(plan.step_time_s) : "\u2026", plan ? h("small", null, ` a step; ${rate}, MFU ${percent(plan.mfu)}`) : null),
        asking ? h("div", { class: "proof" + (share === null ? " unknown" : ""), role: "progressbar", "aria-label": "Proof", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": share === null ? null : Math.round(100 * share) }, h("span", { style: share === null ? {} : { width: 100 * share + "%" } })) : null,
        h("p", { class: "state " + tone }, words),
        asking ? h("button", { type: "button", onclick: () => { one.controller.abort(new DOMException("cancelled", "AbortError")); one.phase = plan ? "done" : "idle"; one.note = "Cancelled."; showCard(letter); } }, "Cancel") : null]);
  const old = document.getElementById("card-" + letter);
  const held = old && old.contains(document.activeElement);
  if (old) old.replaceWith(fresh); else CARDS.append(fresh);
  if (held && fresh.querySelector("button")) fresh.querySelector("button").focus();
  if (letter === view.at) { bounds(); mark(); downloads(); }
}
function showCards() {
  CARDS.replaceChildren();
  letters().forEach(showCard);
}
function subject(mine) {
  const where = mine.cluster === OTHER ? mine.clusterText.trim().slice(0, 30) || "another network" : `${mine.devices.toLocaleString("en")} devices of ${mine.cluster}`;
  return `${mine.model === OTHER ? "a pasted model" : mine.model} on ${where}, ${mine.batch.toLocaleString("en")} x ${mine.seq.toLocaleString("en")} tokens`;
}

// A problem leads to the field that it names.
const FIELDS = [["model", ["model-text", "model"]], ["cluster: levels", ["level-0-name"]], ["cluster: devices", ["devices-exact"]], ["cluster", ["cluster-text", "cluster"]], ["job: global_batch", ["batch-exact"]], ["job: seq_len", ["seq-exact"]], ["job: memory_margin", ["margin"]], ["job: precision", ["precision"]], ["job: stack", ["stack"]], ["global_batch", ["batch-exact"]], ["seq_len", ["seq-exact"]], ["devices", ["devices-exact"]],
  ...DIMENSIONS.flatMap(([name]) => ["space: ", ""].map((before) => [`${before}${name}:`, ["bound-" + name]]))];
function fieldOf(text) {
  const plain = text.replace(/^request: /, "").replace(/\.(?=[a-z])/g, ": ");
  const level = /^cluster: levels\D*(\d+)\D+?(name|size|bandwidth|latency)/.exec(plain);
  const ids = level ? [`level-${level[1]}-${level[2]}`] : (FIELDS.find(([start]) => plain.startsWith(start)) || ["", []])[1];
  return ids.map((id) => "ask-" + id).find((id) => document.getElementById(id));
}
function problem(letter, text) {
  const shown = text.replace(/^request: /, ""), id = letter === view.at ? fieldOf(text) : null;
  return h("li", null, id ? h("button", { type: "button", onclick: () => { const node = document.getElementById(id); const details = node.closest("details"); if (details) details.open = true; node.focus(); } }, shown) : shown);
}
function mark() {
  for (const node of document.querySelectorAll("[aria-invalid]")) node.removeAttribute("aria-invalid");
  for (const text of runs[view.at].problems || []) {
    const node = document.getElementById(fieldOf(text) || "");
    if (node) node.setAttribute("aria-invalid", "true");
  }
}

function showPage() {
  const both = state.b && view.shown === "both", page = both && view.pairPage ? view.pairPage : runs[both || !state.b ? view.at : view.shown].page;
  if (REPORT.page === page) return;
  REPORT.page = page;
  put(page);
}
function put(page) {
  REPORT.replaceChildren();
  FIGURES.splice(0, FIGURES.length, ...FIGURES.filter((one) => one.node.isConnected || one === DRAW));
  if (!page) return;
  const { links, sections } = PAGES[page.kind](page);
  REPORT.append(navigation(links), ...sections.filter(Boolean));
  redraw(true);
}

// ---------------------------------------------------------------- two questions, the link, files

function second(wanted) {
  if (!wanted && runs.b.controller) runs.b.controller.abort(new DOMException("removed", "AbortError"));
  if (view.pair) view.pair.abort(new DOMException("a later question", "AbortError"));
  view.pairPage = null;
  state.b = wanted ? sideOf(JSON.parse(JSON.stringify(state.a))) : null;
  runs.b = wanted ? { ...runs.a, controller: null, phase: runs.a.plan ? "done" : "idle" } : run();
  Object.assign(view, { at: wanted ? "b" : "a", shown: "both" });
  history.replaceState(null, "", linkOf(state));
  form(); showCards(); showPage();
  if (wanted) { if (runs.a.plan && runs.a.phase === "done") both(); else ask("b"); }
}

const FILES = h("div", { id: "downloads", class: "tools" });
function downloads() {
  const one = runs[view.at], mine = side(), whole = one.plan && one.phase !== "asking", name = (mine.model === OTHER ? "plan" : mine.model).replace(/[^\w.-]+/g, "-");
  const target = document.getElementById("target") ? document.getElementById("target").value : "";
  const told = async (event, work) => {
    const button = event.target, words = button.textContent;
    try { await work(); } catch (error) {
      const found = error instanceof Refused ? error.found.problems : [error.message];
      NOTE.replaceChildren(...found.map((text) => h("li", null, text)));
      say(found.join("; "));
      return;
    }
    NOTE.replaceChildren();
    button.textContent = "Saved";
    setTimeout(() => { button.textContent = words; }, 1500);
  };
  FILES.replaceChildren(
    ...(state.b ? ["both", "a", "b"] : []).map((shown) => h("button", { type: "button", "aria-pressed": String(view.shown === shown), class: "bound", onclick: () => { view.shown = shown; downloads(); showPage(); } }, shown === "both" ? "Both plans" : `Plan ${shown.toUpperCase()}`)),
    ...(whole ? [
      h("button", { type: "button", onclick: (event) => told(event, async () => download(`${name}.json`, asJson(one.plan))) }, "Plan (.json)"),
      h("button", { type: "button", onclick: (event) => told(event, async () => {
        const chosen = document.getElementById("target").value, found = await asked("POST", "/v1/export", { plan: one.plan, ...(chosen ? { target: chosen } : {}) });
        download(`${name}-${found.target}.zip`, zipped(found.files));
      }) }, "Launch files (.zip)"),
      h("select", { id: "target", "aria-label": "Software that the launch files are for" }, h("option", { value: "" }, "for the software that runs it"), known.targets.map((text) => h("option", { value: text, selected: text === target || null }, `for ${text}`))),
      h("button", { type: "button", onclick: () => { STUDY.hidden = !STUDY.hidden; if (!STUDY.hidden) study(); } }, "Study ...")] : []));
}
const NOTE = h("ul", { class: "problems" }), STUDY = h("section", { hidden: true, "aria-label": "Study" });

// The question at several sizes: a file for nest sweep, or asked by this server.
function study() {
  const mine = side(), entry = entries.get(mine.cluster), around = (n, most) => [n / 4, n / 2, n, 2 * n].filter((one) => Number.isInteger(one) && one >= 1 && one <= most).join(", ");
  const state_ = h("p", { class: "small", role: "status" }), lists = {
    ...(entry ? { "cluster.devices": h("input", { type: "text", id: "axis-devices", value: around(mine.devices, known.limits.devices) }) } : {}),
    "job.global_batch": h("input", { type: "text", id: "axis-batch", value: around(mine.batch, 1e7) }),
  };
  const numbers = (text) => text.split(/[\s,]+/).filter(Boolean).map(Number);
  const document_ = () => studyOf(mine, entry, Object.fromEntries(Object.entries(lists).map(([axis, input]) => [axis, numbers(input.value)]).filter(([, list]) => list.length)));
  const told = (work) => async () => { try { await work(); } catch (error) { state_.textContent = error instanceof Refused ? error.found.problems.join("; ") : error.message; } };
  const files = h("span", { class: "tools" });
  STUDY.replaceChildren(h("h2", null, "Study: this question at several sizes"),
    h("div", { class: "axes" }, Object.entries(lists).flatMap(([axis, input]) => [h("label", { for: input.id }, axis === "cluster.devices" ? "Devices" : "Batch"), input])),
    h("div", { class: "tools" },
      h("button", { type: "button", onclick: told(async () => { download("study.json", asJson(document_())); state_.textContent = "nest sweep study.json asks it."; }) }, "Study file (.json)"),
      h("button", { type: "button", onclick: told(async () => {
        files.replaceChildren();
        const begun = await asked("POST", "/v1/sweeps", document_());
        let last = begun;
        for await (const [, data] of eventsOf(`/v1/sweeps/${begun.id}/events`)) { last = data; state_.textContent = `${data.answered} of ${data.points} points are answered.`; }
        if (last.state !== "done") throw new Error(last.message || `The study is ${last.state}.`);
        for (const format of ["csv", "json"]) files.append(h("button", { type: "button", onclick: told(async () => download(`points.${format}`, await (await request("GET", `/v1/sweeps/${begun.id}/points?format=${format}`)).blob())) }, `Answers (.${format})`));
        put((REPORT.page = (await asked("GET", `/v1/sweeps/${begun.id}/points?format=page`)).page));
      }) }, "Ask it here"), files), state_);
}

document.addEventListener("click", (event) => {  // the fragment holds the question
  const link = event.target.closest && event.target.closest('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  const node = document.getElementById(link.getAttribute("href").slice(1));
  if (!node) return;
  node.scrollIntoView();
  node.tabIndex = -1;
  node.focus({ preventScroll: true });
});
addEventListener("hashchange", () => {
  const found = stateOf(location.hash);
  for (const letter of ["a", "b"]) if (runs[letter].controller) runs[letter].controller.abort(new DOMException("another link", "AbortError"));
  Object.assign(state, found);
  Object.assign(view, { at: "a", shown: "both", pairPage: null });
  runs.a = run(); runs.b = run();
  begin();
});
addEventListener("pagehide", () => { for (const letter of ["a", "b"]) if (runs[letter].controller) runs[letter].controller.abort(new DOMException("gone", "AbortError")); });

async function begin() {
  for (const letter of letters()) await entryOf(state[letter]).catch(() => {});  // an unknown name is told by its answer
  form(); showCards(); showPage();
  letters().forEach(ask);
}

(async () => {
  document.documentElement.dataset.theme = DARK.matches ? "dark" : "light";
  const link = h("button", { type: "button", onclick: async () => { const done = (text) => { link.textContent = text; setTimeout(() => { link.textContent = "Copy link"; }, 1500); }; try { await navigator.clipboard.writeText(location.href); done("Copied"); } catch { done("Copy the address of this page"); } } }, "Copy link");
  const notice = h("p", { class: "muted", role: "status" }, "The server is asked ...");
  document.getElementById("page").append(
    h("header", null, h("div", null, h("h1", null, "NEST explorer"), h("p", { class: "setting" }, "The fastest way to train a model on a cluster, as it is found and proved.")), h("div", { class: "tools" }, link, themeButton(), h("button", { type: "button", onclick: () => print() }, "Print"))),
    h("main", { id: "main", class: "explorer" }, FORM, h("div", { id: "answers" }, notice, CARDS, BOUNDS, FILES, NOTE, STUDY, REPORT, LIVE)));
  FORM.append(h("h2", { id: "question-title" }, "What to train, and where"));
  if (JSON.parse(document.getElementById("data").textContent).token && !access.token) await askForToken("");
  known = await untilThere(() => asked("GET", "/v1/catalog"), (why) => { notice.textContent = `${why}; asking again.`; });
  notice.remove();
  await begin();
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
