// Numbers that are typed: beyond the ends of a dial they mean the end.

const box = (dial) => document.querySelector(`#${dial} input[type=number]`);
const within = ({ value, min, max }) => (value === "" ? null : clamp(Number(value), Number(min), Number(max)));

// For the server; null where there is no number.
state.asked = (dial) => (box(dial) ? within(box(dial)) : null);

// Once the box is left, or Enter pressed, it says what holds.
document.addEventListener("change", ({ target }) => {
  const dial = ["tau", "keep"].find((name) => target === box(name));
  if (!dial || !state.data) return;
  const { tau, rate } = state.data.settings[state.data.active];
  const value = within(target) ?? (dial === "tau" ? tau : Number((100 * rate).toFixed(1)));
  if (String(value) === target.value) return;
  target.value = value;
  target.dispatchEvent(new Event("input"));  // does not bubble: the slider beside it follows, and nothing is sent
});
