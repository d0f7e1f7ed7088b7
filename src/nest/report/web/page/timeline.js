"use strict";
// The timeline: rows are stages, time runs to the right. Drag, buttons or keys move and zoom.

const PAINT = ["forward", "backward", "inputs", "weights", "end", "end", "collective", "collective", "wait", "soft"];
const [FORWARD, BACKWARD, INPUTS, WEIGHTS, END, OPTIMIZER, COLLECTIVE, HANDOVER, WAIT, LEFT] = PAINT.keys();
const LETTER = { [FORWARD]: "F", [BACKWARD]: "B", [INPUTS]: "B", [WEIGHTS]: "W" };
const GUTTER = 62, AXIS = 22;

function timelineFigure(data, said) {
  const t = data.timeline, count = t.stage.length, stages = data.places.stages.length;
  const total = Math.round(t.step_s / t.tick_s);
  const rows = Array.from({ length: stages }, () => []);
  for (let n = 0; n < count; n++) rows[t.stage[n]].push(n);
  const view = { from: 0, to: total, lit: -1, at: -1 };
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline of one step: a row for each stage. Arrow keys move, plus and minus zoom, Home shows the whole step; up and down walk through the passes of a stage." });
  const state = h("p", { class: "muted small screen", "aria-live": "polite" });
  const high = Math.max(16, Math.min(44, Math.round(420 / stages)));
  let width = 0;

  const x = (time) => GUTTER + (time - view.from) / (view.to - view.from) * (width - GUTTER);
  const timeAt = (px) => view.from + (px - GUTTER) / (width - GUTTER) * (view.to - view.from);
  const lane = (kind) => (kind === COLLECTIVE || kind === HANDOVER ? 1 : 0);

  function show(from, to) {
    const span = Math.min(total, Math.max(to - from, 40));
    const start = Math.min(Math.max(0, from), total - span);
    view.from = start; view.to = start + span;
    draw();
  }
  function zoom(factor, px) {
    const middle = timeAt(px === undefined ? (width + GUTTER) / 2 : px);
    show(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
  }

  // Layers of a chunk in the order of a pass: computing and exposed traffic of each, in seconds.
  function inside(n) {
    const kind = t.kind[n], found = [];
    for (const { name, layers: many, forward, backward, weights, ahead, back } of t.chunks[t.stage[n]][t.chunk[n]]) {
      const compute = kind === FORWARD ? forward : kind === WEIGHTS ? weights : kind === INPUTS ? backward - weights : backward;
      const traffic = kind === FORWARD ? ahead : kind === WEIGHTS ? 0 : back;
      for (let k = 0; k < many; k++) found.push([name, compute, traffic]);
    }
    return kind === FORWARD ? found : found.reverse();
  }
  function exposed(n) {
    return inside(n).reduce((sum, one) => sum + one[2], 0);
  }

  function about(n) {
    const kind = t.kind[n], label = t.label[n] < 0 ? "" : t.labels[t.label[n]];
    const time = `${seconds(t.length[n] * t.tick_s)}, from ${seconds(t.start[n] * t.tick_s)}`;
    const chunks = t.chunks[t.stage[n]].length;
    if (kind === LEFT) return `Stage ${t.stage[n]}: passes left out of the drawing\nmicro-batches ${t.left_out[0]} to ${t.left_out[1]} repeat what is beside\n${time}`;
    if (kind === WAIT) return `Stage ${t.stage[n]} waits for ${label}\nbubble: ${time}`;
    if (kind === HANDOVER) return `Stage ${t.stage[n]} sends ${label} of micro-batch ${t.micro_batch[n]}\n${time}`;
    if (kind >= END) return `Stage ${t.stage[n]}: ${label}\n${time}`;
    const layers = inside(n), traffic = exposed(n);
    return `Stage ${t.stage[n]}: ${t.kinds[kind]} of micro-batch ${t.micro_batch[n]}` +
      (chunks > 1 ? `, chunk ${t.chunk[n]}` : "") + `\n${time}\n${layers.length} layers` +
      (traffic ? `; exposed traffic ${seconds(traffic)}` : "") + (label ? `\n${label}` : "");
  }

  function hatch(pen, left, top, wide, tall, paint, apart) {
    pen.save(); pen.beginPath(); pen.rect(left, top, wide, tall); pen.clip();
    pen.strokeStyle = paint; pen.lineWidth = 1; pen.beginPath();
    for (let k = Math.floor((left - tall) / apart) * apart; k < left + wide; k += apart) { pen.moveTo(k, top + tall); pen.lineTo(k + tall, top); }
    pen.stroke(); pen.restore();
  }

  function drawPass(pen, n, left, top, wide, tall, paints) {
    const chunks = t.chunks[t.stage[n]].length, kind = t.kind[n];
    pen.globalAlpha = chunks > 1 ? 1 - 0.5 * t.chunk[n] / (chunks - 1) : 1;
    pen.fillStyle = paints[kind]; pen.fillRect(left, top, wide, tall); pen.globalAlpha = 1;
    const beside = t.label[n] >= 0;  // a forward and a backward at once
    if (beside) { pen.fillStyle = paints[BACKWARD]; pen.fillRect(left, top + tall / 2, wide, tall / 2); }
    if (wide > 90 && !beside) {  // layers, each with its exposed traffic
      const layers = inside(n), sum = layers.reduce((all, one) => all + one[1] + one[2], 0) || 1;
      let at = left;
      pen.font = "10px system-ui, sans-serif";
      for (const [name, compute, traffic] of layers) {
        const first = wide * compute / sum, second = wide * traffic / sum;
        if (second > 0) { pen.fillStyle = paints.traffic; pen.fillRect(at + first, top, Math.max(second, 0.7), tall); }
        pen.fillStyle = paints.card; pen.fillRect(at + first + second - 0.5, top, 0.7, tall);
        if (first > 60 && tall > 13) {
          pen.fillStyle = paints.ink; pen.fillText(name.slice(0, Math.floor(first / 6)), at + 4, top + tall - 4);
        }
        at += first + second;
      }
    } else if (tall > 8) {  // the share of exposed traffic, at the lower edge
      const share = Math.min(1, exposed(n) * 1 / (t.length[n] * t.tick_s || 1));
      if (share * wide > 0.5) { pen.fillStyle = paints.traffic; pen.fillRect(left, top + tall - 3, share * wide, 3); }
    }
    if (wide > 22 && tall > 10) {
      pen.font = "600 11px system-ui, sans-serif"; pen.fillStyle = kind === FORWARD || kind === WEIGHTS ? "#10202c" : "#ffffff";
      pen.fillText(LETTER[kind] + t.micro_batch[n], left + 4, top + (wide > 90 ? 11 : tall / 2 + 3.5));
    }
    if (view.lit >= 0 && t.micro_batch[n] === view.lit) {
      pen.strokeStyle = paints.ink; pen.lineWidth = 2; pen.strokeRect(left + 1, top + 1, Math.max(wide - 2, 1), tall - 2);
    }
  }

  function draw() {
    if (!width) return;
    const dots = Math.max(1, Math.min(2, devicePixelRatio || 1)), tall = AXIS + stages * high + 4;
    canvas.width = Math.round(width * dots); canvas.height = Math.round(tall * dots);
    canvas.style.setProperty("height", tall + "px");
    const pen = canvas.getContext("2d");
    pen.scale(dots, dots);
    const paints = PAINT.map(colour);
    Object.assign(paints, { traffic: colour("traffic"), card: colour("card"), ink: colour("ink"), muted: colour("muted"), line: colour("line"), waitink: colour("waitink") });
    pen.fillStyle = paints.card; pen.fillRect(0, 0, width, tall);
    const upper = Math.round(high * 0.72);
    pen.save(); pen.beginPath(); pen.rect(GUTTER, 0, width - GUTTER, tall); pen.clip();
    axis(pen, paints, tall);
    for (let row = 0; row < stages; row++) {
      const top = AXIS + row * high;
      let last = -1e9;
      for (const n of rows[row]) {
        const end = t.start[n] + t.length[n];
        if (end < view.from || t.start[n] > view.to) continue;
        const left = x(t.start[n]), kind = t.kind[n], second = lane(kind);
        // Passes below a pixel blend by their shares of it; of traffic a pixel holds one.
        const wide = second ? Math.max(x(end) - left, 0.6) : x(end) - left;
        if (second && wide < 1 && left - last < 0.5) continue;
        if (second) last = left;
        const y = second ? top + upper : top, size = second ? high - upper - 2 : upper - 1;
        if (kind === LEFT) {
          pen.globalAlpha = 0.3; pen.fillStyle = paints[BACKWARD]; pen.fillRect(left, y, wide, size); pen.globalAlpha = 1;
        } else if (kind === WAIT) {
          pen.fillStyle = paints[kind]; pen.fillRect(left, y, wide, size);
          if (wide > 3) hatch(pen, left, y, wide, size, paints.waitink, 5);
        } else if (kind >= END) {
          pen.globalAlpha = kind === HANDOVER ? 0.55 : 1; pen.fillStyle = paints[kind]; pen.fillRect(left, y, wide, size); pen.globalAlpha = 1;
        } else drawPass(pen, n, left, y, wide, size, paints);
        if (n === view.at) { pen.strokeStyle = paints.ink; pen.lineWidth = 3; pen.strokeRect(left, y, wide, size); }
      }
    }
    pen.restore();
    names(pen, paints, upper);
    const span = (view.to - view.from) * t.tick_s;
    state.textContent = `Shown: ${seconds(view.from * t.tick_s)} to ${seconds(view.to * t.tick_s)} of ${seconds(t.step_s)}` + (span < t.step_s ? ` (zoom ${Math.round(t.step_s / span)} x)` : "") + (view.lit >= 0 ? `; framed: micro-batch ${view.lit}` : "");
  }

  function names(pen, paints, upper) {
    pen.fillStyle = paints.card; pen.fillRect(0, 0, GUTTER, 1e4);
    for (let row = 0; row < stages; row++) {
      const y = AXIS + row * high;
      pen.fillStyle = stageColour(row); pen.fillRect(0, y + 1, 6, high - 4);
      if (high > 11) { pen.fillStyle = paints.ink; pen.font = "12px system-ui, sans-serif"; pen.fillText("stage " + row, 11, y + upper / 2 + 4.5); }
    }
  }

  function axis(pen, paints, tall) {
    const span = (view.to - view.from) * t.tick_s, rough = span / Math.max(3, width / 140);
    const base = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((k) => k * base).find((k) => k >= rough);
    pen.font = "11px system-ui, sans-serif";
    for (let time = Math.ceil(view.from * t.tick_s / step) * step; time <= view.to * t.tick_s; time += step) {
      const at = x(time / t.tick_s);
      pen.fillStyle = paints.line; pen.fillRect(at, AXIS - 5, 1, tall);
      pen.fillStyle = paints.muted; pen.fillText(seconds(Number(time.toPrecision(6))), Math.min(at + 3, width - 44), 13);
    }
  }

  function hit(px, py) {
    const row = Math.floor((py - AXIS) / high);
    if (row < 0 || row >= stages || px < GUTTER) return -1;
    const second = (py - AXIS) % high > high * 0.72 ? 1 : 0, slack = 2 * (view.to - view.from) / width, time = timeAt(px);
    let near = -1, off = slack;
    for (const n of rows[row]) {
      if (lane(t.kind[n]) !== second) continue;
      const away = Math.max(t.start[n] - time, time - t.start[n] - t.length[n], 0);
      if (away < off || (away === 0 && off === 0 && n > near)) { near = n; off = away; }
    }
    return near;
  }

  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX, from: view.from, to: view.to, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.moved) {
      const n = hit(event.offsetX, event.offsetY);
      view.lit = n >= 0 && t.micro_batch[n] !== view.lit ? t.micro_batch[n] : -1;
      draw();
    }
    held = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held && Math.abs(event.clientX - held.x) > 3) {
      held.moved = true;
      const far = (held.x - event.clientX) / (width - GUTTER) * (held.to - held.from);
      show(held.from + far, held.to + far);
      return tip("", 0, 0);
    }
    const n = hit(event.offsetX, event.offsetY);
    tip(n < 0 ? "" : about(n), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => tip("", 0, 0));
  canvas.addEventListener("dblclick", (event) => zoom(0.4, event.offsetX));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, event.offsetX);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from;
    const keys = {
      ArrowLeft: () => show(view.from - span / 6, view.to - span / 6), ArrowRight: () => show(view.from + span / 6, view.to + span / 6),
      "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), Home: () => show(0, total),
      ArrowDown: () => walk(1), ArrowUp: () => walk(-1),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  function walk(by) {
    view.at = Math.min(count - 1, Math.max(0, view.at + by));
    const from = t.start[view.at], to = from + t.length[view.at], span = view.to - view.from;
    if (from < view.from || to > view.to) show(from - span / 10, from + 0.9 * span); else draw();
    state.textContent = about(view.at).replace(/\n/g, "; ");
  }
  function onePass() {  // the first backward pass of the first stage
    const n = rows[0].find((one) => t.kind[one] === BACKWARD || t.kind[one] === INPUTS) ?? 0;
    show(t.start[n] - 0.1 * t.length[n], t.start[n] + 1.2 * t.length[n]);
  }
  function firstPasses() {
    const ends = rows.map((row) => row.filter((n) => t.kind[n] < END)[0]).map((n) => t.start[n] + t.length[n]);
    show(0, Math.min(total, 3 * Math.max(...ends)));
  }
  const button = (text, run) => h("button", { type: "button", onclick: run }, text);
  const figure = drawn("Timeline of the step", (node, wide) => { width = wide; draw(); });
  const few = matchMedia("(max-width: 640px)").matches;
  figure.append(
    h("div", { class: "tools" }, button("Whole step", () => show(0, total)), button("Filling the pipeline", firstPasses), button("One pass, by layer", onePass),
      button("Zoom in", () => zoom(0.5)), button("Zoom out", () => zoom(2)), button("\u2190", () => show(view.from - (view.to - view.from) / 3, view.to - (view.to - view.from) / 3)), button("\u2192", () => show(view.from + (view.to - view.from) / 3, view.to + (view.to - view.from) / 3))),
    legend([["forward", "var(--forward)"], ["backward", "var(--backward)"],
      ...(t.kind.includes(INPUTS) ? [["backward for inputs", "var(--inputs)"], ["backward for weights", "var(--weights)"]] : []),
      ["exposed traffic", "var(--traffic)"], ["collectives and hand-overs (lower lane)", "var(--collective)"], ["bubble: waiting", "var(--wait)", true], ...(t.left_out ? [["busy, passes not drawn", "color-mix(in srgb, var(--backward) 30%, var(--card))"]] : []), ["end of step", "var(--end)"]]),
    canvas, state);
  figure.append(h("p", { class: "muted small screen" }, (few ? "Drag to move, tap a pass to follow its micro-batch." : "Drag to move, double-click or Ctrl + wheel to zoom, click a pass to follow its micro-batch. Keys: arrows, +, -, Home.") + said));
  return figure;
}
