"use strict";
// Two plans, studies and validations.

const GROUPS = ["backward", "traffic", "end", "weights", "collective", "forward", "last"];

// A picture of points: {x, y, group, tip, strong, label}; both axes may be logarithmic.
function pointsFigure(label, points, names, more) {
  return drawn(label, (node, width) => {
    const tall = Math.min(440, 0.62 * width + 60), left = 62, bottom = 40, above = 26;
    const kept = points.filter((one) => Number.isFinite(one.x) && Number.isFinite(one.y));
    const map = (value) => (more.log ? Math.log10(value) : value);
    const range = (values) => { const low = Math.min(...values), high = Math.max(...values), room = 0.06 * (high - low || Math.abs(high) || 1); return [low - room, high + room]; };
    if (!kept.length) return node.replaceChildren(h("p", { class: "muted" }, "No point has both figures."));
    const xs = range(kept.map((one) => map(one.x))), ys = more.equal ? xs : range(kept.map((one) => map(one.y)));
    const x = (value) => left + (map(value) - xs[0]) / (xs[1] - xs[0]) * (width - left - 12), y = (value) => tall - bottom - (map(value) - ys[0]) / (ys[1] - ys[0]) * (tall - bottom - above);
    const picture = s("svg", { width, height: tall, role: "img", "aria-label": label });
    for (let k = 0; k <= 4; k++) {
      const at = [xs, ys].map((ends) => { const value = ends[0] + k / 4 * (ends[1] - ends[0]); return more.log ? 10 ** value : value; });
      picture.append(s("line", { x1: left, x2: width, y1: y(at[1]), y2: y(at[1]), stroke: colour("line") }), s("text", { x: left - 6, y: y(at[1]) + 4, "text-anchor": "end" }, count(at[1])), s("text", { x: x(at[0]), y: tall - bottom + 16, "text-anchor": "middle" }, count(at[0])));
    }
    picture.append(s("text", { x: width - 8, y: tall - 6, "text-anchor": "end", "font-weight": 600 }, more.x), s("text", { x: 4, y: 12, "font-weight": 600 }, more.y));
    if (more.equal) picture.append(s("line", { x1: left, y1: tall - bottom, x2: width - 12, y2: above, stroke: colour("ink"), "stroke-dasharray": "5 4" }));
    const paint = (group) => colour(GROUPS[group % GROUPS.length]);
    if (more.front) names.forEach((_, group) => {
      const line = kept.filter((one) => one.group === group && one.strong).sort((a, b) => a.x - b.x);
      if (line.length > 1) picture.append(s("polyline", { points: line.map((one) => `${x(one.x).toFixed(1)},${y(one.y).toFixed(1)}`).join(" "), fill: "none", stroke: paint(group), "stroke-width": 1.5 }));
    });
    for (const one of kept) picture.append(s("circle", { cx: x(one.x), cy: y(one.y), r: one.strong ? 5 : 3, fill: paint(one.group), "fill-opacity": one.strong ? 1 : 0.45, "data-tip": one.tip, tabindex: one.strong && more.front ? "0" : null, role: one.strong && more.front ? "img" : null, "aria-label": one.strong && more.front ? one.tip : null, class: one.strong ? "strong" : "weak" }));
    let last = -99;
    for (const one of kept.filter((each) => each.strong && each.label).sort((a, b) => a.x - b.x)) {
      if (x(one.x) - last < 90) continue;
      last = x(one.x);
      const ends = last > width - 150;
      picture.append(s("text", { x: last + (ends ? -8 : 8), y: y(one.y) - 7, "text-anchor": ends ? "end" : "start" }, one.label.slice(0, 40)));
    }
    node.replaceChildren(picture, names.length > 1 ? legend(names.map((name, group) => [name, `var(--${GROUPS[group % GROUPS.length]})`])) : "");
  });
}

function count(value) {
  const size = Math.abs(value);
  const [factor, unit] = size >= 1e9 ? [1e9, " G"] : size >= 1e6 ? [1e6, " M"] : size >= 1e3 ? [1e3, " k"] : [1, ""];
  return Number((value / factor).toPrecision(3)) + unit;
}

