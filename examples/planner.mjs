// A planner in another language: answers to the instances of `nest bench instances`.
//
//     node examples/planner.mjs nest-instances answers.json
//     nest bench score answers.json --instances nest-instances
//
// It divides the model by the fewest devices whose memory holds parameters, gradients and optimizer
// twice, tensor parallel inside a node first, and repeats the pipeline over the other devices.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const powers = (most) => Array.from({ length: 20 }, (_, n) => 2 ** n).filter((n) => n <= most);

function answer({ name, question, layers }) {
  const { model, cluster, job } = question;
  if (model === null) return { instance: name, reason: "takes models only" };
  if (cluster.types.length) return { instance: name, reason: "takes devices of one type only" };
  const devices = cluster.devices ?? cluster.levels.reduce((size, level) => size * level.size, 1);
  const node = cluster.levels[0].size;
  const count = layers.reduce((sum, run) => sum + run.count, 0);
  const parameters = layers.reduce((sum, run) => sum + run.count * run.parameters, 0);
  const bytes = 2 + 4 + 12; // parameters in 16 bits, gradients and optimizer in 32
  const splits = powers(Math.min(count, devices)).flatMap((pp) => powers(Math.min(node, 8))
    .filter((tp) => tp * pp <= devices && model.heads % tp + (model.kv_heads ?? 0) % tp === 0)
    .map((tp) => ({ tp, pp })));
  splits.sort((a, b) => a.tp * a.pp - b.tp * b.pp || b.tp - a.tp);
  const split = splits.find(({ tp, pp }) =>
    2 * bytes * parameters / (tp * pp) < cluster.device.memory);
  if (split === undefined) return { instance: name, reason: "too large for the devices" };
  const { tp, pp } = split;
  let replicas = Math.floor(devices / (tp * pp));
  while (job.global_batch % replicas) replicas -= 1;
  const cut = (stage) => Math.floor(count * stage / pp);
  const stages = Array.from({ length: pp }, (_, stage) => ({
    layers: [cut(stage), cut(stage + 1)], devices: [stage * tp, (stage + 1) * tp], tp, zero: 1,
    recompute: "full",
  }));
  return { instance: name, configuration: { outer_dp: replicas, micro_batch: 1, stages } };
}

const [folder, file] = process.argv.slice(2);
const answers = readdirSync(folder).filter((name) => name.endsWith(".json"))
  .map((name) => answer(JSON.parse(readFileSync(join(folder, name), "utf8"))));
writeFileSync(file, JSON.stringify({ schema: "nest.submission/1.0", planner: "halves", answers }));
