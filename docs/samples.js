// Samples: a button shows the same clip at another rate, at the same time of it.
function startSamples() {
  document.querySelectorAll("figure.sample").forEach((figure) => {
    const video = figure.querySelector("video");
    const buttons = [...figure.querySelectorAll("button[data-film]")];
    buttons.forEach((button) => button.addEventListener("click", () => {
      const { currentTime: time, paused } = video;
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      video.src = button.dataset.film;
      video.addEventListener("loadedmetadata", () => {
        video.currentTime = Math.min(time, video.duration);
        if (!paused) video.play().catch(() => {});  // a browser may refuse to play by itself
      }, { once: true });
    }));
  });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startSamples);
else startSamples();
