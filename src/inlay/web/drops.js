// A file dropped anywhere is taken: a browser would leave the page for it, and a box that holds one takes no other.

// The kinds that a file dialogue offers first. Another is refused by the server, which says what it found in the file.
const KINDS = { video: "video/*,.mkv,.avi,.mov,.webm,.y4m", tokens: ".inlay" };
document.addEventListener("click", () => {
  for (const [name, kinds] of Object.entries(KINDS)) inputOf(name)?.setAttribute("accept", kinds);
}, true);

const boxFor = (file) => (/\.inlay$/i.test(file.name) ? "tokens" : "video");
const inputOf = (name) => document.querySelector(`#${name} input[type=file]`);

async function appeared(find) {
  for (let tries = 0; tries < 50 && !find(); tries += 1) await new Promise((done) => { setTimeout(done, 40); });
  return find();
}

async function hand(file) {
  const name = boxFor(file);
  const tab = [...document.querySelectorAll("[role=tab]")].find((t) => t.textContent.trim() === (name === "tokens" ? "Token file" : "Clip"));
  if (tab?.getAttribute("aria-selected") !== "true") tab?.click();
  const box = await appeared(() => document.querySelector(`#${name}`));
  box?.querySelectorAll("button[aria-label=Clear]").forEach((button) => button.click());  // what it holds, or its error
  const input = await appeared(() => inputOf(name));
  if (!input) return;
  const given = new DataTransfer();
  given.items.add(file);
  input.files = given.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

const carries = (event) => event.dataTransfer?.types.includes("Files");
document.addEventListener("dragover", (event) => { if (carries(event)) event.preventDefault(); });
document.addEventListener("drop", (event) => {
  if (!carries(event)) return;
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  const own = file && inputOf(boxFor(file))?.closest("button");
  if (!file || own?.contains(event.target)) return;  // an empty box takes what it is for by itself
  event.stopPropagation();
  event.target.dispatchEvent(new DragEvent("dragleave", { bubbles: true }));  // another's box is no longer aimed at
  hand(file);
}, true);
