"""The pictures of README.md and docs/idea.md, from docs/figures/idea.json.

python scripts/figures/idea.py          draws them anew; trains nothing
python scripts/figures/idea.py FOLDER   first reads the studies of scripts/readme_picture.sh

Each picture is there for light and for dark pages (NAME.svg, NAME-dark.svg) and has no background.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

from lab import Document, arguments, estimate
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from sweeper.decide.ladder_verdict import judge_ladder
from sweeper.files import write_atomically, write_json
from sweeper.records import to_json
from sweeper.report.drawing import (
    DEEP,
    FAINT,
    INK,
    PALE,
    STRIP,
    STYLE,
    legend_key,
    look_of,
)
from sweeper.report.sentences_transfer import worded
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve
from sweeper.study.study import StudyRecord

ROOT = Path(__file__).parents[2]
RECORD, ASSETS = ROOT / "docs" / "figures" / "idea.json", ROOT / "docs" / "assets"
NAMES = ("standard", "mup", "umup")
BASE, TARGET = 32, 4096
MODULES = {"head": "logits", "layers.1.ffn.down": "last hidden layer", "embedding": "embedding"}
"""What the second picture shows of the coordinate check, and what it is called there."""
NANOGPT = Estimate(value=-0.16, low=-1.10, high=0.78)
"""The shift that docs/your-model.md shows: widths 32 and 64, three seeds of 200 steps."""
LETTERS = 8.5
"""Points; the pictures are made for a phone's width and shown larger elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of a figure; `pale` and `deep` are places in viridis: narrowest and widest model."""

    ink: str
    faint: str
    grid: str
    strip: str
    pale: float
    deep: float

    @property
    def style(self) -> Any:
        """The settings of matplotlib that follow."""
        names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor")
        inks = dict.fromkeys(names, self.ink)
        return STYLE | inks | {"grid.color": self.grid, "axes.edgecolor": self.faint}


LIGHT = Theme(ink=INK, faint=FAINT, grid="#e4e4e4", strip=STRIP, pale=PALE, deep=DEEP)
DARK = Theme(ink="#e6e8eb", faint="#9aa1aa", grid="#343a41", strip="#23282e", pale=0.95, deep=0.45)


def main() -> None:
    """Read the studies if asked to, and draw."""
    folders = arguments(sys.argv[1:], str(__doc__))
    if len(folders) > 1:
        sys.exit("Error: one folder at most; --help says what is taken")
    for folder in folders:
        write_json(RECORD, collect(Path(folder)))
    record = json.loads(RECORD.read_text())
    ladders, verdicts = record["ladders"], record["verdicts"]
    both = {name: ladders[name] for name in NAMES[:2]}
    pictures: dict[str, Callable[[Theme], Figure]] = {
        "transfer": lambda theme: curves(ladders, theme, (8.8, 3.6)),
        "transfer-narrow": lambda theme: curves(ladders, theme, (4.3, 3.5)),
        "idea-curves": lambda theme: curves(both, theme, (4.4, 3.4)),
        "idea-sizes": lambda theme: sizes(record["check"], theme),
        "idea-plan": lambda theme: plan(record, theme),
        "idea-verdicts": lambda theme: answers(verdicts, theme),
        "idea-cost": lambda theme: costs(record, theme),
    }
    for name, draw in pictures.items():
        for theme, end in ((LIGHT, ""), (DARK, "-dark")):
            with rc_context(theme.style | {"svg.fonttype": "path", "font.size": LETTERS}):
                buffer = StringIO()
                metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
                draw(theme).savefig(buffer, format="svg", transparent=True, metadata=metadata)
            write_atomically(ASSETS / f"{name}{end}.svg", buffer.getvalue())


# What was trained, as the pictures need it.


def collect(root: Path) -> dict[str, Any]:
    """The curves, verdicts and checks of the studies in `root`."""
    ladders = {name: ladder(root / name) for name in NAMES}
    verdicts = {name: judged(found["curves"]) for name, found in ladders.items()}
    checks = {name: changes(root / name / "check" / "check.json") for name in NAMES[:2]}
    return {"ladders": ladders, "verdicts": verdicts, "check": checks}


