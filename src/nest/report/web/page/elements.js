"use strict";
// Elements are made from data as text: nothing is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((one) => one !== null && one !== undefined && one !== ""));
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// A text whose first known term (once a section) explains itself.
function told(text, seen) {
  const found = [];
  let rest = String(text);
  for (let match = TERM.exec(rest); match; match = TERM.exec(rest)) {
    const key = match[0].toLowerCase();
    found.push(rest.slice(0, match.index));
    found.push(seen.has(key) ? match[0] : h("dfn", { tabindex: "0", "data-tip": TERMS[key] }, match[0]));
    seen.add(key);
    rest = rest.slice(match.index + match[0].length);
  }
  return [...found, rest];
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const STAGES = { colours: [] };
// Stages keep their colour in every figure; the black one is light on a dark page.
const stageColour = (n) => (STAGES.colours[n] === "#000000" ? colour("last") : STAGES.colours[n] || "#888888");
const stagePaint = (n) => (STAGES.colours[n] === "#000000" ? "var(--last)" : stageColour(n));  // of an element, in both themes
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + " %";

function seconds(value) {
  const size = Math.abs(value);
  const [factor, unit] = size >= 1 || size === 0 ? [1, "s"] : size >= 1e-3 ? [1e3, "ms"] : [1e6, "us"];
  return Number((value * factor).toPrecision(4)) + " " + unit;
}

function section(id, title, lead, ...children) {
  return h("section", { id, "aria-labelledby": id + "-title" },
    h("h2", { id: id + "-title" }, title), lead ? h("p", { class: "lead" }, lead) : null, children);
}

function table(heads, rows, label, stacked) {
  // rows: {cells, class}; a cell is a text, or {text, number, class, node}.
  const cell = (tag, one) => {
    const given = typeof one === "object" && !(one instanceof Node) ? one : { text: one };
    return h(tag, { class: [given.number ? "number" : "", given.class || ""].join(" ").trim() || null, scope: tag === "th" ? "col" : null }, given.node || String(given.text ?? ""));
  };
  return h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label },
    h("table", { class: stacked ? "stacked" : null }, h("thead", null, h("tr", null, heads.map((one) => cell("th", one)))),
      h("tbody", null, rows.map((row) => h("tr", { class: row.class || null }, row.cells.map((one) => cell("td", one)))))));
}

function legend(entries) {
  return h("div", { class: "legend" }, entries.map(([name, paint, hatched]) =>
    h("span", null, h("i", { class: "swatch" + (hatched ? " hatched" : ""), style: { "background-color": paint } }), name)));
}

// A figure that is drawn again when its width or the colours change.
const FIGURES = [];
function drawn(label, draw) {
  const node = h("figure", { role: "group", "aria-label": label });
  FIGURES.push({ node, draw, width: 0 });
  return node;
}
function redraw(all) {
  for (const one of FIGURES) {
    const width = one.node.clientWidth;
    if (!width || (!all && width === one.width)) continue;
    one.width = width;
    one.draw(one.node, width);
  }
}

// ---------------------------------------------------------------- tips

const TIP = document.getElementById("tip");
function tip(text, x, y) {
  TIP.textContent = text;
  TIP.hidden = !text;
  if (!text) return;
  const box = TIP.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + 12), innerWidth - box.width - 8);
  const below = y + 18 + box.height < innerHeight;
  TIP.style.setProperty("left", left + "px");
  TIP.style.setProperty("top", (below ? y + 18 : Math.max(4, y - box.height - 12)) + "px");
}
function tipOf(event) {
  const node = event.target.closest ? event.target.closest("[data-tip]") : null;
  if (!node) return tip("", 0, 0);
  const box = node.getBoundingClientRect();
  const pointer = event.clientX !== undefined;
  tip(node.getAttribute("data-tip"), pointer ? event.clientX : box.left, pointer ? event.clientY : box.bottom - 8);
}
document.addEventListener("pointermove", (event) => { if (!event.target.closest("canvas")) tipOf(event); });
document.addEventListener("focusin", tipOf);
document.addEventListener("focusout", () => tip("", 0, 0));
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip("", 0, 0); });

// ---------------------------------------------------------------- light and dark

const DARK = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  document.documentElement.dataset.theme = name;
  redraw(true);
}
DARK.addEventListener("change", () => theme(DARK.matches ? "dark" : "light"));
let screenTheme = "light";
// Figures are drawn for paper before it is laid out: as wide as a page, and light.
addEventListener("beforeprint", () => { screenTheme = document.documentElement.dataset.theme; document.documentElement.classList.add("printing"); theme("light"); });
addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); theme(screenTheme); });
addEventListener("resize", () => redraw(false));
const themeButton = () => h("button", { type: "button", onclick: () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark") }, "Light / dark");
