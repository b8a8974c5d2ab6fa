"""What people see of a verdict on a table of runs: tables, curves, the page; and `judge` itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.decide.judged import (
    Judged,
    Question,
    judge_place,
    judge_source,
    listed,
    value_text,
)
from sweeper.decide.transfer import Verdict
from sweeper.decide.validation import Validation
from sweeper.files import private_folder, write_atomically, write_json
from sweeper.report.console import trend_brief, trend_text, verdict_table
from sweeper.report.drawing import (
    DASHED,
    INK,
    LINE_COLOR,
    STAR,
    STYLE,
    draw_curve,
    draw_tips,
    legend_key,
    look_of,
    new_panels,
    save,
    set_scale,
    svg,
)
from sweeper.report.figures import learning_rate_figure
from sweeper.report.page import rendered
from sweeper.report.runs import study_source
from sweeper.runs.grid import Reading
from sweeper.runs.source import Source, unit_of
from sweeper.runs.trackers import Objective
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import JOINT_AXIS, LadderSize, describe_size, extent, label_size
from sweeper.study.folder import is_study
from sweeper.table import Cell, Column, Table, counted

SHOWN_RUNS = 24
"""Rows of the table of runs that would tell; the rest is counted."""


def headline(judged: Judged) -> list[str]:
    """The answer in sentences, with the learning rates that were asked for at its end."""
    return [*answers(judged), *end_lines(judged), *rate_lines(judged)]


def end_lines(judged: Judged) -> list[str]:
    """Which curves do not bracket their optimum."""
    return [f"{_capital(line)}." for line in judged.ends]


def answers(judged: Judged) -> list[str]:
    """The ladder's answer and the target's, or what is said where there is none."""
    lines = []
    if (verdict := judged.verdict) is not None:
        ladder = extent(verdict.axis, [size.size for size in verdict.sizes])
        axis = _said(verdict.axis)
        is_open = verdict.answer == "cannot say yet"
        said = "can neither be confirmed nor refuted yet" if is_open else verdict.answer
        failing = [size for size in verdict.sizes if size.answer == "fails"]
        if failing and verdict.axis != JOINT_AXIS:
            # Others may hold, or be open: that is not said of the whole ladder.
            names = listed([describe_size(size.size, verdict.axis) for size in failing])
            ladder = f"{names}, of {ladder}"
        todo = f" To settle it, {verdict.todo}." if verdict.todo else ""
        lines.append(f"The transfer over {axis} {said} at {ladder}.{todo}")
        if verdict.target is not None:
            todo = f" To settle it, {verdict.target.todo}." if verdict.target.todo else ""
            lines.append(f"{verdict.target.sentence}.{todo}")
    return lines + [f"{_capital(line)}." for line in judged.sentences]


def rate_lines(judged: Judged) -> list[str]:
    """The learning rates that were asked for, in plain numbers: the judged one, and the target's.

    Plain where the table has logarithms, too: this is what goes into a config.
    """
    if not math.isfinite(judged.transferred_log2_eta):
        return []
    said = f"The transferred learning rate: {value_text(judged.transferred_log2_eta)}"
    if judged.bound:
        said += f", a bound: the best one of the base lies {judged.bound} it"
    if (best := judged.predicted) is not None:
        low, high = value_text(best.low), value_text(best.high)
        said += (
            f"; at {_said(judged.axis)} {judged.to} the best one is predicted to be "
            f"{value_text(best.value)} ({low} to {high})"
        )
    return [f"{said}."]


def trend_lines(judged: Judged, *, whole: bool = False) -> list[str]:
    """The drift of the optima in a sentence, or at length; none where nothing shows it."""
    if judged.trend is None or judged.axis == JOINT_AXIS:
        return []
    say = trend_text if whole else trend_brief
    # A key of a study means nothing where there is none.
    return [say(judged.trend, applied=False, of_plan=bool(judged.study))]


def _said(axis: str) -> str:
    return axis.replace("_", " ")


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def tables(judged: Judged) -> list[Table]:
    """The verdict's sizes or the optima, and the runs that would tell more."""
    shown = []
    if judged.verdict is not None:
        unit = unit_of(judged.columns.get("loss", ""))
        shown.append(verdict_table(judged.verdict, of_search=False, unit=unit))
    if judged.optima:
        shown.append(optima_table(judged))
    if judged.next_runs:
        shown.append(runs_table(judged))
    return shown


