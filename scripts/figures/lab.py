"""What the figures share: they run sweeper's own commands, state claims, and draw.

A figure is a script with a config of the same name in `conf/experiment/`. Its arguments are
overrides that every command of it gets, such as `size=paper launcher=local`. All it makes lies
in `runs/figures/<name>/` (`root=FOLDER`: in `FOLDER/<name>/`); run it again after any interruption,
and it goes on.
"""

from __future__ import annotations

import json
import math
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import yaml
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from sweeper.files import json_text, write_json
from sweeper.report.drawing import FAINT, LINE_COLOR, MARKERS, STYLE, save
from sweeper.stats.estimate import Estimate, mean_estimate

Document = Mapping[str, Any]
Answer = Literal["reproduced", "not reproduced", "cannot say"]
ANSWERS: Mapping[str, Answer] = {
    "holds": "reproduced",
    "fails": "not reproduced",
    "cannot say yet": "cannot say",
}
"""What the verdict on a transfer says of the claim that it holds."""
ROOT = "runs/figures"
ETA = "parameterization.space.eta"
PAPER_ETA = f"{ETA}={{low:-10,high:-6,default:-8}}"
"""The range of the u-muP paper's Table 6 for muP, above which that of the config goes on."""
ARGUMENTS = f"""Arguments are overrides of the config, which every command of sweeper gets:
  size=paper | size=middle   the sizes of conf/size/
  launcher=slurm             where trials are trained
  root=FOLDER                keep all in FOLDER/NAME instead of {ROOT}/NAME
Run it again after any interruption, and it goes on."""
STOPPED, PATIENCE = 130, 2.0
"""The exit code after Ctrl-C; seconds after which sweeper has not got it from the terminal."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a source says, what was measured with its interval, and whether that reproduces it."""

    source: str
    claim: str
    measured: str
    answer: Answer


