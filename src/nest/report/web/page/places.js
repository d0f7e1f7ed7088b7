"use strict";
// Which device does what: squares in the colours of their stages, framed by the groups of levels.

function roleOf(places) {
  // Stage and replica of a device; the first of several pieces.
  const ends = places.stages.map((span) => span[1]), most = Math.max(...ends), starts = places.replicas;
  return (device) => {
    let low = 0, high = starts.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (starts[middle] <= device) low = middle; else high = middle - 1; }
    const at = device - starts[low];
    if (at < 0 || at >= most) return null;
    const stage = places.stages.findIndex((span) => span[0] <= at && at < span[1]);
    return stage < 0 ? null : [stage, low];
  };
}

function typeOf(places) {
  const found = [];
  for (const [count, type] of places.type_runs) for (let k = 0; k < (places.types.length > 1 ? count : 0); k++) found.push(type);
  return (device) => places.types[found[device] || 0];
}

function squareOf(places, number, role, type) {
  // The shares of stages of a square, and what it says.
  const first = number * places.each, stop = Math.min(first + places.each, places.size), shares = new Map();
  for (let device = first; device < stop; device++) {
    const one = role(device), key = one ? one[0] : -1;
    if (!shares.has(key)) shares.set(key, { count: 0, replicas: [] });
    const held = shares.get(key);
    held.count++;
    if (one && held.replicas[held.replicas.length - 1] !== one[1]) held.replicas.push(one[1]);
  }
  const span = (list) => (list.length === 1 ? list[0] : `${list[0]} to ${list[list.length - 1]}`);
  const parts = [...shares].map(([stage, held]) => (stage < 0 ? "idle" : `stage ${stage}, replica ${span(held.replicas)}`) + (shares.size > 1 ? ` (${held.count})` : ""));
  return { shares, count: stop - first, text: `device${stop - first > 1 ? `s ${first} to ${stop - 1}` : ` ${first}`}` + (places.stages.length ? `: ${parts.join("; ")}` : "") + (places.types.length > 1 ? `\n${type(first)}` : "") };
}

function paintSquare(square, left, top, size) {
  const group = s("g", { "data-tip": square.text });
  let at = left;
  for (const [stage, held] of [...square.shares].sort((a, b) => a[0] - b[0])) {
    const wide = size * held.count / square.count;
    group.append(s("rect", { x: at, y: top, width: wide, height: size, fill: stage < 0 ? "none" : stageColour(stage), stroke: stage < 0 ? colour("waitink") : "none", "stroke-dasharray": stage < 0 ? "2 2" : null, class: stage < 0 ? "idle" : "stage" + stage }));
    at += wide;
  }
  return group;
}

function placesFigure(data) {
  const places = data.places, role = roleOf(places), type = typeOf(places);
  const figure = drawn("Devices and their stages", (node, width) => {
    node.replaceChildren(places.graph ? graphPicture(places, width, role, type) : levelPicture(places, width, role, type));
  });
  return figure;
}

// Columns near a wished number that leave the least of the last row empty.
function evenly(children, wished) {
  let best = wished, waste = Infinity;
  for (let across = Math.max(1, Math.ceil(0.65 * wished)); across <= Math.min(children, Math.ceil(1.5 * wished)); across++) {
    const lost = (Math.ceil(children / across) * across - children) / children + 0.1 * Math.abs(Math.log(across / wished));
    if (lost < waste) { waste = lost; best = across; }
  }
  return best;
}