def optima_table(judged: Judged) -> Table:
    """A row a size: the best learning rate and, where it was varied, weight decay."""
    decays = any(math.isfinite(optimum.decay.value) for optimum in judged.optima)
    table = Table(
        f"Optima over {_said(judged.axis)}",
        [
            Column(_said(judged.axis), left=True),
            Column("learning rate", left=True),
            Column("log2", left=True, importance=2),
            *[Column("weight decay", left=True), Column("product", form=".3g")] * decays,
            *[Column("ratio", form=".3g", importance=1)] * decays,
            *[Column("loss", unit=unit_of(judged.columns.get("loss", "")), form=".4f")] * decays,
            *[Column("at an end", left=True)] * decays,
        ],
        legend=["The best of each size, and what the grid's steps leave open on both sides of it."],
    )
    for optimum in judged.optima:
        eta, decay = optimum.eta.value, optimum.decay.value
        both = (2.0 ** (eta + decay), 2.0 ** (eta - decay)) if decays else ()
        table.add(
            label_size(asdict(optimum.size), judged.axis)
            if judged.axis != "tokens"
            else str(optimum.size.steps),
            _range(optimum.eta, plain=judged.plain),
            f"{eta:.2f}",
            *[_range(optimum.decay, plain=True)] * decays,
            *both,
            *[optimum.loss] * decays,
            *[", ".join(optimum.ends)] * decays,
        )
    return table


def _range(estimate: Estimate, *, plain: bool) -> Cell:
    if not math.isfinite(estimate.value):
        # Only a decay of 0 has no logarithm; an infinite one was never measured.
        return Cell("0" if math.isnan(estimate.value) else "-")
    value = value_text(estimate.value, plain=plain)
    low, high = (
        value_text(end, plain=plain) if math.isfinite(end) else "?"
        for end in (estimate.low, estimate.high)
    )
    return Cell(value, f"{value} ({low} to {high})" if low != high else value)


def runs_table(judged: Judged) -> Table:
    """The cells that would settle an open answer."""
    total = sum(proposed.runs * len(proposed.etas) for proposed in judged.next_runs)
    table = Table(
        "Runs that would tell",
        [
            Column(_said(judged.axis), left=True),
            Column("learning rates", left=True),
            Column("runs at each", form="d"),
            Column("why", left=True, importance=1),
        ],
        legend=[f"{counted(total, 'run')}, each with a seed that its cell does not have yet."],
    )
    # Sizes that lack the same runs share a row, so that a screen has room for all of them.
    alike: dict[tuple[str, int, str], list[str]] = {}
    for proposed in judged.next_runs:
        etas = ", ".join(value_text(eta, plain=judged.plain) for eta in proposed.etas)
        size = " ".join(f"{_said(key)} {value}" for key, value in proposed.size.items())
        name = size.removeprefix(f"{_said(judged.axis)} ") if len(proposed.size) == 1 else size
        alike.setdefault((etas, proposed.runs, proposed.why), []).append(name)
    for (etas, runs, why), names in [*alike.items()][:SHOWN_RUNS]:
        table.add(", ".join(names), etas, runs, why)
    return table


def loss_label(judged: Judged) -> str:
    """The losses' axis: which column they are, since a table has several, and in which unit."""
    column = judged.columns.get("loss", "loss")
    return f"{column} ({unit_of(column)})"


def figures(judged: Judged) -> dict[str, Figure]:
    """The pictures by their names: the curves, those of every decay, the optima alone."""
    pictures = {}
    if judged.cells:
        pictures["grid"] = _grid_figure(judged)
    if judged.curves and (len(judged.curves) > 1 or not judged.cells):
        # A table's curves in the record of a study's: one figure draws both.
        validation = Validation(
            planned_log2=judged.transferred_log2_eta, axes=judged.axes, curves=judged.curves
        )
        verdict = judged.verdict or Verdict(axis=judged.axis, answer=judged.answer, sizes=())
        pictures[f"curves-{judged.axis}"] = learning_rate_figure(
            validation, verdict, loss_label(judged)
        )
    if not judged.curves and judged.optima:
        pictures["optima"] = _optima_figure(judged)
    return pictures


