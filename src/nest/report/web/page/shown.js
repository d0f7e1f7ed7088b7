"use strict";
// A document as the whole page.

(() => {
  document.documentElement.dataset.theme = DARK.matches ? "dark" : "light";
  const data = JSON.parse(document.getElementById("data").textContent), { title, setting, links, sections } = PAGES[data.kind](data);
  document.getElementById("page").append(
    h("header", null, h("div", null, h("h1", null, title), h("p", { class: "setting" }, setting)), h("div", { class: "tools" }, themeButton(), h("button", { type: "button", onclick: () => print() }, "Print"))),
    navigation(links), h("main", { id: "main" }, sections), h("footer", null, "Made by NEST. This file sends no request."));
  redraw(true);
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
