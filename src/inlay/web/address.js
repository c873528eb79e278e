// What the page remembers in its address, copying, errors that go away, and data as it arrives.

state.errorSeconds = 12;
const stated = () => new URLSearchParams(location.hash.slice(1));
let wanted = stated();  // what an address asks for, until it is shown
let writing = 0;

const settingText = (s) => [s.keep === null ? `tau:${s.tau}` : `keep:${s.keep}`, s.fill, ...(s.step === null ? [] : [s.step])].join(":");

function remember() {
  if (state.playing || wanted) return;
  clearTimeout(writing);
  writing = setTimeout(() => {
    const { data } = state;
    const words = new URLSearchParams({ clip: data.clip, on: data.active });
    for (const [name, setting] of Object.entries(data.settings)) words.set(name, settingText(setting));
    words.set("frame", state.frame);
    words.set("view", [state.layout, state.left, state.right].join(","));
    if (state.zoom > 1) words.set("zoom", [state.zoom, state.x, state.y].map((n) => Number(n.toFixed(3))).join(","));
    history.replaceState(null, "", `#${words}`);
  }, 300);
}

// What an address says of the view; the server has read the rest.
function recall() {
  const words = wanted;
  wanted = null;
  state.playing = false;
  const [layout, left, right] = (words.get("view") || "").split(",");
  if (layout === "split" || layout === "wipe") state.layout = layout;
  const known = pictures().map(([name]) => name);
  const near = (picture) => (known.includes(picture) ? picture : picture && `kept${picture.slice(-1)}`);
  for (const [side, wanted] of [["left", near(left)], ["right", near(right)]]) if (known.includes(wanted)) state[side] = wanted;
  const frame = words.get("frame");
  if (frame !== null && Number.isFinite(Number(frame))) state.frame = clamp(Math.round(Number(frame)), 0, state.data.frames - 1);
  const [zoom, x, y] = (words.get("zoom") || "").split(",").map(Number);
  if (zoom > 1 && Number.isFinite(x + y)) move(x, y, clamp(zoom, 1, 16));
  draw();
}

// Another address in the same window, pasted or gone back to; what is written above makes no such event.
addEventListener("hashchange", () => {
  clearTimeout(writing);
  wanted = stated();
  document.querySelector("#again").click();
});

let lastData = "";

function receive() {
  const { view: text, base } = document.querySelector("#data [data-view]")?.dataset ?? {};
  if (!text || text === lastData || !$(".picture")) return;
  lastData = text;
  state.base = base;
  const data = unpack(text);
  if (!data) return;
  const fresh = data.version !== state.data?.version;
  take(data);
  if (wanted && fresh) recall();
}

// An error stays for a while, then what was said before comes back.
let goodStatus = "";
let errorTimer = 0;
let lastStatus = "";

function watchStatus() {
  const line = document.querySelector("#status .inlay-status");
  if (!line || line.outerHTML === lastStatus) return;
  lastStatus = line.outerHTML;
  clearTimeout(errorTimer);
  if (!line.classList.contains("inlay-error")) { goodStatus = line.innerHTML; return; }
  errorTimer = setTimeout(() => {
    line.className = "inlay-status";
    line.setAttribute("role", "status");
    line.innerHTML = goodStatus;
    lastStatus = line.outerHTML;
  }, 1000 * state.errorSeconds);
}

// On a phone the line that tells of work and errors has scrolled away when one presses a button: the stage says it too.
function echoStatus() {
  const told = $(".told");
  if (!told) return;
  const work = document.querySelector("#status .progress-level-inner");
  const error = document.querySelector("#status .inlay-error");
  const text = (work || error)?.textContent.trim() || "";
  const hidden = !text || (!work && document.querySelector("#status").getBoundingClientRect().bottom > 0);
  if (told.hidden === hidden && (hidden || told.textContent === text)) return;
  told.hidden = hidden;
  told.textContent = text;
  told.classList.toggle("error", !work);
}

async function copy(button) {
  const text = button.closest("figure").querySelector("pre");
  try {
    await navigator.clipboard.writeText(text.textContent);
  } catch {  // not allowed over plain http from another machine: select it, and copy as browsers used to
    getSelection().selectAllChildren(text);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});

let started = null;

function look() {
  const view = document.querySelector(".inlay-view");
  if (view && view !== started) {
    started = view;
    start(view);
    startCharts(view);
    listeners.push(remember);
  }
  receive();
  watchStatus();
  echoStatus();
}

state.drawn = () => [state.left, state.right].every((picture) => composed.has(`${picture}/${state.frame}`));
window.inlay = state;  // for the page's own events, and for whoever looks in from the console
new MutationObserver(look).observe(document.documentElement, { childList: true, characterData: true, subtree: true, attributes: true, attributeFilter: ["data-view"] });