function levelPicture(places, width, role, type) {
  // Boxes of each level from the innermost on: as many children in a row as make the wanted shape.
  const levels = places.levels.filter((level) => level.devices > places.each);
  if (!levels.length || levels[levels.length - 1].devices < places.size) levels.push({ name: "", devices: places.size });
  const wanted = Math.max(0.9, Math.min(3.4, width / 330));
  const sizes = [{ wide: 1, tall: 1, across: 1, pad: 0, gap: 0, devices: places.each }];
  levels.forEach((level, depth) => {
    const inner = sizes[depth], children = Math.ceil(Math.min(level.devices, places.size) / inner.devices), last = depth === levels.length - 1;
    const gap = depth ? 0.35 + 0.35 * depth : 0.15, pad = last ? 0 : 0.3;
    let across = last || depth ? Math.max(1, Math.round(Math.sqrt(children * (last ? wanted : 1.6) * inner.tall / inner.wide))) : Math.min(children, children <= 8 ? 8 : Math.ceil(Math.sqrt(children)));
    across = evenly(children, Math.min(across, children));
    const down = Math.ceil(children / across);
    sizes.push({ across, gap, pad, devices: level.devices, wide: across * (inner.wide + gap) - gap + 2 * pad, tall: down * (inner.tall + gap) - gap + 2 * pad });
  });
  const whole = sizes[sizes.length - 1], unit = Math.min(22, (width - 2) / whole.wide);
  const picture = s("svg", { width: whole.wide * unit + 2, height: whole.tall * unit + 2, role: "img", "aria-label": places.stages.length ? `${places.size} devices in the colours of ${places.stages.length} stages; ${places.idle} idle` : `${places.size} devices in groups of ${places.levels.map((one) => one.name).join(", ")}` });
  function box(depth, first, left, top) {
    const own = sizes[depth];
    if (!depth) { picture.append(paintSquare(squareOf(places, first / places.each, role, type), left, top, unit)); return; }
    const inner = sizes[depth - 1], stop = Math.min(first + own.devices, places.size);
    if (own.pad) picture.append(s("rect", { x: left, y: top, width: own.wide * unit, height: own.tall * unit, rx: 3, fill: "none", stroke: colour("line") }));
    let number = 0;
    for (let device = first; device < stop; device += inner.devices, number++) {
      const column = number % own.across, row = Math.floor(number / own.across);
      box(depth - 1, device, left + (own.pad + column * (inner.wide + own.gap)) * unit, top + (own.pad + row * (inner.tall + own.gap)) * unit);
    }
    const one = role(first), other = role(stop - 1), roomy = Math.min(own.wide, own.tall * 3) * unit;
    if (depth === 1 && one && other && one[0] === other[0] && roomy > 15) picture.append(s("text", { x: left + own.wide * unit / 2, y: top + own.tall * unit / 2 + 4, "text-anchor": "middle", "font-weight": 700, "paint-order": "stroke", stroke: colour("card"), "stroke-width": 3, "pointer-events": "none" }, String(one[0])));
  }
  box(sizes.length - 1, 0, 1, 1);
  return picture;
}

function graphPicture(places, width, role, type) {
  const graph = places.graph, all = [...graph.points, ...graph.lines.flatMap((line) => line.reduce((found, value, n) => (n % 2 ? found[found.length - 1].push(value) : found.push([value]), found), []))];
  const xs = all.map((one) => one[0]), ys = all.map((one) => one[1]);
  const low = [Math.min(...xs) - 0.7, Math.min(...ys) - 0.7], high = [Math.max(...xs) + 0.7, Math.max(...ys) + 0.7];
  const unit = Math.min(34, width / (high[0] - low[0])), tall = (high[1] - low[1]) * unit;
  const x = (value) => (value - low[0]) * unit, y = (value) => (high[1] - value) * unit;
  const picture = s("svg", { width: (high[0] - low[0]) * unit, height: tall, role: "img", "aria-label": `${places.size} devices, switches and links; ${places.idle} idle` });
  const least = Math.min(...graph.rates), most = Math.max(...graph.rates);
  graph.lines.forEach((line, n) => {
    const points = line.map((value, k) => (k % 2 ? y(value) : x(value)).toFixed(1)).join(" ");
    picture.append(s("polyline", { points, fill: "none", stroke: colour("waitink"), "stroke-width": most > least ? 0.8 + 2 * (graph.rates[n] - least) / (most - least) : 1, class: "cable" }));
  });
  graph.points.forEach(([px, py], n) => {
    if (n >= graph.squares) { picture.append(s("circle", { cx: x(px), cy: y(py), r: Math.max(2, 0.2 * unit), fill: colour("waitink"), "data-tip": "switch" })); return; }
    const size = 0.8 * unit, square = squareOf(places, n, role, type), one = role(n * places.each);
    picture.append(s("rect", { x: x(px) - size / 2, y: y(py) - size / 2, width: size, height: size, fill: colour("card") }), paintSquare(square, x(px) - size / 2, y(py) - size / 2, size));
    if (one && size > 13) picture.append(s("text", { x: x(px), y: y(py) + 4, "text-anchor": "middle", "font-weight": 700, "paint-order": "stroke", stroke: colour("card"), "stroke-width": 3, "pointer-events": "none" }, String(one[0])));
  });
  return picture;
}
