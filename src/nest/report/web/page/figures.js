"use strict";
// Figures of bars and lines.

const KIND = { compute: "compute", traffic: "traffic", wait: "wait", end: "end" };
const PURPOSE = ["p0", "p1", "p2", "p3", "p4"];

function bar(name, parts, value, more) {
  // parts: {from, share, paint, tip, hatched} in shares of the track.
  return h("div", { class: "bar" + (more && more.thin ? " thin" : "") },
    h("span", { class: "name" }, name),
    h("span", { class: "track", tabindex: more && more.tip ? "0" : null, role: more && more.tip ? "img" : null, "aria-label": more && more.tip ? more.tip : null, "data-tip": more && more.tip },
      parts.map((one) => h("span", { class: "part" + (one.hatched ? " hatched" : ""), "data-tip": one.tip, style: { left: 100 * Math.min(1, one.from) + "%", width: 100 * Math.min(1 - Math.min(1, one.from), one.share) + "%", "background-color": one.paint } })),
      more && more.limit ? h("span", { class: "limit", style: { left: `calc(${100 * more.limit}% - 2px)` } }) : null),
    h("span", { class: "value" }, value));
}

// The step as a waterfall: {name, seconds, text, share, evidence, advice, kind}; their sum is the whole.
function waterfallFigure(steps, whole, seen) {
  let from = 0;
  const total = steps.reduce((sum, one) => sum + Math.max(one.seconds, 0), 0) || 1;
  const rows = steps.map((one) => {
    const part = { from: Math.max(from, 0) / total, share: Math.abs(one.seconds) / total, paint: `var(--${KIND[one.kind] || "compute"})`, hatched: one.kind === "wait" };
    from += one.seconds;
    const about = [one.evidence && `Rests on: ${one.evidence}.`, one.advice && `Shorter with: ${one.advice}`].filter(Boolean).join("\n");
    return [bar(h("span", null, told(one.name, seen)), [part], `${one.text}, ${percent(one.share)}`, { tip: `${one.name}: ${one.text}\n${about}` }),
      one.share >= 0.02 && one.kind !== "compute" && one.advice ? h("p", { class: "advice" }, one.advice) : null];
  });
  return h("figure", { role: "group", "aria-label": "Where the step goes" }, h("div", { class: "bars waterfall" }, rows,
    bar(h("b", null, "step"), [{ from: 0, share: 1, paint: "var(--line)" }], whole, {})),
    legend([["computing", "var(--compute)"], ["exposed traffic", "var(--traffic)"], ["waiting", "var(--wait)", true], ["end of step", "var(--end)"]]));
}

function memoryFigure(data) {
  const most = Math.max(...data.memory.map((one) => Math.max(one.limit, one.total))), paints = ["var(--backward)", "var(--forward)", "var(--p2)", "var(--p1)", "var(--waitink)"];
  const rows = data.memory.map((one, n) => {
    let from = 0;
    const parts = one.parts.map((size, k) => {
      const part = { from: from / most, share: size / most, paint: paints[k], tip: `stage ${n}: ${data.categories[k]} ${size.toFixed(1)} GiB` };
      from += size;
      return part;
    });
    const tipText = `stage ${n}: ${one.total.toFixed(1)} of ${one.limit.toFixed(1)} GiB\n` + one.parts.map((size, k) => `${data.categories[k]} ${size.toFixed(1)}`).join(", ") + `\nsimulated peak ${one.simulated.toFixed(1)} GiB; ${one.in_flight} micro-batches held`;
    return bar(h("span", null, h("i", { class: "swatch", style: { "background-color": stagePaint(n), "margin-right": "7px" } }), `stage ${n}`), parts, `${one.total.toFixed(1)} of ${one.limit.toFixed(1)} GiB`, { limit: one.limit / most, tip: tipText, thin: data.memory.length > 12 });
  });
  return h("figure", { role: "group", "aria-label": "Memory of each stage" }, h("div", { class: "bars" }, rows),
    legend(data.categories.map((name, k) => [name, paints[k]])), h("p", { class: "muted small" }, "The line at the end of a bar is the limit of a device."));
}