@rc_context(STYLE)
def _grid_figure(judged: Judged) -> Figure:
    """A panel a size: loss against the learning rate, a curve a weight decay."""
    sizes = sorted({cell.size for cell in judged.cells})
    figure, panels = new_panels(len(sizes), 3.0, edge=0.5)
    decays = sorted({cell.decay for cell in judged.cells})
    by_curve: dict[tuple[LadderSize, float], list[tuple[float, float]]] = {}
    for cell in judged.cells:
        by_curve.setdefault((cell.size, cell.decay), []).append((math.log2(cell.eta), cell.loss))
    curves = {key: sorted(points) for key, points in by_curve.items()}
    # The panels share one loss axis: set on the first, it is set on all.
    top = set_scale(panels[0], list(curves.values()), max)
    for ax, size in zip(panels, sizes, strict=False):
        for index, decay in enumerate(decays):
            if (points := curves.get((size, decay))) is None:
                continue
            color, marker = look_of(index, len(decays))
            draw_curve(ax, points, top, color, marker)
            draw_tips(ax, points, top, f"weight decay {decay:g}, log2 η")
        best = min((c for c in judged.cells if c.size == size), key=lambda c: c.loss)
        ax.plot(math.log2(best.eta), best.loss, color=LINE_COLOR, zorder=5, **STAR)
        ax.set_title(describe_size(size, judged.axis), parse_math=False)
    figure.supxlabel("learning rate log2 η", fontsize=9)
    figure.supylabel(loss_label(judged), fontsize=9, parse_math=False)
    handles = []
    for index, decay in enumerate(decays):
        color, marker = look_of(index, len(decays))
        handles.append(legend_key(f"{decay:g}", color=color, marker=marker, linestyle="-"))
    handles.append(legend_key("best", color=LINE_COLOR, **STAR))
    figure.legend(handles=handles, title="weight decay", loc="outside right upper")
    return figure


@rc_context(STYLE)
def _optima_figure(judged: Judged) -> Figure:
    """The optima over the size, with what the grid's step leaves open."""
    figure, (ax,) = new_panels(1, 3.2)
    x = [
        math.log2(
            optimum.size.steps if judged.axis == "tokens" else getattr(optimum.size, judged.axis)
        )
        for optimum in judged.optima
    ]
    y = [optimum.eta.value for optimum in judged.optima]
    half = [max(0.0, optimum.eta.high - optimum.eta.value) for optimum in judged.optima]
    half = [value if math.isfinite(value) else 0.0 for value in half]
    ax.errorbar(x, y, half, fmt="o", color=LINE_COLOR, ecolor=INK, capsize=3.5)
    ax.axhline(judged.transferred_log2_eta, color=INK, linewidth=1, linestyle=DASHED)
    ax.set(xlabel=f"log2 {_said(judged.axis)}", ylabel="best learning rate log2 η")
    ax.set_title(f"Transfer over {_said(judged.axis)}: {judged.answer}", parse_math=False)
    return figure


def page_html(judged: Judged) -> str:
    """The page, which needs no network."""
    drawings = [Markup(svg(figure, f"f{i}")) for i, figure in enumerate(figures(judged).values())]
    return rendered(
        "judge.html.j2",
        judged=judged,
        tone={"holds": "good", "fails": "bad"}.get(judged.answer, "open"),
        lines=headline(judged),
        tables=tables(judged),
        drawings=drawings,
        trend=" ".join(trend_lines(judged, whole=True)),
        inputs=_inputs(judged),
    )


def write_judged(judged: Judged, folder: Path) -> dict[str, Path]:
    """Write `judge.json`, the figures as PNG and SVG, and `judge.html` into `folder`."""
    private_folder(folder)
    write_atomically(folder / "judge.html", page_html(judged))
    write_json(folder / "judge.json", judged.record)
    places = {"page": folder / "judge.html", "verdict": folder / "judge.json"}
    for name, figure in figures(judged).items():
        picture, _ = save(figure, folder / name)
        places.setdefault("figure", picture)
    return places


