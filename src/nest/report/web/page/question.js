"use strict";
// A question as the page holds it: of plain data, so that a link can hold it whole.

const FIRST = { model: "llama3-70b", modelText: "", cluster: "dgx-h100", clusterText: "", levels: null, device: "", devices: 1024, rate: 1, rateOf: -1, batch: 2048, seq: 8192, precision: "bf16", stack: "", margin: null, space: {} };
const OTHER = "...";  // a model or cluster that is pasted or typed
const RATES = [0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4];
const DIMENSIONS = [
  // Field of the space, its name, and its values in a plan.
  ["tp", "tensor parallel", (plan) => plan.stages.map((one) => one.tp)],
  ["pp", "pipeline stages", (plan) => [plan.parallelism.pp]],
  ["vpp", "chunks of layers", (plan) => [plan.parallelism.vpp]],
  ["schedule", "schedule", (plan) => [plan.parallelism.schedule]],
  ["outer_dp", "replicas", (plan) => [plan.parallelism.outer_dp]],
  ["dp_in", "data parallel inside", (plan) => plan.stages.map((one) => one.dp_in)],
  ["cp", "context parallel", (plan) => plan.stages.map((one) => one.cp)],
  ["ep", "expert parallel", (plan) => plan.stages.map((one) => one.ep)],
  ["mbs", "micro-batch of a device", (plan) => plan.stages.map((one) => plan.parallelism.micro_batch / one.dp_in)],
  ["zero", "ZeRO", (plan) => plan.stages.map((one) => one.zero)],
  ["recompute", "recompute", (plan) => plan.stages.map((one) => one.recompute)],
];

// What a link or the page says, with nothing but known fields of the right kind.
function sideOf(given) {
  const side = { ...FIRST, space: {} };
  if (!given || typeof given !== "object") return side;
  for (const [name, usual] of Object.entries(FIRST)) {
    const value = given[name];
    if (typeof value === typeof usual && typeof usual !== "object") side[name] = value;
  }
  if (typeof given.margin === "number") side.margin = given.margin;
  if (Array.isArray(given.levels)) side.levels = given.levels.slice(0, 12).filter((one) => one && typeof one === "object").map((one) => ({ ...one }));
  for (const [name] of DIMENSIONS) if (given.space && ["string", "number"].includes(typeof given.space[name])) side.space[name] = String(given.space[name]);
  return side;
}

// Data of a text that the user wrote; refused as the server refuses, by its field.
function parsed(field, text) {
  try {
    const found = JSON.parse(text);
    if (found && typeof found === "object" && !Array.isArray(found)) return found;
  } catch { /* told below */ }
  throw new Refused({ message: "", problems: [`${field}: got ${text.trim() ? `"${text.trim().slice(0, 40)}"` : "nothing"}; allowed: a JSON object, such as the content of a config.json`] });
}

// The levels that count: edited ones, or those of the catalog; slower or faster by the slider.
function levelsOf(side, entry) {
  const levels = side.levels || (entry ? entry.fields.levels : null);
  if (!levels || side.rate === 1) return side.levels;
  return levels.map((level, n) => {
    const nominal = rateOf(level, entry, n);
    if ((side.rateOf >= 0 && side.rateOf !== n) || !nominal) return level;
    const { oversubscription, ...rest } = level;
    return { ...rest, bandwidth: `${Number((nominal * side.rate / 1e9).toPrecision(6))} GB/s` };
  });
}

// Bytes/s of a level: as edited, or as the catalog has it.
function rateOf(level, entry, n) {
  const match = /^\s*([\d.]+(?:e[+-]?\d+)?)\s*([kMGT]?)(i?)(B|bit|b)(?:\/s|ps)\s*$/i.exec(String(level.bandwidth ?? ""));
  if (match) return Number(match[1]) * { "": 1, K: 1e3, M: 1e6, G: 1e9, T: 1e12 }[match[2].toUpperCase()] / (match[4] === "B" ? 1 : 8);
  if (typeof level.bandwidth === "number") return level.bandwidth;
  return entry && entry.facts.levels[n] ? entry.facts.levels[n].bandwidth : 0;
}

function questionOf(side, entry) {
  const question = { schema: "nest.question/1.0" };
  question.model = side.model === OTHER ? parsed("model", side.modelText) : side.model;
  if (side.cluster === OTHER) question.cluster = side.clusterText.trim().startsWith("{") ? parsed("cluster", side.clusterText) : side.clusterText.trim();
  else {
    const levels = levelsOf(side, entry);
    question.cluster = { base: side.cluster, devices: side.devices, ...(side.device ? { device: side.device } : {}), ...(levels ? { levels } : {}) };
  }
  question.job = { global_batch: side.batch, seq_len: side.seq, precision: side.precision };
  if (side.stack) question.job.stack = side.stack;
  if (side.margin !== null) question.job.memory_margin = side.margin;
  const space = Object.entries(side.space).filter(([, text]) => text.trim());
  if (space.length) question.space = Object.fromEntries(space.map(([name, text]) => [name, ["recompute", "schedule"].includes(name) ? text.split(",").map((one) => one.trim()) : text.includes("..") ? text.trim() : text.split(",").map(Number).map((n, k) => (Number.isFinite(n) ? n : text.split(",")[k].trim()))]));
  return question;
}

// The same question as a study (nest sweep): devices and batches around the chosen ones.
function studyOf(side, entry, axes) {
  const { schema, ...question } = questionOf(side, entry);
  return { name: "explored", ...question, axes };
}

// ---------------------------------------------------------------- the link

const linkOf = (state) => "#q=" + encodeURIComponent(JSON.stringify(state));
function stateOf(fragment) {
  try {
    const found = JSON.parse(decodeURIComponent(fragment.replace(/^#q=/, "")));
    return { a: sideOf(found.a), b: found.b ? sideOf(found.b) : null };
  } catch { return { a: sideOf(null), b: null }; }
}
