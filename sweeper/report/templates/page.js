"use strict";
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

// A page of something that runs loads itself anew, and is found as it was left: its place, what is
// open, and how far boxes are scrolled. From a file no script may read another file, so that the
// page is loaded whole; what was left travels in the history's entry, which knows files as well.
const every = Number(document.documentElement.dataset.live) * 1000, old = history.state?.left;
const heads = () => [...document.querySelectorAll("section, header")];
const boxes = () => [...document.querySelectorAll(".plot, .scroll, pre")];
const name = node => node.querySelector("h1, h2")?.textContent ?? "";
const leave = () => {
  const there = heads().findLast(node => node.getBoundingClientRect().top <= 1);
  history.replaceState({left: {
    head: there ? name(there) : "",
    below: there ? -there.getBoundingClientRect().top : 0,
    top: scrollY,
    open: [...document.querySelectorAll("details")].map(node => node.open),
    boxes: boxes().map(node => [node.scrollLeft, node.scrollTop]),
  }}, "");
};
if (old) {
  document.querySelectorAll("details").forEach((node, i) => { node.open = old.open[i] ?? node.open; });
  boxes().forEach((node, i) => { [node.scrollLeft, node.scrollTop] = old.boxes[i] ?? [0, 0]; });
  const there = old.head && heads().find(node => name(node) === old.head);
  scrollTo(0, there ? there.getBoundingClientRect().top + scrollY + old.below : old.top);
  history.replaceState(null, "");
}
history.scrollRestoration = every ? "manual" : "auto";
const stale = document.getElementById("stale");
if (every) {
  const written = Number(document.documentElement.dataset.written) * 1000, shown = Date.now();
  setInterval(() => {
    const now = Date.now(), age = now - written;
    // Long behind: its driver may have been killed with the machine. Loaded all the same, seldom.
    const late = age > 10 * every + 60000;
    if (stale && late) {
      stale.hidden = false;
      stale.textContent = `Not written for ${Math.round(age / 60000)} min: does it still run?`;
    }
    // What somebody reads is not taken from under their eyes, for a minute.
    const reading = !getSelection().isCollapsed && now - shown < every + 60000;
    if (document.hidden || reading || now - shown < (late ? 60000 : every)) return;
    leave();
    location.reload();
  }, Math.min(every, 1000));
}