def _inputs(judged: Judged) -> Mapping[str, Any]:
    low, high = ("", "")
    if math.isfinite(judged.transferred_log2_eta):
        low = value_text(judged.transferred_log2_eta, plain=judged.plain)
        high = f"2^{judged.transferred_log2_eta:.2f}"
    return {
        "table": judged.source or "a table in memory",
        "its SHA-256": judged.sha256,
        "filter": judged.where,
        "columns": ", ".join(f"{role}={column}" for role, column in judged.columns.items()),
        "runs": judged.runs,
        "transferred learning rate": f"{low} ({high})" if low and low != high else low,
        "noise": judged.noise or "nothing shows it",
        "command": judged.command,
    }


@dataclass(frozen=True, eq=False)
class Drawn:
    """A verdict on a table as a notebook shows it; `judged` has all of it, `record` as JSON."""

    judged: Judged

    @property
    def answer(self) -> str:
        """holds, fails or cannot say yet."""
        return self.judged.answer

    @property
    def record(self) -> dict[str, Any]:
        """What `sweeper judge --json` prints."""
        return self.judged.record

    @property
    def table(self) -> Any:
        """The sizes, or the optima, as a pandas DataFrame; ValueError without any."""
        shown = tables(self.judged)
        if not shown:
            raise ValueError("nothing was judged")
        return shown[0].to_frame()

    def figure(self) -> Figure:
        """The curves."""
        return next(iter(figures(self.judged).values()))

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write the page, the verdict and the figures there; their places."""
        return write_judged(self.judged, Path(folder))

    def __str__(self) -> str:
        """The answer, the drift of the optima, and what was said of the table."""
        return "\n".join(self._lines)

    __repr__ = __str__

    @property
    def _lines(self) -> list[str]:
        notes = (f"Note: {note}." for note in self.judged.notes)
        return [*headline(self.judged), *trend_lines(self.judged), *notes]

    def _repr_html_(self) -> str:
        from html import escape

        text = "".join(f"<p>{escape(line)}</p>" for line in self._lines)
        return text + "".join(svg(figure, "judged") for figure in figures(self.judged).values())


def judge(
    frame: Any,
    *,
    width: str | None = None,
    eta: str | None = None,
    loss: str | None = None,
    seed: str | None = None,
    columns: str = "",
    where: str = "",
    axis: str | None = None,
    ignore: str | tuple[str, ...] = (),
    to_width: int | None = None,
    base: float | None = None,
    transferred: float | None = None,
    noise: float | None = None,
    diverged: float | None = None,
    grid_step: float | None = None,
    series: str = "",
    window: float = 0.1,
    study: str = "",
    max_shift: float = 1.0,
    max_loss_gap: float = 0.01,
) -> Drawn:
    """What `sweeper judge` says of runs: a DataFrame, columns by name, or a place that it reads.

    One row a run. `width`, `eta`, `loss` and `seed` name columns, as `columns` does for all roles;
    see `sweeper judge --help` for the rest. BadInput as there.
    """
    named = {"width": width, "eta": eta, "loss": loss, "seed": seed}
    roles = [f"{role}={column}" for role, column in named.items() if column is not None]
    ignored = tuple(ignore.split(",")) if isinstance(ignore, str) else tuple(ignore)
    reading = Reading(
        axis=axis,
        ignore=tuple(filter(None, ignored)),
        noise=noise,
        diverged=diverged,
        base=base,
        objective=Objective(series=series, window=window, study=study),
    )
    question = Question(
        reading=reading,
        to=to_width,
        eta=transferred,
        grid_step=grid_step,
        max_shift=max_shift,
        max_loss_gap=max_loss_gap,
    )
    text = ",".join(filter(None, (columns, *roles)))
    # A text is a place, never a table's content.
    if not isinstance(frame, str | Path):
        return Drawn(judge_source(Source.of_frame(frame, where), text, question))
    if (folder := Path(frame)).is_dir() and is_study(folder):
        return Drawn(judge_source(study_source(folder, where, axis), text, question))
    return Drawn(judge_place(frame, text, where, question))
