// The large view: two pictures of one frame under a wipe or side by side, zoomed and played together.
// Legend: a side is a place on the stage; a picture is what stands there ("input", "keptA", "A", "diffA", ...).

const state = {
  data: null, frame: 0, layout: "wipe", left: "input", right: "keptA",
  wipe: 0.5, zoom: 1, x: 0.5, y: 0.5, playing: false,
};
const listeners = [];  // called after every change: charts, address
const sheets = new Map();  // address -> Image
const composed = new Map();  // key -> canvas
const $ = (selector) => document.querySelector(`.inlay-view ${selector}`);
const narrow = matchMedia("(max-width: 767px)");  // as in page.css: there is room for one column
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// --- data ---------------------------------------------------------------------------------------------------------

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function unpack(text) {
  const data = JSON.parse(new TextDecoder().decode(bytes(text)));
  if (!data.settings) return null;
  const cells = data.grid[0] * data.grid[1];
  data.cells = cells;
  for (const setting of Object.values(data.settings)) {
    const packed = bytes(setting.mask);
    const count = setting.rates.length * cells;
    setting.kept = new Uint8Array(count);
    for (let i = 0; i < count; i++) setting.kept[i] = (packed[i >> 3] >> (7 - (i & 7))) & 1;
    if (setting.scores) setting.scores.codes = bytes(setting.scores.codes);
  }
  return data;
}

function take(data) {
  const before = state.data;
  const fresh = !before || before.version !== data.version;
  state.data = data;
  composed.clear();
  if (fresh) {
    sheets.clear();
    Object.assign(state, { frame: data.frames >> 1, zoom: 1, x: 0.5, y: 0.5, wipe: 0.5 });
    state.left = data.input ? "input" : "keptA";
    state.right = data.input ? "keptA" : "A";
  } else {
    follow(before, data);
  }
  const known = pictures().map(([name]) => name);
  if (!known.includes(state.left)) state.left = known[0];
  if (!known.includes(state.right)) state.right = known[Math.min(1, known.length - 1)];
  state.frame = clamp(state.frame, 0, data.frames - 1);
  draw();
}

// What has just been made comes into view: a reconstruction, or the second setting beside the first.
function follow(before, data) {
  for (const name of Object.keys(data.settings)) {
    const was = before.settings[name];
    const now = data.settings[name];
    if (!was) Object.assign(state, { left: shownOf(data, "A"), right: shownOf(data, name) });
    else if (now.result && !was.result) {
      if (state.right === `kept${name}`) state.right = name;
      if (state.left === `kept${name}`) state.left = name;
    } else if (!now.result && was.result) {  // the mask has changed: it is what there is to see
      if (state.right === name || state.right === `diff${name}`) state.right = `kept${name}`;
      if (state.left === name || state.left === `diff${name}`) state.left = `kept${name}`;
    }
  }
}

const shownOf = (data, name) => (data.settings[name].result ? name : `kept${name}`);
const settingOf = (picture) => state.data.settings[picture === "input" ? state.data.active : picture.slice(-1)];

function pictures() {
  const found = state.data.input ? [["input", "input"]] : [];
  for (const [name, setting] of Object.entries(state.data.settings)) {
    found.push([`kept${name}`, `${name}: kept cells ${(100 * setting.rate).toFixed(1)} %`]);
    if (!setting.result) continue;
    const quality = setting.psnr === null ? "" : `, ${setting.psnr.toFixed(2)} dB`;
    const step = setting.step === null ? "" : `, step ${setting.step}`;
    found.push([name, `${name}: ${setting.fill_name}${step}${quality}`]);
    if (state.data.input) found.push([`diff${name}`, `${name}: difference x${state.data.look.gain}`]);
  }
  return found;
}

// --- pictures of one frame ----------------------------------------------------------------------------------------

function sheetOf(set, frame) {
  const url = set.urls[Math.floor(frame / set.each)];
  if (!sheets.has(url)) {
    const image = new Image();
    image.onload = () => { composed.clear(); draw(); };
    image.src = new URL(state.base + url, document.baseURI).href;
    sheets.set(url, image);
  }
  const image = sheets.get(url);
  return image.complete && image.naturalWidth ? image : null;
}

function blank() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [state.data.width, state.data.height];
  return [canvas, canvas.getContext("2d", { willReadFrequently: true })];
}