def ladder(folder: Path) -> dict[str, Any]:
    """The mean losses of a study by width and log2 eta, all else as tuned at the base."""
    results = StudyRecord.read(folder, curves=False).results()
    tuned = dict(json.loads((folder / "search.json").read_text())["best_log2"])
    eta = tuned.pop("eta")
    found: dict[int, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    searched = 0
    for result in results:
        trial = result.trial
        hps = dict(trial.log2_hps)
        searched += trial.phase != "validate"
        if {**hps, "eta": 0} == {**tuned, "eta": 0}:
            found[trial.spec.width][hps["eta"]][trial.seed] = result.objective
    curves = {}
    for width, points in sorted(found.items()):
        # At the base the search trained some points with more seeds: they would bend the curve.
        seeds = {0, 1} & set(points[min(points, key=lambda e: min(points[e].values()))])
        kept = {e: [p[s] for s in sorted(seeds & set(p))] for e, p in sorted(points.items())}
        curves[width] = {e: losses for e, losses in kept.items() if len(losses) == len(seeds)}
    return {"eta": eta, "tuned": tuned, "searched": searched, "curves": curves}


def judged(curves: Mapping[int, Mapping[float, Sequence[float]]]) -> Any:
    """The verdict on curves, as `sweeper transfer --validate` and `sweeper judge` have it."""
    sizes = {w: LadderSize(width=w, depth=2, batch_size=4, steps=1000) for w in curves}
    measured = [
        SizeCurve(size=sizes[width], losses={e: tuple(losses) for e, losses in points.items()})
        for width, points in curves.items()
    ]
    base = min(curves[BASE], key=lambda eta: fmean(curves[BASE][eta]))
    rule = LadderRule(widths=tuple(curves), step=1.0)
    return to_json(worded(judge_ladder("width", measured, base, sizes[BASE], rule)))


def changes(path: Path) -> dict[str, Any]:
    """By module: what its own weights change of its output in four steps, over that at the base."""
    (axis,) = json.loads(path.read_text())["axes"]
    modules = {module["name"]: module for module in axis["modules"]}
    found = {}
    for name in MODULES:
        direct = [one for one in modules[name]["slopes"] if one["quantity"] == "direct"]
        last = max(direct, key=lambda one: one["step"])
        grown = [2 ** (value - last["values"][0]) for value in last["values"]]
        found[name] = {"grown": grown, "slope": last["slope"]}
    return {"sizes": axis["sizes"], "modules": found}


# Drawing


def curves(ladders: Mapping[str, Document], theme: Theme, size: tuple[float, float]) -> Figure:
    """Loss against the learning rate over the best one at the base; one axis for all panels."""
    narrow = size[0] < 5
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(ladders), sharey=True, sharex=True)
    verdicts = json.loads(RECORD.read_text())["verdicts"]
    least = [
        fmean(y) for one in ladders.values() for c in one["curves"].values() for y in c.values()
    ]
    least = [loss for loss in least if math.isfinite(loss)]
    bottom, top = min(least) - 0.03, 2.32
    widths = sorted({int(width) for one in ladders.values() for width in one["curves"]})
    looks = {}
    for index, width in enumerate(widths):
        color, marker = look_of(index, len(widths), theme.pale, theme.deep)
        looks[width] = {"color": color, "marker": marker}
    for ax, (name, found) in zip(axes, ladders.items(), strict=True):
        optima = {size["size"]["width"]: size for size in verdicts[name]["sizes"]}
        zero = estimate(optima[BASE]["optimum_log2"]).value
        ax.axvline(0, color=theme.faint, linewidth=1, linestyle=(0, (4, 3)), zorder=1.5)
        for width, points in found["curves"].items():
            look, places = (
                looks[int(width)],
                sorted((float(e) - zero, y) for e, y in points.items()),
            )
            x, means = [e for e, _ in places], [fmean(y) for _, y in places]
            low, high = [min(y) for _, y in places], [max(y) for _, y in places]
            ax.fill_between(x, low, high, color=look["color"], alpha=0.25, linewidth=0)
            ax.plot(x, means, markersize=3.5, linewidth=1.4, **look)
        best = [
            (estimate(o["optimum_log2"]).value - zero, estimate(o["loss"]).value, w)
            for w, o in sorted(optima.items())
        ]
        ax.plot([x for x, _, _ in best], [y for _, y, _ in best], color=theme.ink, zorder=4.5)
        for x, y, width in best:
            star = {"marker": "*", "markersize": 11, "markeredgewidth": 0.7, "zorder": 5}
            ax.plot(x, y, color=looks[width]["color"], markeredgecolor=theme.ink, **star)
        moved = 2 ** -best[-1][0]
        far = best[-1][2]
        note = (
            f"best at width {far}:\n{moved:.1f} times smaller"
            if abs(best[-1][0]) > 0.5
            else (f"best at width {far}:\nthe same within {max(moved, 1 / moved) - 1:.0%}")
        )
        ax.set_title(name, fontweight="bold", pad=26 if narrow else 30, fontsize=LETTERS + 1)
        ax.annotate(
            note,
            (0, 1),
            (0, 4),
            "axes fraction",
            "offset points",
            fontsize=LETTERS - 0.7,
            color=theme.faint,
            annotation_clip=False,
        ).set_in_layout(False)
        ax.set_ylim(bottom, top)
        ax.set_xlim(-4.6, 2.5)
        ax.set_xticks([-4, -2, 0, 2], ["1/16", "1/4", "1", "4"])
    figure.supxlabel(f"learning rate, over the best one at width {BASE}", fontsize=LETTERS)
    figure.supylabel("training loss (nats)", fontsize=LETTERS)
    handles = [legend_key(f"{w}", linestyle="-", **look) for w, look in looks.items()]
    handles.append(legend_key("best", marker="*", markersize=9, color=theme.ink))
    place = {"loc": "outside upper left", "ncols": 6} if narrow else {"loc": "outside right upper"}
    place |= {} if narrow else {"title": "width"}
    handles = [legend_key("width", linestyle="none", color="none"), *handles] if narrow else handles
    figure.legend(handles=handles, columnspacing=0.9, handletextpad=0.4, handlelength=1.6, **place)
    return figure