// Colours of the map: light to dark blue, from worst to best; the figure stands in the cell.
function heatFigure(heat) {
  const shades = { late: "p2", infeasible: "waitink", limit: "p1", failed: "traffic", invalid: "ink", open: "soft" };
  return [...heat.panels.map((panel) => drawn(`${heat.what} ${panel.name}`, (node, width) => {
    const left = Math.min(130, 20 + 7 * Math.max(...panel.up.map((text) => text.length), 4)), wide = Math.min(120, (width - left - 4) / Math.max(panel.along.length, 1)), tall = 30;
    const picture = s("svg", { width: left + wide * panel.along.length + 4, height: tall * panel.up.length + 44, role: "img", "aria-label": `${heat.what} over ${heat.x} and ${heat.y}` });
    const values = panel.cells.map((one) => one[2]), low = Math.min(...values), high = Math.max(...values);
    const top = (row) => (panel.up.length - 1 - row) * tall;
    for (const [column, row, value, text] of panel.cells) {
      const good = high > low ? (value - low) / (high - low) : 1, share = 0.12 + 0.8 * (heat.most ? good : 1 - good);
      const tipText = `${heat.x} ${panel.along[column]}, ${heat.y} ${panel.up[row]}\n${heat.what}: ${text}`;
      picture.append(s("rect", { x: left + column * wide, y: top(row), width: wide - 2, height: tall - 2, fill: colour("card") }), s("rect", { x: left + column * wide, y: top(row), width: wide - 2, height: tall - 2, rx: 2, fill: colour("backward"), "fill-opacity": share, "data-tip": tipText, class: "cell" }));
      if (wide > 40) picture.append(s("text", { x: left + column * wide + wide / 2 - 1, y: top(row) + 18, "text-anchor": "middle", "pointer-events": "none", style: { fill: share > 0.55 ? "#ffffff" : "var(--ink)" } }, text));
    }
    for (const [column, row, why] of panel.empty) picture.append(s("rect", { x: left + column * wide, y: top(row), width: wide - 2, height: tall - 2, rx: 2, fill: colour(shades[why] || "soft"), "fill-opacity": 0.55, "data-tip": `${heat.x} ${panel.along[column]}, ${heat.y} ${panel.up[row]}\n${heat.reasons[why]}`, class: "empty" }),
      wide > 52 ? s("text", { x: left + column * wide + wide / 2 - 1, y: top(row) + 18, "text-anchor": "middle", "pointer-events": "none" }, heat.reasons[why].slice(0, Math.floor(wide / 6.5))) : "");
    panel.up.forEach((text, row) => picture.append(s("text", { x: left - 6, y: top(row) + 18, "text-anchor": "end" }, text)));
    panel.along.forEach((text, column) => picture.append(s("text", { x: left + column * wide + wide / 2, y: tall * panel.up.length + 16, "text-anchor": "middle" }, text.slice(0, Math.max(3, Math.floor(wide / 6))))));
    picture.append(s("text", { x: left, y: tall * panel.up.length + 36, "font-weight": 600 }, `across: ${heat.x}; up: ${heat.y}`));
    node.replaceChildren(panel.name ? h("h3", null, panel.name) : "", h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Heat map" }, picture));
  })),
  legend([[heat.most ? "darker: more" : "darker: less", "var(--backward)"], ...Object.keys(heat.reasons).filter((why) => heat.panels.some((panel) => panel.empty.some((one) => one[2] === why))).map((why) => [heat.reasons[why], `var(--${shades[why] || "soft"})`])])];
}

function effectsFigure(effects) {
  const most = Math.max(...effects.map((one) => one[2]), 1e-9);
  return h("figure", { role: "group", "aria-label": "Effect of each axis" }, h("div", { class: "bars wide" }, effects.map(([axis, objective, gain, better]) =>
    bar(h("span", null, axis, h("small", { class: "muted" }, " " + objective)), [{ from: 0, share: gain / most, paint: "var(--backward)" }], `${percent(gain)}, best at ${better}`, { tip: `${axis}: the best ${objective} over the worst, all else equal: ${percent(gain)}; best at ${better}` }))));
}

function studyPage(data) {
  const points = data.front.groups.flatMap((group, n) => group.points.map(([x, y, number, strong, label]) => ({ x, y, group: n, strong, label: strong ? label : "", tip: `point ${number}: ${label}\n${data.front.y} ${count(y)}; ${data.front.x} ${count(x)}` })));
  return { title: data.title, setting: data.status, links: [["best", "Best"], ["front", "Front"], ["heat", "Map"], ["effects", "What matters"], ["refused", "Refused"]], sections: [
    section("best", "The best answers", null, table(data.best.heads, data.best.rows.map((row) => ({ cells: row })), "Best answers")),
    section("front", "The front", `Each point is a plan; the filled ones are better than all others of their group in ${data.front.y} or ${data.front.x}.`, pointsFigure("Front of the study", points, data.front.groups.map((group) => group.name), { x: data.front.x, y: data.front.y, front: true })),
    data.heat ? section("heat", "Map", `${data.heat.what}: the ${data.heat.most ? "most" : "least"} over all other axes.`, heatFigure(data.heat)) : null,
    section("effects", "What matters", "The best value of each axis over the worst, all else equal (geometric mean).", data.effects.length ? effectsFigure(data.effects) : h("p", { class: "muted" }, "No two plans differ in one axis alone.")),
    section("refused", "What was refused, and why", null, data.refused.length ? table(["status", { text: "points", number: true }, "why"], data.refused.map(([status, number, why]) => ({ cells: [status, { text: number.toLocaleString("en"), number: true }, { text: why, class: "note" }] })), "Refused points") : h("p", null, "Every point has a plan."),
      data.doubts.length ? [h("h3", null, "Prices in doubt"), h("ul", { class: "plain" }, data.doubts.map(([number, text]) => h("li", null, `${number.toLocaleString("en")} points: ${text}`)))] : null)] };
}

function validationPage(data) {
  const heads = ["group", { text: "runs", number: true }, { text: "configurations", number: true }, { text: "median error", number: true }, { text: "bias", number: true }, { text: "order", number: true }, { text: "memory", number: true }];
  return { title: data.title, setting: "", links: [["sure", "How close"], ["parity", "Priced against measured"], ["groups", "Groups"], ["refused", "Refused"]], sections: [
    section("sure", "How close are prices?", null, h("dl", { class: "figures" }, data.figures.map((one) => h("div", { class: one.tone }, h("dt", null, one.name), h("dd", null, one.value, h("small", null, one.note)))))),
    section("parity", "Priced against measured", "Seconds of a step, both logarithmic; on the dashed line both agree.", pointsFigure("Priced against measured seconds", data.points.map(([x, y, group, tipText]) => ({ x, y, group, tip: tipText, strong: true })), data.groups.length > 7 ? [""] : data.groups, { x: "measured, s", y: "priced, s", log: true, equal: true })),
    section("groups", "By group of runs", null, table(heads, data.rows.map((row) => ({ cells: row.map((text, k) => ({ text, number: k > 0 })) })), "Groups of runs")),
    section("refused", "Runs without a price", null, data.refused.length ? table([{ text: "runs", number: true }, "why"], data.refused.map(([number, why]) => ({ cells: [{ text: number.toLocaleString("en"), number: true }, { text: why, class: "note" }] })), "Runs without a price") : h("p", null, "Every run has a price."))] };
}

function pairPage(data) {
  const longer = data.plans.map((one) => one.colours).sort((a, b) => b.length - a.length)[0];
  STAGES.colours = longer;
  const seen = new Set(), most = Math.max(...data.causes.map((one) => Math.abs(one.seconds)), 1e-12);
  const both = (id, title, lead, make) => section(id, title, lead, h("div", { class: id === "timeline" ? null : "two" }, data.plans.map((plan, n) => h("div", null, h("h3", null, data.names[n]), make(plan, n)))));
  return { title: `${data.names[0]} against ${data.names[1]}`, setting: data.plans[0].answer.setting, links: [["verdict", "Which is faster"], ["why", "Why"], ["rows", "What differs"], ["step", "Steps"], ["timeline", "Timelines"], ["memory", "Memory"], ["devices", "Devices"]], sections: [
    section("verdict", "Which one is faster, and why?", null, data.verdict.map((text) => h("p", null, told(text, seen)))),
    section("why", "Where the difference comes from", `Seconds of a step that ${data.names[1]} takes more (right) or less (left).`,
      h("figure", { role: "group", "aria-label": "Differences by cause" }, h("div", { class: "bars" }, data.causes.map((one) => {
        const share = 0.5 * Math.abs(one.seconds) / most;
        return bar(h("span", null, one.name), [{ from: one.seconds < 0 ? 0.5 - share : 0.5, share, paint: one.seconds < 0 ? "var(--end)" : "var(--traffic)" }, { from: 0.4985, share: 0.003, paint: "var(--ink)" }], one.text, { tip: `${one.name}: ${one.first} in ${data.names[0]}, ${one.second} in ${data.names[1]}` });
      })))),
    section("rows", "What differs", "Equal rows are grey.", table(["choice or figure", ...data.names], data.rows.map((one) => ({ class: one.same ? "refused" : null, cells: [one.name, one.first, one.second] })), "Choices and figures of both")),
    both("step", "Where the steps go", null, (plan) => waterfallFigure(plan.steps, plan.step, seen)),
    both("timeline", "Timelines", null, (plan) => timelineFigure(plan, "")),
    both("memory", "Memory", null, (plan) => memoryFigure(plan)),
    both("devices", "Devices", "The number is the stage.", (plan) => placesFigure(plan))] };
}
