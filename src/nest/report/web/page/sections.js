"use strict";
// Each kind of document as its sections.

function optionTable(head, options, label) {
  if (!options.length) return null;
  return table([head, { text: "step", number: true }, { text: "change", number: true }, "what it means"], options.map((one) => ({
    class: one.state,
    cells: [one.name, { text: one.step || "-", number: true }, { number: true, node: h("span", { class: one.share === null || Math.abs(one.share) < 5e-5 || one.state !== "fits" ? null : one.share < 0 ? "faster" : "slower" }, one.slower || "-") },
      { class: "note", text: (one.state === "short" && one.note ? "not possible: " : one.state === "refused" ? "the software cannot run it: " : "") + one.note }],
  })), label, true);
}

// The whole step as one strip: where its time goes, at a glance.
function strip(steps) {
  return h("div", { class: "strip", role: "img", "aria-label": "Where the step goes: " + steps.map((one) => `${one.name} ${percent(one.share)}`).join(", ") },
    steps.filter((one) => one.seconds > 0).map((one) => h("span", { class: [one.share < 0.07 ? "tiny" : "", KIND[one.kind] || "compute", one.kind === "wait" ? "hatched" : ""].join(" ").trim() || null, "data-tip": `${one.name}: ${one.text}, ${percent(one.share)} of the step`, style: { flex: `${one.share} 1 0`, "background-color": one.name === "backward" ? "var(--backward)" : `var(--${KIND[one.kind] || "compute"})` } }, one.share < 0.07 ? "" : `${one.name} ${percent(one.share, 0)}`)));
}

function answerSection(answer, steps) {
  const seen = new Set();
  return section("answer", "What to run", null,
    answer.feasible ? null : h("div", { class: "alarm" }, h("b", null, "Does not fit. "), answer.problems.slice(0, 4).join("; ")),
    h("ul", { class: "chips" }, answer.choices.map((one) => h("li", null, told(one.name, seen), h("b", null, one.value), h("span", { class: "own" }, told(one.own, seen))))),
    h("h2", null, "How fast, and how sure"),
    h("dl", { class: "figures" }, answer.figures.map((one, n) => h("div", { class: one.tone + (n ? "" : " first") }, h("dt", null, told(one.name, seen)), h("dd", { class: one.value.length > 11 ? "small" : null }, one.value, h("small", null, one.note))))),
    strip(steps),
    h("div", { class: "verdicts" }, answer.verdicts.map((one) => h("div", null, h("h3", null, one.question), one.sentences.map((text) => h("p", null, told(text, seen)))))));
}

function copied(text) {
  const button = h("button", { type: "button", onclick: () => {
    const done = () => { button.textContent = "Copied"; };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => { button.textContent = "Select and copy"; });
  } }, "Copy");
  return h("div", null, h("div", { class: "tools" }, button), h("pre", { tabindex: "0" }, text));
}

function launchSection(data) {
  return section("launch", "Launch it", null,
    data.answer.launch.map((text) => h("p", null, text)),
    data.target ? h("p", null, h("code", null, data.commands[0]), " writes these files:") : null,
    data.files.length
      ? data.files.map(([name, text], n) => h("details", { open: n === 0 || null }, h("summary", null, name), copied(text)))
      : h("p", { class: "muted" }, "No launch files: no software that NEST exports to runs this plan."),
    h("h3", null, "Commands"), copied(data.commands.join("\n")));
}

function planPage(data) {
  STAGES.colours = data.colours;
  const seen = new Set(), places = data.places, t = data.timeline, options = data.options;
  const links = [["answer", "What to run"], ["step", "Where the step goes"], ["timeline", "Timeline"], ["devices", "Devices"], ["memory", "Memory"], ["links", "Links"], ["options", "Other plans"], ["resources", "More resources"], ["launch", "Launch"], ["assumed", "Assumed"]];
  const left = t.left_out ? ` Micro-batches ${t.left_out[0]} to ${t.left_out[1]} are left out: they repeat what is beside.` : "";
  const replicas = places.replicas.length;
  return { title: data.answer.subject, setting: data.answer.setting, links, sections: [
    answerSection(data.answer, data.steps),
    section("step", "Where the step goes", `The step of ${data.step} in parts, as estimated. Rest on a bar to see what its estimate rests on and what shortens it.`, waterfallFigure(data.steps, data.step, seen)),
    section("timeline", "One step in time", `${places.stages.length} stage${places.stages.length > 1 ? "s" : ""}, simulated event by event. ` + (replicas > 1 ? (t.equal === replicas ? `All ${replicas.toLocaleString("en")} replicas are equal: one is shown.` : `Of ${replicas.toLocaleString("en")} replicas the slowest is shown, number ${t.replica}; ${t.equal} are like it.`) : ""), timelineFigure(data, left)),
    section("devices", "Which device does what", `${places.size.toLocaleString("en")} devices: ${places.stages.length} stages in ${replicas.toLocaleString("en")} replica${replicas > 1 ? "s" : ""}, ${places.idle ? places.idle.toLocaleString("en") + " idle (dashed)" : "none idle"}.` + (places.each > 1 ? ` A square stands for ${places.each} devices.` : "") + " The number is the stage.",
      placesFigure(data),
      places.levels.length ? h("p", { class: "muted small" }, "Frames, from the inside: " + places.levels.map((one) => `${one.name} of ${one.devices.toLocaleString("en")} (${one.note})`).join("; ") + ".") : null,
      [...places.notes, ...(places.graph ? places.graph.notes : [])].map((text) => h("p", { class: "muted small" }, text)),
      h("h3", null, "Stages"), table(data.heads.map((name) => ({ text: name, number: !["stage", "layers", "devices", "type", "ZeRO", "recompute"].includes(name) })), data.rows.map((row) => ({ cells: row.map((text, k) => ({ text, number: !["stage", "layers", "devices", "type", "ZeRO", "recompute"].includes(data.heads[k]), class: "nowrap" })) })), "Stages")),
    section("memory", "Memory", "What a device of each stage holds at its fullest, against its limit.", memoryFigure(data), memoryCurve(data)),
    section("links", data.traffic.title, null, trafficFigure(data.traffic)),
    section("options", "Other plans, and what each would cost", null,
      h("h3", null, "The next best plans of the search"), optionTable("plan", options.best, "Next best plans"), options.best_note ? h("p", { class: "muted" }, options.best_note) : null,
      options.changed.length ? h("h3", null, "This plan with one choice changed") : null, optionTable("change", options.changed, "One choice changed"),
      options.simpler.length ? h("h3", null, "Simpler plans") : null, optionTable("plan", options.simpler, "Simpler plans")),
    section("resources", "What more would bring", options.resources_note, optionTable("resource", options.resources, "More of each resource")),
    launchSection(data),
    section("assumed", "What was assumed", null, h("ul", { class: "plain" }, data.answer.assumed.map((text) => h("li", null, text))))] };
}

// The first screen of a plan, while better ones are looked for.
const firstPage = (data) => ({ title: data.answer.subject, setting: data.answer.setting, links: [["answer", "What to run"], ["step", "Where the step goes"]], sections: [
  answerSection(data.answer, data.steps), section("step", "Where the step goes", `The step of ${data.step} in parts, as estimated.`, waterfallFigure(data.steps, data.step, new Set()))] });

const PAGES = { plan: planPage, first: firstPage, pair: pairPage, study: studyPage, validation: validationPage, diagnosis: diagnosisPage, comparison: comparisonPage };
const navigation = (links) => h("nav", { "aria-label": "Sections" }, links.map(([id, name]) => h("a", { href: "#" + id }, name)));