def sizes(check: Mapping[str, Document], theme: Theme) -> Figure:
    """By how much outputs move in four steps, over that at the base."""
    figure = Figure(figsize=(4.4, 3.0), layout="constrained")
    axes = figure.subplots(1, len(check), sharey=True)
    marks = dict(zip(MODULES, "osD", strict=True))
    colors = {"head": "#c2410c", "layers.1.ffn.down": "#31688e", "embedding": theme.faint}
    if theme is DARK:
        colors |= {"head": "#fb923c", "layers.1.ffn.down": "#7db8dd"}
    for ax, (name, found) in zip(axes, check.items(), strict=True):
        for module, measured in found["modules"].items():
            look = {"color": colors[module], "marker": marks[module], "markersize": 4}
            ax.plot(found["sizes"], measured["grown"], **look)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.set_xticks(found["sizes"], [str(width) for width in found["sizes"]])
        ax.set_yticks([0.5, 1, 2, 4, 8], ["1/2", "1", "2", "4", "8"])
        ax.set_ylim(0.45, 9)
        ax.minorticks_off()
        ax.set_title(name, fontweight="bold", fontsize=LETTERS + 1)
        ax.set_xlabel("width", fontsize=LETTERS)
    axes[0].set_ylabel(f"moved in 4 steps, over width {BASE}", fontsize=LETTERS)
    handles = [
        legend_key(name, color=colors[module], marker=marks[module], linestyle="-")
        for module, name in MODULES.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, columnspacing=1.2)
    return figure


def plan(record: Document, theme: Theme) -> Figure:
    """Three boxes: what is trained at which width, and what goes from one to the next."""
    found = record["ladders"]["mup"]
    widths = [int(width) for width in found["curves"]]
    runs = sum(len(losses) for curve in found["curves"].values() for losses in curve.values())
    boxes = [
        (
            "1  tune",
            f"width {BASE}",
            f"{found['searched']} runs find\nlearning rate and\nmultipliers",
        ),
        (
            "2  check",
            f"widths {widths[0]} to {widths[-1]}",
            f"{runs} runs: does the\nbest learning rate\nstay where it is?",
        ),
        ("3  train", f"width {TARGET}", "1 run, with what\nwidth 32 found,\nscaled by a rule"),
    ]
    figure = Figure(figsize=(4.4, 2.3), layout="constrained")
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set(xlim=(0, 100), ylim=(0, 52))
    for index, (title, where, what) in enumerate(boxes):
        left = index * 35
        ax.add_patch(Rectangle((left, 8), 30, 42, facecolor=theme.strip, edgecolor=theme.faint))
        ax.text(left + 2, 46.5, title, fontsize=LETTERS + 1.5, fontweight="bold", va="top")
        ax.text(left + 2, 38.5, where, fontsize=LETTERS, va="top", color=theme.faint)
        ax.text(left + 2, 30, what, fontsize=LETTERS, va="top", linespacing=1.35)
        if index:
            arrow = {"arrowstyle": "-|>", "mutation_scale": 10, "color": theme.ink}
            ax.add_patch(FancyArrowPatch((left - 5, 29), (left, 29), shrinkA=0, shrinkB=0, **arrow))
    ax.text(0, 3, "search", family="monospace", fontsize=LETTERS)
    ax.text(35, 3, "transfer --validate", family="monospace", fontsize=LETTERS - 0.5)
    ax.text(70, 3, "your script", fontsize=LETTERS)
    return figure


