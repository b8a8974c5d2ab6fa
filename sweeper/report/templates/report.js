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

// Saves a drawing as a file, from the page alone: as SVG, or drawn at twice its size as PNG.
const download = (name, address) => {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
};
const drawing = svg => {
  const copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute("viewBox").split(" ");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.querySelectorAll(".tip").forEach(one => one.remove());
  const text = new XMLSerializer().serializeToString(copy);
  return "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
};
const savers = {
  SVG: (svg, name) => download(name + ".svg", drawing(svg)),
  PNG: (svg, name) => {
    const image = new Image(), canvas = document.createElement("canvas");
    image.onload = () => {
      [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
      const context = canvas.getContext("2d");
      context.fillStyle = "white";
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      download(name + ".png", canvas.toDataURL("image/png"));
    };
    image.src = drawing(svg);
  },
};
document.querySelectorAll("figure").forEach((figure, index) => {
  const svg = figure.querySelector("svg"), bar = document.createElement("div");
  if (!svg) return;
  bar.className = "save";
  for (const [kind, save] of Object.entries(savers)) {
    const button = document.createElement("button");
    button.textContent = kind;
    button.title = "Save this picture as " + kind;
    button.addEventListener("click", () => save(svg, "figure-" + (index + 1)));
    bar.append(button);
  }
  figure.append(bar);
});