function memoryCurve(data) {
  const t = data.timeline, fullest = data.memory.map((one, n) => [one.total / one.limit, n]).sort((a, b) => b[0] - a[0])[0][1];
  let chosen = fullest;
  const figure = drawn("Memory over time", (node, width) => {
    const tall = 190, left = 44, bottom = 20, total = t.step_s / t.tick_s;
    const limit = data.memory[chosen].limit, top = 1.06 * Math.max(limit, ...t.memory.flatMap((row) => row.filter((_, k) => k % 2)).map((mib) => mib / 1024));
    const x = (time) => left + time / total * (width - left - 4), y = (gib) => tall - bottom - gib / top * (tall - bottom - 6);
    const picture = s("svg", { width, height: tall, role: "img", "aria-label": `Memory of stage ${chosen} over the step, in GiB` });
    for (let k = 0; k <= 4; k++) {
      const gib = k * top / 4;
      picture.append(s("line", { x1: left, x2: width, y1: y(gib), y2: y(gib), stroke: colour("line") }), s("text", { x: left - 6, y: y(gib) + 4, "text-anchor": "end" }, gib.toFixed(0)));
    }
    const line = (row) => t.memory[row].reduce((found, value, k) => (k % 2 ? found + y(value / 1024).toFixed(1) : found + (k ? "L" : "M") + x(value).toFixed(1) + " "), "");
    for (let row = 0; row < t.memory.length; row++) if (row !== chosen && t.memory.length <= 16 && t.memory[row].length) picture.append(s("path", { d: line(row), fill: "none", stroke: stageColour(row), "stroke-opacity": 0.35 }));
    if (t.memory[chosen].length) picture.append(s("path", { d: line(chosen), fill: "none", stroke: stageColour(chosen), "stroke-width": 2, class: "curve" }));
    picture.append(s("line", { x1: left, x2: width, y1: y(limit), y2: y(limit), stroke: colour("ink"), "stroke-dasharray": "5 4" }), s("text", { x: left + 6, y: y(limit) - 5 }, `limit ${limit.toFixed(1)} GiB`));
    picture.append(s("text", { x: left, y: tall - 5 }, "0 s"), s("text", { x: width - 4, y: tall - 5, "text-anchor": "end" }, seconds(t.step_s)));
    node.replaceChildren(picture);
  });
  const pick = h("select", { "aria-label": "Stage of the curve of memory", onchange: (event) => { chosen = Number(event.target.value); redraw(true); } }, data.memory.map((_, n) => h("option", { value: n, selected: n === chosen || null }, `stage ${n}`)));
  return h("div", null, h("div", { class: "tools" }, h("h3", null, "Over the step, GiB of a device"), pick), figure);
}

function trafficFigure(traffic) {
  if (!traffic.loads.length) return h("p", { class: "muted" }, traffic.note);
  const top = Math.max(...traffic.loads.map((one) => one.share), 1e-9), used = traffic.purposes.map((_, k) => traffic.loads.some((one) => one.bytes[k] > 0));
  const rows = traffic.loads.map((one) => {
    const sum = one.bytes.reduce((a, b) => a + b, 0) || 1;
    let from = 0;
    const parts = one.bytes.map((size, k) => {
      const share = size / sum * one.share / top, part = { from, share, paint: `var(--${PURPOSE[k]})`, tip: `${traffic.purposes[k]}: ${(size / 2 ** 30).toFixed(2)} GiB a step` };
      from += share;
      return part;
    }).filter((one) => one.share > 0);
    return bar(h("span", null, one.name, h("small", { class: "muted" }, " " + one.note)), parts, `${one.text}, ${percent(one.share)}`, { tip: `${one.name}: ${one.text} in a step\n${percent(one.share)} of the step at the full rate` });
  });
  return h("figure", { role: "group", "aria-label": traffic.title }, h("div", { class: "bars" }, rows),
    legend(traffic.purposes.map((name, k) => [name, `var(--${PURPOSE[k]})`]).filter((_, k) => used[k])),
    traffic.spread.length ? h("p", { class: "muted small" }, "Links by their load, from idle to the busiest, in tenths: " + traffic.spread.map((n) => n.toLocaleString("en")).join(" | ")) : null,
    h("p", { class: "muted small" }, traffic.note));
}