function frameOf(set, frame) {
  const image = set && sheetOf(set, frame);
  if (!image) return null;
  const { width, height } = state.data;
  const at = frame % set.each;
  const [canvas, pen] = blank();
  pen.drawImage(image, (at % set.columns) * width, Math.floor(at / set.columns) * height, width, height, 0, 0, width, height);
  return canvas;
}

// The picture as a canvas of the clip's size; null while its pixels are on their way.
function compose(picture, frame) {
  const key = `${picture}/${frame}`;
  if (composed.has(key)) return composed.get(key);
  const { data } = state;
  const setting = settingOf(picture);
  let canvas = null;
  if (picture === "input") canvas = frameOf(data.input, frame);
  else if (picture.startsWith("kept")) canvas = lit(frameOf(data.input || setting.result, frame), setting, frame);
  else if (picture.startsWith("diff")) canvas = difference(frameOf(data.input, frame), frameOf(setting.result, frame));
  else canvas = frameOf(setting.result, frame);
  if (canvas) {
    if (composed.size > 24) composed.delete(composed.keys().next().value);
    composed.set(key, canvas);
  }
  return canvas;
}

// Dropped cells dark and grey, kept ones as they are, and a line between; without a frame, on plain grey.
function lit(canvas, setting, frame) {
  const { width, height, stride, grid, cells, slots, look } = state.data;
  if (!canvas) {
    if (state.data.input || setting.result) return null;
    const [empty, pen] = blank();
    pen.fillStyle = "#c8c8c8";
    pen.fillRect(0, 0, width, height);
    canvas = empty;
  }
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const pixels = pen.getImageData(0, 0, width, height);
  const p = pixels.data;
  const first = slots[frame] * cells;
  const kept = (y, x) => setting.kept[first + Math.floor(y / stride) * grid[1] + Math.floor(x / stride)];
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i += 4) {
      const here = kept(y, x);
      const edge = (x > 0 && kept(y, x - 1) !== here) || (y > 0 && kept(y - 1, x) !== here);
      if (edge) [p[i], p[i + 1], p[i + 2]] = look.edge;
      else if (!here) p[i] = p[i + 1] = p[i + 2] = look.dim * (0.299 * p[i] + 0.587 * p[i + 1] + 0.114 * p[i + 2]);
    }
  }
  pen.putImageData(pixels, 0, 0);
  return canvas;
}

function difference(a, b) {
  if (!a || !b) return null;
  const { width, height, look } = state.data;
  const pen = a.getContext("2d");
  const pixels = pen.getImageData(0, 0, width, height);
  const p = pixels.data;
  const q = b.getContext("2d").getImageData(0, 0, width, height).data;
  const last = look.ramp.length - 1;
  for (let i = 0; i < p.length; i += 4) {
    const error = (Math.abs(p[i] - q[i]) + Math.abs(p[i + 1] - q[i + 1]) + Math.abs(p[i + 2] - q[i + 2])) / 3;
    const place = Math.min((error * look.gain) / 255, 1) * last;
    const low = Math.min(Math.floor(place), last - 1);
    for (let c = 0; c < 3; c++) p[i + c] = look.ramp[low][c] + (look.ramp[low + 1][c] - look.ramp[low][c]) * (place - low);
  }
  pen.putImageData(pixels, 0, 0);
  return a;
}

// --- the stage ----------------------------------------------------------------------------------------------------

// The boxes on the stage, in CSS pixels: [picture, left, width of the whole picture's box, clip from, clip to].
function boxes(width) {
  if (state.layout === "split") {
    const half = (width - 8) / 2;
    return [[state.left, 0, half, 0, half], [state.right, half + 8, half, half + 8, width]];
  }
  const at = Math.round(state.wipe * width);
  return [[state.left, 0, width, 0, at], [state.right, 0, width, at, width]];
}

function fitted(width, height) {
  const scale = Math.min(width / state.data.width, height / state.data.height) * state.zoom;
  return { scale, x: width / 2 - state.x * state.data.width * scale, y: height / 2 - state.y * state.data.height * scale };
}

function layOut() {
  const stage = $(".stage");
  const width = stage.clientWidth;
  const most = window.innerHeight * (narrow.matches ? 0.42 : 0.62);
  const across = state.layout === "split" ? (width - 8) / 2 : width;
  const height = Math.round(Math.min((across * state.data.height) / state.data.width, most));
  stage.style.height = `${height}px`;
  return [width, height];
}

