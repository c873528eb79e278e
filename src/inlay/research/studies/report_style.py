# SPDX-License-Identifier: Apache-2.0
"""The report's style, and the scripts that sort tables and say what a point of a plot stands for."""

from __future__ import annotations

STYLE = """
:root { --ink: #1a1a1a; --paper: #fff; --soft: #595959; --rule: #d5d5d5; --head: #f3f3f3; --link: #00588f;
  --good: #00694c; --bad: #a03c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e2e2; --paper: #16181c; --soft: #a8a8a8; --rule: #3a3d44;
  --head: #25282e; --link: #7fc4f0; --good: #5fd0a8; --bad: #f0a070; } img { background: #fff; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; margin: 0 auto; max-width: 76em; padding: 1em clamp(0.8em, 3vw, 2em) 4em;
  color: var(--ink); background: var(--paper); overflow-wrap: break-word; }
a { color: var(--link); } nav { display: flex; flex-wrap: wrap; gap: 0.2em 1.1em; }
h1 { line-height: 1.2; } h2 { border-top: 1px solid var(--rule); margin-top: 2.2em; padding-top: 0.9em; }
.wide { overflow-x: auto; margin: 0.6em 0 1.6em; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0.4em 0; }
th, td { padding: 0.3em 0.7em; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
thead th, thead th:first-child { cursor: pointer; background: var(--head); user-select: none; }
thead th::after { content: " \\2195"; color: var(--soft); font-size: 0.8em; }
th[aria-sort=ascending]::after { content: " \\25B2"; } th[aria-sort=descending]::after { content: " \\25BC"; }
.plots { display: flex; flex-wrap: wrap; gap: 1em; } .plots > div { flex: 1 1 20em; max-width: 38em; min-width: 0; }
svg.plot { width: 100%; height: auto; display: block; touch-action: pan-y; }
svg.plot text { fill: currentColor; font-family: system-ui, sans-serif !important; }
.dot { opacity: 0; } .dot.on { opacity: 1; stroke: var(--ink); stroke-width: 2; }
#tip { position: fixed; display: none; pointer-events: none; white-space: pre; background: var(--ink);
  color: var(--paper); font-size: 13px; line-height: 1.4; padding: 0.4em 0.7em; border-radius: 4px; z-index: 9; }
img { max-width: 100%; height: auto; } figure { margin: 1em 0; }
figcaption, details, footer { color: var(--soft); font-size: 14px; }
.films { display: flex; flex-wrap: wrap; gap: 1em; } .films figure { flex: 1 1 20em; max-width: 36em; margin: 0; }
.films img { width: 100%; }
.holds { color: var(--good); } .fails { color: var(--bad); }
footer { border-top: 1px solid var(--rule); margin-top: 3em; padding-top: 1em; } footer dt { font-weight: 600; }
footer dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2em 1.2em; }
footer dd { margin: 0; }
@media (max-width: 34em) { footer dl { grid-template-columns: minmax(0, 1fr); } footer dd { margin-bottom: 0.5em; }
  tbody td:first-child { white-space: normal; min-width: 9em; max-width: 11em; } }
"""

SORT = """
document.querySelectorAll("thead th").forEach(function (head) {
  function sort() {
    var table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
    var up = head.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th").forEach(function (h) { h.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    function value(row) {
      var cell = row.cells[at], n = cell.getAttribute("data-value");
      return n === null ? cell.textContent : parseFloat(n);
    }
    Array.from(body.rows).sort(function (a, b) {
      var x = value(a), y = value(b), both = typeof x === "number" && typeof y === "number";
      if (typeof x !== typeof y) { return typeof x === "number" ? -1 : 1; }
      return (both ? x - y : String(x).localeCompare(String(y))) * (up ? 1 : -1);
    }).forEach(function (row) { body.appendChild(row); });
  }
  head.tabIndex = 0;
  head.addEventListener("click", sort);
  head.addEventListener("keydown", function (e) { if (e.key === "Enter") { sort(); } });
});
"""

HOVER = """
(function () {
  var tip = document.getElementById("tip");
  document.querySelectorAll("svg.plot").forEach(function (plot) {
    var dots = Array.from(plot.querySelectorAll(".dot")), on = null;
    dots.forEach(function (d) { d.at = [d.cx.baseVal.value, d.cy.baseVal.value]; });
    function hide() { if (on) { on.classList.remove("on"); } on = null; tip.style.display = "none"; }
    function show(dot) {
      if (dot !== on) { hide(); on = dot; dot.classList.add("on"); tip.textContent = dot.dataset.tip; }
      tip.style.display = "block";
      var box = dot.getBoundingClientRect(), w = tip.offsetWidth, h = tip.offsetHeight;
      var x = Math.min(Math.max(4, box.left + 14), document.documentElement.clientWidth - w - 4);
      tip.style.left = x + "px";
      tip.style.top = (box.top - h - 8 < 4 ? box.bottom + 8 : box.top - h - 8) + "px";
    }
    function nearest(e) {
      var p = new DOMPoint(e.clientX, e.clientY).matrixTransform(plot.getScreenCTM().inverse());
      var flat = plot.dataset.near === "x" ? 0.05 : 1, best = null, least = Infinity;
      dots.forEach(function (d) {
        var a = d.at[0] - p.x, b = d.at[1] - p.y, far = a * a + flat * b * b;
        if (far < least) { least = far; best = d; }
      });
      return best;
    }
    plot.addEventListener("pointermove", function (e) { show(nearest(e)); });
    plot.addEventListener("pointerdown", function (e) { show(nearest(e)); });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", function (e) {
      var step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (e.key === "Escape") { hide(); }
      if (!step) { return; }
      e.preventDefault();
      show(dots[(dots.indexOf(on) + step + dots.length) % dots.length]);
    });
  });
  window.addEventListener("scroll", function () { tip.style.display = "none"; }, { passive: true });
})();
"""