@dataclass(kw_only=True)
class Lab:
    """One figure: its name, the overrides of the command line, and what it has found so far."""

    name: str
    words: Sequence[str]
    claims: list[Claim] = field(default_factory=list)
    ladders: dict[str, Document] = field(default_factory=dict)
    """What was validated, by study and hyperparameter: verdicts and the losses behind them."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """What else was measured that claims rest on, by name."""

    @classmethod
    def of(cls, name: str) -> Lab:
        """The figure `name` with the arguments of this process."""
        sys.excepthook = _quiet
        words = arguments(sys.argv[1:], f"{sys.modules['__main__'].__doc__}\n{ARGUMENTS}")
        return cls(name=name, words=words)

    @property
    def folder(self) -> Path:
        """Where everything goes; each size of the experiment has a folder of its own."""
        size = [word.partition("=")[2] for word in self.words if word.startswith("size=")]
        roots = [word.partition("=")[2] for word in self.words if word.startswith("root=")]
        return Path([ROOT, *roots][-1], "-".join([self.name, *size]))

    @property
    def passed(self) -> list[str]:
        """The words that sweeper gets: all but `root`, of which each command has its own."""
        return [word for word in self.words if not word.startswith("root=")]

    def search(self, study: str, *overrides: str) -> Document:
        """`sweeper search`; the content of the study's `search.json`."""
        shared = [f"experiment={self.name}", *self.passed, *overrides]
        if "parameterization=mup" in shared and not any(one.startswith(ETA) for one in shared):
            shared.append(PAPER_ETA)
        return self.sweeper("search", *shared, f"study={study}", f"root={self.folder}")

    def transfer(
        self, study: str, width: int, *overrides: str, hyperparameter: str = "eta"
    ) -> Document:
        """`sweeper transfer --validate` of a study; the content of its `validation.json`.

        another hyperparameter than eta the curves lie in a file named after it.
        """
        options = ["--study", study, "--to-width", str(width), "--validate"]
        other = [] if hyperparameter == "eta" else [f"transfer.hyperparameter={hyperparameter}"]
        done = self.sweeper("transfer", *options, f"root={self.folder}", *other, *overrides)
        target = done["plan"]["target"]
        name = f"w{target['width']}-d{target['depth']}"
        file = "-".join(["validation", hyperparameter][: 1 + len(other)])
        path = self.folder / study / "transfer" / name / f"{file}.json"
        found: Document = json.loads(path.read_text())
        self.ladders[" ".join([study, *other])] = found
        return found

    def measured(self, name: str, measure: Callable[[], object]) -> Any:
        """What `measure` finds, as the record keeps it under `name`: JSON, in six digits."""
        self.numbers[name] = json.loads(json_text(_rounded(measure()), summed=False))
        return self.numbers[name]

    def sweeper(self, *words: str) -> Document:
        """One command of sweeper; its document. The command is printed, and so is its progress."""
        print(f"\n$ {shlex.join(['sweeper', *words])}", flush=True)
        command = [sys.executable, "-m", "sweeper", *words, "--json"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            text, _ = running.communicate()
        except KeyboardInterrupt:
            _stop(running)
            sys.exit(STOPPED)
        if running.returncode:
            sys.exit(running.returncode)  # its message is on stderr
        found: Document = json.loads(text)
        return found

    def _size(self) -> str:
        """What the figure's first study trains, in words."""
        config = yaml.safe_load(min(self.folder.glob("*/config.yaml")).read_text())
        model, train = config["model"], config["train"]
        images = config["data"]["_target_"] in ("digits", "idx")
        batch = f"{train['batch_size']} " + ("images" if images else f"x {train['seq_len']}")
        return f"width {model['width']}, depth {model['depth']}, {train['steps']} steps of {batch}"

    def claim(self, source: str, claim: str, measured: str, answer: Answer) -> None:
        """Note a claim and what became of it."""
        self.claims.append(Claim(source=source, claim=claim, measured=measured, answer=answer))

    def stays(self, source: str, subject: str, judged: Document, more: str = "") -> None:
        """Claim that the best eta stays on a ladder; `more` tells of its shifts what it may."""
        self.claim(
            source,
            f"{subject}: the best η stays over {judged['axis'].replace('_', ' ')}",
            f"{shift_at_the_end(judged)}{more}{why(judged)}",
            ANSWERS[judged["answer"]],
        )

    def moves(self, source: str, subject: str, judged: Document) -> None:
        """Claim that the best eta moves on a ladder: what fails there is what the paper says."""
        answers: dict[str, Answer] = {"fails": "reproduced", "holds": "not reproduced"}
        self.claim(
            source,
            f"{subject}: the best η moves with {judged['axis'].replace('_', ' ')}",
            f"{shift_at_the_end(judged)}{why(judged)}",
            answers.get(judged["answer"], "cannot say"),
        )

    def drifts_not(self, source: str, subject: str, found: Document) -> None:
        """Claim that the best rate's trend over width is small, with its slope."""
        widths = found["trend"]["sizes"] if found["trend"] else []
        self.claim(
            source,
            f"{subject}: the best rate drifts by less than {DRIFT:g} a doubling",
            f"per doubling {within(slope(found))}, widths {', '.join(map(str, widths))}",
            near(slope(found), 0.0, DRIFT),
        )

    def finish(self, draw: Callable[[], Figure], about: str = "") -> None:
        """Print the claims, and keep them with the figure; `about` tells constants and the like."""
        size = self._size()
        made = Table(box=box.SIMPLE_HEAD, title=f"{self.name}: {size}", title_justify="left")
        for column in ("claim", "source", "measured", "at this size"):
            made.add_column(column, overflow="fold")
        for one in self.claims:
            made.add_row(one.claim, one.source, one.measured, one.answer)
        Console(width=None if sys.stdout.isatty() else 120).print(made)
        claims = [asdict(one) for one in self.claims]
        # Where trials are trained and kept changes nothing.
        words = [word for word in self.passed if not word.startswith(("launcher", "runner"))]
        command = shlex.join(["python", f"scripts/figures/{self.name}.py", *words])
        record: dict[str, Any] = {"figure": self.name, "size": size, "command": command}
        record |= {"claims": claims} | ({"about": about} if about else {})
        # With the losses every claim can be judged again: rejudge.py.
        ladders = {name: kept_ladder(found) for name, found in self.ladders.items()}
        record |= {"ladders": ladders, "numbers": self.numbers}
        write_json(self.folder / "claims.json", record, summed=False)
        picture, _ = save(draw(), self.folder / self.name)
        print(f"Figure: {picture}\nClaims: {self.folder / 'claims.json'}")


def _rounded(value: Any) -> Any:
    """JSON with its numbers in six digits."""
    if isinstance(value, Mapping):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) and math.isfinite(value) else value


def kept_ladder(validation: Document) -> Document:
    """Of a validation what its verdicts follow from, and what they said."""
    said = [
        {
            "axis": one["axis"],
            "sizes": [size["size"] for size in one["sizes"]],
            "base": next(size["size"] for size in one["sizes"] if size["is_base"]),
            "answer": one["answer"],
            "shift": shift_at_the_end(one),
        }
        for one in validation["axes"]
    ]
    kept = {name: validation[name] for name in ("log2_hps", "planned_log2")}
    return {**kept, "axes": said, "curves": _rounded(validation["curves"])}


def arguments(words: Sequence[str], helped: str) -> Sequence[str]:
    """The arguments; `-h` prints `helped` and ends, any other option is refused."""
    if {"-h", "--help"} & set(words):
        print(helped.strip())
        sys.exit(0)
    options = [word for word in words if word.startswith("-")]
    if options:
        print(f"Error: unknown option {options[0]}; --help says what is taken", file=sys.stderr)
        sys.exit(2)
    return words