function draw() {
  const { data } = state;
  const canvas = $(".picture");
  if (!data || !canvas) return;
  const [width, height] = layOut();
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = "#101418";
  pen.fillRect(0, 0, width, height);
  for (const [picture, left, across, from, to] of boxes(width)) {
    const place = fitted(across, height);
    const frame = compose(picture, state.frame);
    pen.save();
    pen.beginPath();
    pen.rect(from, 0, to - from, height);
    pen.clip();
    pen.imageSmoothingEnabled = place.scale * ratio < 3;
    pen.imageSmoothingQuality = "high";
    if (frame) pen.drawImage(frame, left + place.x, place.y, data.width * place.scale, data.height * place.scale);
    pen.restore();
  }
  label(width);
  for (const listener of listeners) listener();
}

function label(width) {
  const names = Object.fromEntries(pictures());
  const options = pictures().map(([value, text]) => `<option value="${value}">${text}</option>`).join("");
  for (const side of ["left", "right"]) {
    const select = $(`[data-side=${side}]`);
    if (select.dataset.options !== options) [select.innerHTML, select.dataset.options] = [options, options];
    select.value = state[side];
    $(`.name.${side}`).textContent = names[state[side]] || "";
  }
  $(".picture").setAttribute("aria-label", `frame ${state.frame + 1}: ${names[state.left]} and ${names[state.right]}`);
  const handle = $(".handle");
  handle.hidden = state.layout !== "wipe";
  handle.style.left = `${state.wipe * width}px`;
  handle.setAttribute("aria-valuenow", Math.round(100 * state.wipe));
  document.querySelectorAll("[data-layout]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.layout === state.layout));
  $(".zoom").textContent = `${Number(state.zoom.toFixed(1))}x`;
  $(".stage").style.touchAction = state.zoom > 1 ? "none" : "pan-y";
  const seek = $(".seek");
  [seek.max, seek.value] = [state.data.frames - 1, state.frame];
  const second = (state.frame / state.data.fps).toFixed(2);
  $(".where").textContent = `frame ${state.frame + 1} of ${state.data.frames}, ${second} s`;
  $(".play").textContent = state.playing ? "❚❚" : "▶";
  $(".play").setAttribute("aria-label", state.playing ? "pause" : "play");
}

// --- play, seek, zoom ---------------------------------------------------------------------------------------------

function seek(frame) {
  state.playing = false;
  state.frame = clamp(Math.round(frame), 0, state.data.frames - 1);
  draw();
}

function play() {
  state.playing = !state.playing;
  const begin = performance.now() - (state.frame * 1000) / state.data.fps;
  const step = (now) => {
    if (!state.playing) return;
    const frame = Math.floor(((now - begin) * state.data.fps) / 1000) % state.data.frames;
    if (frame !== state.frame) { state.frame = Math.max(frame, 0); draw(); }
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
  draw();
}

// Towards a point of the stage, in shares of the picture.
function zoomTo(zoom, x = state.x, y = state.y) {
  const next = clamp(zoom, 1, 16);
  const keep = state.zoom / next;
  move(x - (x - state.x) * keep, y - (y - state.y) * keep, next);
}

function move(x, y, zoom = state.zoom) {
  const edge = 0.5 / zoom;
  Object.assign(state, { zoom, x: clamp(x, edge, 1 - edge), y: clamp(y, edge, 1 - edge) });
  draw();
}

// --- pointers -----------------------------------------------------------------------------------------------------

const fingers = new Map();
let drag = null;

// Which picture is under the pointer, and where in it, in pixels of the clip.
function under(event) {
  const box = $(".stage").getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  for (const [picture, left, across, from, to] of boxes(box.width)) {
    if (x < from || x > to) continue;
    const place = fitted(across, box.height);
    return { picture, across, px: (x - left - place.x) / place.scale, py: (y - place.y) / place.scale, scale: place.scale };
  }
  return null;
}

function press(event) {
  if (!state.data) return;
  $(".stage").setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, event);
  const wiping = state.layout === "wipe" && (event.target.closest(".handle") || state.zoom === 1);
  drag = { kind: wiping ? "wipe" : "pan", x: event.clientX, y: event.clientY };
  if (fingers.size === 2) drag = { kind: "pinch", apart: apart(), zoom: state.zoom };
  else if (wiping) wipeTo(event);
}

function apart() {
  const [a, b] = [...fingers.values()];
  return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
}

function wipeTo(event) {
  const box = $(".stage").getBoundingClientRect();
  state.wipe = clamp((event.clientX - box.left) / box.width, 0, 1);
  draw();
}

function slide(event) {
  if (!state.data) return;
  if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
  if (!drag) { hover(event); return; }
  if (drag.kind === "pinch" && fingers.size === 2) zoomTo((drag.zoom * apart()) / drag.apart);
  else if (drag.kind === "wipe") wipeTo(event);
  else if (drag.kind === "pan") {
    const at = under(event);
    if (at && state.zoom > 1) {
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      move(state.x - dx / at.scale / state.data.width, state.y - dy / at.scale / state.data.height);
    }
    [drag.x, drag.y] = [event.clientX, event.clientY];
  }
}

function release(event) {
  fingers.delete(event.pointerId);
  drag = null;
}

// --- what a cell is -----------------------------------------------------------------------------------------------

function scoreOf(setting, cell) {
  if (!setting.scores) return null;
  const { codes, top, steps } = setting.scores;
  if (codes[cell] === 255) return Infinity;
  return (top * (2 ** (codes[cell] / steps) - 1)) / (2 ** (254 / steps) - 1);
}

function ageOf(setting, slot, place) {
  for (let age = 0; age <= slot; age++) if (setting.kept[(slot - age) * state.data.cells + place]) return age;
  return null;
}

function tell(picture, px, py) {
  const { width, height, stride, grid, cells, slots, frames } = state.data;
  if (px < 0 || py < 0 || px >= width || py >= height) return null;
  const [row, column] = [Math.floor(py / stride), Math.floor(px / stride)];
  const setting = settingOf(picture);
  const slot = slots[clamp(state.frame, 0, frames - 1)];
  const place = row * grid[1] + column;
  const score = scoreOf(setting, slot * cells + place);
  const age = ageOf(setting, slot, place);
  const lines = [`cell ${row}, ${column} of slot ${slot}`];
  if (score === Infinity) lines.push("kept whole: begins a key chunk");
  else if (score !== null) lines.push(`score ${score.toPrecision(2)}, tau ${Number(setting.tau.toPrecision(3))}`);
  if (age === null) lines.push("dropped: never kept so far");
  else lines.push(age === 0 ? "kept: age 0" : `dropped: age ${age} slot${age > 1 ? "s" : ""}`);
  return lines.join("\n");
}

function hover(event) {
  const at = under(event);
  const text = at && tell(at.picture, at.px, at.py);
  const tip = $(".tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = $(".stage").getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  tip.style.left = `${clamp(x + 14, 0, box.width - tip.offsetWidth - 4)}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > box.height ? y - tip.offsetHeight - 10 : y + 18}px`;
}

// --- wiring -------------------------------------------------------------------------------------------------------

function click(event) {
  const button = event.target.closest("button");
  if (!button || !state.data) return;
  if (button.dataset.layout) { state.layout = button.dataset.layout; draw(); }
  else if (button.dataset.zoom) zoomTo({ in: state.zoom * 1.5, out: state.zoom / 1.5, fit: 1 }[button.dataset.zoom]);
  else if (button.classList.contains("play")) play();
}

function key(event) {
  if (!state.data || event.target.matches("select, input")) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === " " && !event.target.matches("button")) play();
  else if (step && event.target.matches(".handle")) { state.wipe = clamp(state.wipe + step * 0.02, 0, 1); draw(); }
  else if (step) seek(state.frame + step);
  else return;
  event.preventDefault();
}

function start(view) {
  const stage = view.querySelector(".stage");
  stage.addEventListener("pointerdown", press);
  stage.addEventListener("pointermove", slide);
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, release);
  stage.addEventListener("pointerleave", () => { $(".tip").hidden = true; });
  stage.addEventListener("dblclick", (event) => {
    const at = under(event);
    if (at) zoomTo(state.zoom > 1 ? 1 : 3, at.px / state.data.width, at.py / state.data.height);
  });
  stage.addEventListener("wheel", (event) => {  // with ctrl, as pinching a touchpad does: a plain wheel scrolls the page
    if (!event.ctrlKey || !state.data) return;
    event.preventDefault();
    const at = under(event);
    if (at) zoomTo(state.zoom * 2 ** (-event.deltaY / 200), at.px / state.data.width, at.py / state.data.height);
  }, { passive: false });
  view.addEventListener("click", click);
  view.addEventListener("keydown", key);
  view.addEventListener("change", (event) => {
    const { side } = event.target.dataset;
    if (side) { state[side] = event.target.value; draw(); }
  });
  view.querySelector(".seek").addEventListener("input", (event) => seek(Number(event.target.value)));
  new ResizeObserver(() => draw()).observe(stage);
}
