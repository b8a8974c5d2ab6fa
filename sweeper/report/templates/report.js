"use strict";
// Shows a drawn point's numbers at once where it is hovered or touched; its title does so too, late.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
document.addEventListener("pointerover", event => {
  const point = event.target.closest(".tip");
  tip.hidden = !point;
  if (!point) return;
  tip.textContent = point.querySelector("title").textContent;
  const box = point.lastElementChild.getBoundingClientRect(), room = innerWidth - tip.offsetWidth;
  tip.style.left = Math.max(4, Math.min(box.right + 6, room - 4)) + "px";
  tip.style.top = Math.max(4, box.top - tip.offsetHeight - 4) + "px";
});
document.addEventListener("scroll", () => { tip.hidden = true; }, true);
