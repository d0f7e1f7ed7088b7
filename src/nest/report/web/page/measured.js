"use strict";
// Diagnoses of runs, and comparisons of planners.

// From one figure to another, cause by cause: {name, from, to, text, kind, tip} in shares of the longest.
function stairsFigure(label, rows) {
  const paint = { whole: "var(--compute)", more: "var(--traffic)", less: "var(--end)", end: "var(--waitink)" };
  return h("figure", { role: "group", "aria-label": label }, h("div", { class: "bars waterfall" }, rows.map((one) =>
    bar(one.kind === "more" || one.kind === "less" ? one.name : h("b", null, one.name), [{ from: Math.min(one.from, one.to), share: Math.max(Math.abs(one.to - one.from), 0.003), paint: paint[one.kind] }], one.text, { tip: one.tip }))),
  legend([["priced", paint.whole], ["more than priced", paint.more], ["less than priced", paint.less], ["measured", paint.end]]));
}

// Texts as a list; what stands between backticks is code.
const listed = (texts) => h("ul", { class: "plain" }, texts.map((text) => h("li", null, text.split("`").map((part, n) => (n % 2 ? h("code", null, part) : part)))));
const causeBox = (one) => h("div", { class: "cause" }, h("h3", null, `${one.name}, ${one.text}`),
  listed(one.evidence), one.advice.length ? [h("p", { class: "small" }, h("b", null, "What to try")), listed(one.advice)] : null);

function diagnosisPage(data) {
  const links = [["answer", "Why"], ["causes", "Causes"], ...(data.parts.length ? [["parts", "Kinds of work"]] : []), ...(data.memory.length ? [["memory", "Memory"]] : []), ["sources", "Read"]];
  return { title: data.title, setting: data.setting, links, sections: [
    section("answer", data.headline, data.within,
      data.out_of_memory.map((one) => h("div", { class: "alarm" }, h("b", null, one.text), one.advice.length ? [h("p", { class: "small" }, "What to try:"), listed(one.advice)] : null)),
      data.figures.length ? h("dl", { class: "figures" }, data.figures.map((one, n) => h("div", { class: one.tone + (n ? "" : " first") }, h("dt", null, one.name), h("dd", { class: one.value.length > 11 ? "small" : null }, one.value, h("small", null, one.note))))) : null,
      data.first.length ? [h("h3", null, "What to try first"), listed(data.first)] : null,
      data.stairs.length ? [h("h3", null, "From the priced step to the measured one"), stairsFigure("From the priced step to the measured one", data.stairs)] : null),
    section("causes", "Causes, their evidence, and what to try", data.causes.length ? "The largest first; their seconds add up to the difference." : "No step was timed.",
      h("div", { class: "causes" }, data.causes.map(causeBox)),
      data.beside.length ? [h("h3", null, "Beside the steps, in the whole run"), h("div", { class: "causes" }, data.beside.map(causeBox))] : null),
    data.parts.length ? section("parts", "Kinds of work, priced and measured", "Seconds of a typical step of the rank that waits least.",
      table(["work", { text: "priced", number: true }, { text: "measured", number: true }, { text: "difference", number: true }], data.parts.map((row) => ({ cells: row.map((text, k) => ({ text, number: k > 0 })) })), "Kinds of work")) : null,
    data.memory.length ? section("memory", "Memory, priced and measured", null, data.memory.map((one) => h("div", null, h("h3", null, one.name), stairsFigure(one.name, one.stairs), h("div", { class: "causes" }, one.causes.map(causeBox))))) : null,
    section("sources", "What was read", null, listed(data.sources), data.notes.length ? [h("h3", null, "In doubt, or left out"), listed(data.notes)] : null)] };
}

function comparisonPage(data) {
  const most = Math.max(...data.rows.map((one) => one.rate), 1e-9), longest = Math.max(...data.rows.map((one) => one.step_s), 1e-12);
  return { title: data.title, setting: data.setting, links: [["answer", "Which is fastest"], ["rows", "Figures"], ["steps", "Where the steps go"], ["plans", "Plans"]], sections: [
    section("answer", "Which planner's plan is the fastest?", data.verdict,
      h("figure", { role: "group", "aria-label": `${data.unit} of each planner` }, h("div", { class: "bars wide" }, data.rows.map((one) => bar(h("b", null, one.planner), one.rate ? [{ from: 0, share: one.rate / most, paint: one.state === "fits" ? "var(--compute)" : "var(--waitink)", hatched: one.state !== "fits" }] : [], one.rate ? `${one.told.split(",")[0]} ${data.unit}${one.told.includes(",") ? ", " + one.told.split(", ")[1] : ""}` : one.told, { tip: `${one.planner}: ${one.told}${one.reason ? "\n" + one.reason : ""}` }))),
        legend([["fits, and the software runs it", "var(--compute)"], ...(data.rows.some((one) => one.state !== "fits" && one.rate) ? [["does not fit, or the software cannot run it", "var(--waitink)", true]] : [])]))),
    section("rows", "Figures", data.spaces, table(data.heads.map((text, k) => ({ text, number: k > 0 && k < 6 })), data.cells.map((row, n) => ({ class: data.rows[n].state === "fits" ? null : "refused", cells: row.map((text, k) => ({ text, number: k > 0 && k < 6 })) })), "Figures of all planners")),
    section("steps", "Where the steps go", "Each strip is one step, in parts as priced, and as long as the step takes.", data.rows.filter((one) => one.steps.length).map((one) => h("div", null, h("h3", null, `${one.planner}: ${one.step}`), h("div", { style: { width: 100 * one.step_s / longest + "%" } }, strip(one.steps))))),
    section("plans", "Plans", null, table(["planner", "plan"], data.rows.map((one) => ({ class: one.plan ? null : "short", cells: [{ text: one.planner, class: "nowrap" }, { text: one.plan || "-", class: "note" }] })), "Each plan in a line"),
      data.rows.some((one) => one.reason) ? [h("h3", null, "Without a plan that fits"), listed(data.rows.filter((one) => one.reason).map((one) => `${one.planner}: ${one.reason}`))] : null)] };
}
