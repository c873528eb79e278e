
function unfold() {
  var section = location.hash && document.getElementById(location.hash.slice(1));
  var folded = section && section.querySelector("details");
  if (folded) { folded.open = true; section.scrollIntoView(); }
}
window.addEventListener("hashchange", unfold);
unfold();

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
