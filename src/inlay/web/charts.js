// The curve of kept cells and the strip of frames beneath the view: both show the whole clip, and a click seeks in it.

const COLOURS = { A: "a", B: "b" };
const THUMBS = 9;

function curve() {
  const box = $(".curve");
  const { data, frame } = state;
  const key = JSON.stringify([data.version, Object.values(data.settings).map((s) => [s.tau, s.rate])]);
  if (box.dataset.key !== key) {
    box.dataset.key = key;
    box.innerHTML = curveMarkup(data);
  }
  const now = box.querySelector(".now");
  const x = (1000 * (frame + 0.5)) / data.frames;
  now.setAttribute("x1", x);
  now.setAttribute("x2", x);
}

function curveMarkup(data) {
  const end = data.frames / data.fps;
  const x = (second) => (1000 * Math.min(second / end, 1)).toFixed(1);
  const lines = Object.entries(data.settings).map(([name, setting]) => {
    const stops = [...setting.seconds.slice(1), end];
    const steps = setting.rates.map((rate, i) => {
      const y = (100 - 100 * rate).toFixed(1);
      return `L${x(setting.seconds[i])} ${y}L${x(stops[i])} ${y}`;
    }).join("");
    return `<path d="M0 100${steps}L1000 100Z" class="area ${COLOURS[name]}"/><path d="M${steps.slice(1)}" class="line ${COLOURS[name]}"/>`;
  }).join("");
  const rates = Object.entries(data.settings).map(([name, s]) => `<span class="key ${COLOURS[name]}">${name} ${(100 * s.rate).toFixed(1)} %</span>`);
  const title = "kept cells over time; click to go there";
  return `<div class="rates"><span>100%</span><span>0%</span></div>
    <svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="${title}"><title>${title}</title>
      <line x1="0" x2="1000" y1="50" y2="50" class="grid"/>${lines}<line y1="0" y2="100" class="now"/></svg>
    <div class="times"><span>0 s</span><span class="kept">kept cells ${rates.join(" ")}</span><span>${end.toFixed(2)} s</span></div>`;
}

let stripKey = "";

function strip() {
  const canvas = $(".strip");
  const { data } = state;
  const count = Math.min(narrow.matches ? 5 : THUMBS, data.frames);
  const width = canvas.clientWidth;
  const across = width / count;
  const height = Math.min((across - 4) * (data.height / data.width), 110);
  const picture = `kept${data.active}`;
  const places = Array.from({ length: count }, (_, i) => Math.round((i * (data.frames - 1)) / Math.max(count - 1, 1)));
  const setting = data.settings[data.active];
  const source = data.input || setting.result;
  const ready = !source || source.urls.every((url) => sheets.get(url)?.complete);
  const key = [data.version, data.active, setting.tau, setting.rate, source?.urls[0], width, ready].join();
  if (key === stripKey || !width) return;
  if (source) source.urls.forEach((_, i) => sheetOf(source, i * source.each));
  stripKey = key;
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  places.forEach((place, i) => {
    const frame = compose(picture, place);
    const wide = height * (data.width / data.height);
    if (frame) pen.drawImage(frame, i * across + (across - wide) / 2, 0, wide, height);
  });
}

function seekAt(event, box) {
  const { left, width } = box.getBoundingClientRect();
  seek(Math.floor(clamp((event.clientX - left) / width, 0, 0.9999) * state.data.frames));
}

function startCharts(view) {
  const drags = (selector, target) => {
    const box = view.querySelector(selector);
    const go = (event) => { if (state.data && event.buttons) seekAt(event, target(box)); };
    box.addEventListener("pointerdown", go);
    box.addEventListener("pointermove", go);
  };
  drags(".curve", (box) => box.querySelector("svg"));
  drags(".strip", (box) => box);
  listeners.push(curve, strip);
}