def _stop(running: subprocess.Popen[str]) -> None:
    """Wait until sweeper has stopped; a terminal told it of Ctrl-C, but a kill of us did not."""
    try:
        running.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)
        running.wait()


def _quiet(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C between two commands, or a second one, is no bug: no traceback."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def estimate(record: Document) -> Estimate:
    """A number with its 95 % interval, from a document."""
    return Estimate(**{key: float(record[key]) for key in ("value", "low", "high")})


def within(found: Estimate, form: str = "{:+.2f}") -> str:
    """A value with its 95 % interval: +0.15 [-0.11, +0.40]."""
    value, low, high = (form.format(one) for one in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def compared(found: Estimate, form: str = "{:.3f}") -> str:
    """A difference of losses in words: 0.15 [0.11, 0.40] nats lower."""
    if found.value >= 0:
        return f"{within(found, form)} nats higher"
    less = Estimate(value=-found.value, low=-found.high, high=-found.low)
    return f"{within(less, form)} nats lower"


def below(first: Estimate, second: Estimate) -> Answer:
    """Whether the first lies below the second: their intervals are apart, or nobody can say."""
    if first.high < second.low:
        return "reproduced"
    return "not reproduced" if first.low > second.high else "cannot say"


def near(found: Estimate, value: float, bound: float) -> Answer:
    """Whether a number lies within `bound` of `value`: all of its interval does, or none of it."""
    low, high = found.low - value, found.high - value
    if -bound <= low and high <= bound:
        return "reproduced"
    return "not reproduced" if low > bound or high < -bound else "cannot say"


def verdict(validation: Document, axis: str) -> Document:
    """The verdict over one ladder."""
    found: Document = next(one for one in validation["axes"] if one["axis"] == axis)
    return found


def why(judged: Document) -> str:
    """Why a verdict does not hold, to append: a size that fails, or else the first open one."""
    axis = judged["axis"]
    doubts = [one for one in judged["sizes"] if one["answer"] not in ("holds", "base")]
    for one in sorted(doubts, key=lambda size: size["answer"] != "fails"):
        return f"; {axis.replace('_', ' ')} {one['size'][axis]}: {one['reason']}"
    return ""


def farthest(judged: Document) -> Document:
    """Of a verdict's sizes the one that is farthest from the base on its ladder."""
    axis = judged["axis"]
    base = next(one["size"][axis] for one in judged["sizes"] if one["is_base"])
    return max(judged["sizes"], key=lambda one: abs(math.log(one["size"][axis] / base)))


def shift_at_the_end(judged: Document) -> str:
    """The shift of the optimum at a ladder's far end, in words."""
    far, axis = farthest(judged), judged["axis"]
    shift = within(estimate(far["shift_log2"]))
    return f"shift {shift} at {axis.replace('_', ' ')} {far['size'][axis]}"


@rc_context(STYLE)
def panels(rows: int, columns: int, *, share: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels, row by row; `share`: with one axis of losses a row."""
    figure = Figure(figsize=(2.3 * columns + 0.6, 2.2 * rows + 0.5), layout="constrained")
    sharing: Any = "row" if share else "none"
    return figure, list(figure.subplots(rows, columns, sharey=sharing, squeeze=False).flat)


@rc_context(STYLE)
def curves(ax: Axes, validation: Document, axis: str, title: str = "") -> None:
    """Loss against log2 eta, a curve a size of the ladder, its optimum a star."""
    verdicts = verdict(validation, axis)["sizes"]
    lows, highs = [], []
    for index, judged in enumerate(verdicts):
        size = judged["size"]
        measured = next(c for c in validation["curves"] if c["size"] == size)
        points = [(float(eta), mean(losses)) for eta, losses in measured["losses"].items()]
        # In the order of the axis: a curve that grew has its later points behind.
        finite = sorted((eta, loss) for eta, loss in points if math.isfinite(loss))
        color = shade(index, len(verdicts))
        marker = MARKERS[index % len(MARKERS)]
        label = f"{size[axis]}"
        ax.plot(*zip(*finite, strict=True), color=color, marker=marker, markersize=3, label=label)
        best, loss = float(judged["optimum_log2"]["value"]), float(judged["loss"]["value"])
        ax.plot(best, loss, "*", color=color, markersize=9, markeredgecolor="black", zorder=5)
        lows.append(min(loss, *(one for _, one in finite)))
        highs.append(sorted(loss for _, loss in finite)[len(finite) // 2])
    low, high = min(lows), max(highs)
    limits = [low - 0.08 * (high - low), high + 0.15 * (high - low)]
    for other in ax.get_shared_y_axes().get_siblings(ax):
        limits += other.get_ylim() if other is not ax and other.lines else ()
    ax.set_ylim(min(limits), max(limits))
    # Between the title and the curves, over which it would lie within the panel.
    ax.set_title(title, pad=16)
    look: dict[str, Any] = {"columnspacing": 0.7, "handlelength": 1.0, "handletextpad": 0.3}
    look |= {"fontsize": 7, "borderaxespad": 0.0, "loc": "lower left", "bbox_to_anchor": (0, 1)}
    handles, labels = ax.get_legend_handles_labels()
    labels[0] = f"{axis.replace('_', ' ')} {labels[0]}"
    ax.legend(handles, labels, ncols=len(verdicts), **look)


def shade(index: int, count: int) -> Any:
    """A colour for each of `count` sizes, darker as they grow."""
    return colormaps["viridis"](0.78 * (1 - index / max(1, count - 1)))


def mean(losses: Sequence[object]) -> float:
    """The mean of a point's losses, +inf where one diverged."""
    values = [float(loss) for loss in losses]
    return math.fsum(values) / len(values) if values else math.nan


DRIFT = 0.25
"""What a drift is held against, in log2 per doubling: half of what the theory has where one is."""


def slope(found: Document) -> Estimate:
    """The trend of the best rate's log2 over log2 width; unknown with fewer than two optima."""
    return estimate(found["trend"]["slope"]) if found["trend"] else student([math.nan])


RULE = -0.5
"""The power of the width in u-muP's rule for the embedding's rate."""
AS_RULE = f"it falls as width^-1/2, to within {DRIFT:g} in the power"
NOTHING = Estimate(value=0.0, low=0.0, high=0.0)
"""Zero, to hold a difference against."""


def student(values: Sequence[float]) -> Estimate:
    """The mean of a few seeds' values with Student's 95 % interval; unbounded for one seed."""
    return mean_estimate(np.asarray(values, dtype=np.float64))


def by_eta(validation: Document, size: Document) -> dict[float, list[float]]:
    """Of one curve the losses, one a seed, by log2 eta; `size` as a verdict has it."""
    found = next(c for c in validation["curves"] if c["size"] == size)
    return {float(eta): list(map(float, losses)) for eta, losses in found["losses"].items()}


def least(validation: Document, size: Document) -> list[float]:
    """The losses, one a seed, where the mean of a curve is least."""
    return min(by_eta(validation, size).values(), key=mean)


def paired(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """First less second, seed by seed: they share the draws of weights and batches."""
    return student([one - other for one, other in zip(first, second, strict=True)])


def apart(found: Estimate) -> Estimate:
    """How far from zero a number is, whichever its sign."""
    low = max(0.0, found.low, -found.high)
    return Estimate(value=abs(found.value), low=low, high=max(-found.low, found.high))


@rc_context(STYLE)
def shifts(ax: Axes, judged: Mapping[str, Document], axis: str, title: str = "") -> None:
    """How the best learning rate moves over a ladder, a line for each of the verdicts by name."""
    for index, (name, one) in enumerate(judged.items()):
        color, marker = colormaps["tab10"](index), MARKERS[index % len(MARKERS)]
        moved = [estimate(size["shift_log2"]) for size in one["sizes"]]
        aside = 1 + 0.03 * (index - (len(judged) - 1) / 2)
        places = [size["size"][axis] * aside for size in one["sizes"]]
        values = [found.value for found in moved]
        bars = [[min(9.0, found.value - found.low) for found in moved]]
        bars.append([min(9.0, found.high - found.value) for found in moved])
        look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 4, "capsize": 2}
        ax.errorbar(places, values, yerr=bars, label=name, linewidth=1.2, **look)
    sizes = [size["size"][axis] for size in next(iter(judged.values()))["sizes"]]
    ax.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_xlabel(axis.replace("_", " "))
    ax.set_ylabel("shift of the best η (log2)")
    ax.set_title(title)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.15 * (high - low) * (len(judged) + 1) / 2)
    ax.legend(loc="upper left", ncols=2, columnspacing=1, handlelength=1.5)


def forest(ax: Axes, found: Mapping[str, Estimate], title: str = "") -> None:
    """A row for each number, with its interval, against zero."""
    for row, one in enumerate(found.values()):
        bars = [[min(9.0, one.value - one.low)], [min(9.0, one.high - one.value)]]
        ax.errorbar(one.value, row, xerr=bars, fmt="o", color=LINE_COLOR, markersize=4, capsize=3)
    ax.axvline(0, color=FAINT, linewidth=0.8, zorder=1)
    ax.set_yticks(range(len(found)), list(found))
    ax.set_ylim(len(found) - 0.5, -0.5)
    ax.set_title(title)