def answers(verdicts: Mapping[str, Document], theme: Theme) -> Figure:
    """How far the best learning rate moved, with intervals, against what is allowed."""
    moved = {
        name: {size["size"]["width"]: estimate(size["shift_log2"]) for size in judged["sizes"][1:]}
        for name, judged in verdicts.items()
    }
    panels = [
        (verdicts["mup"]["answer"], "mup, above", moved["mup"]),
        (verdicts["standard"]["answer"], "standard, above", moved["standard"]),
        ("cannot say yet", "nanoGPT, 200 steps", {64: NANOGPT}),
    ]
    widths = list(moved["mup"])
    figure = Figure(figsize=(4.4, 2.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True)
    for ax, (answer, label, shifts) in zip(axes, panels, strict=True):
        ax.axvspan(-1, 1, facecolor="#16a34a", alpha=0.16 if theme is LIGHT else 0.3, linewidth=0)
        ax.axvline(0, color=theme.faint, linewidth=1, linestyle=(0, (4, 3)))
        for width, shift in shifts.items():
            row = widths.index(width)
            look = {"color": theme.ink, "linewidth": 2.2, "solid_capstyle": "butt"}
            ax.plot([max(shift.low, -9), min(shift.high, 9)], [row, row], **look)
            ax.plot(shift.value, row, "o", color=theme.ink, markersize=4.5)
        ax.set_yticks(range(len(widths)), [str(width) for width in widths])
        ax.set_ylim(len(widths) - 0.5, -0.5)
        ax.set_xlim(-4, 2.5)
        ax.set_xticks([-3, -1, 1], ["1/8", "1/2", "2"])
        ax.grid(visible=False)
        ax.set_title(answer, fontweight="bold", fontsize=LETTERS + 1, pad=18)
        note = ax.annotate(label, (0, 1), (0, 5), "axes fraction", "offset points")
        note.set(fontsize=LETTERS - 0.7, color=theme.faint, in_layout=False)
    axes[0].set_ylabel("width", fontsize=LETTERS)
    figure.supxlabel(f"best learning rate, over that at width {BASE}", fontsize=LETTERS)
    return figure


def costs(record: Document, theme: Theme) -> Figure:
    """Compute in runs of the target, by width squared."""
    found = record["ladders"]["mup"]
    one = {int(width): (int(width) / TARGET) ** 2 for width in found["curves"]}
    search = found["searched"] * one[BASE]
    rungs = {int(w): sum(map(len, curve.values())) for w, curve in found["curves"].items()}
    check = sum(one[width] * runs for width, runs in rungs.items())
    figure = Figure(figsize=(4.4, 1.9), layout="constrained")
    ax = figure.subplots()
    bars = {
        f"tune at width {TARGET}:\n7 learning rates": (7.0, theme.faint),
        f"tune at {BASE}, check to {max(one)},\ntrain at {TARGET}": (1 + search + check, "#31688e"),
    }
    for row, (total, color) in enumerate(bars.values()):
        ax.barh(row, total, height=0.55, color=color)
        ax.text(total + 0.1, row, f"{total:.3g}", va="center")
    ax.set_yticks(range(len(bars)), list(bars))
    ax.set_ylim(len(bars) - 0.5, -0.5)
    ax.set_xlim(0, 8)
    ax.grid(visible=False)
    ax.set_xlabel(f"compute, in runs at width {TARGET}", fontsize=LETTERS)
    return figure


if __name__ == "__main__":
    main()
