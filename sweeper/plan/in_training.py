"""Does a script train by its plan? The steps of its optimizers, looked at while it trains.

In a trial `TransferPlan.load` begins a `PlanWatch`, and so does `sweeper.watch(optimizer, plan)`
anywhere. At the first step the weights must be those that the plan draws, and at a few steps rates,
eps, decay and updates must be the plan's (`apply.check`). At the end the highest rate of the run
must be the planned one. What disagrees is written into the trial's folder, for whoever waits for
the trial, and raised. At any other step a rate is compared with the highest so far, and no more.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sweeper.errors import BadInput
from sweeper.files import try_json
from sweeper.study.folder import PLAN

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from sweeper.plan.apply import Matched
    from sweeper.plan.plan import TransferPlan

TRIAL, SWITCH = "SWEEPER_TRIAL", "SWEEPER_CHECK_PLAN"
"""Variables: the file of a trial's values, set in trials alone; and "0" where nothing is looked at.
"""
DISAGREES = "the script does not train by its plan"
"""How the reason of a trial begins that failed of it: all others would, too."""
SEEN = "plan_check.jsonl"
"""In a trial's folder: a line for what disagrees, and for each process that ended."""
ABOVE, NOTED, BELOW = 1.001, 0.95, 0.5
"""Bounds of a run's highest rate over the planned one. Schedules multiply, which loses digits; a
warm-up over half of a cosine's run peaks at 0.55: below NOTED it is said. A rate of the script's
own is between ABOVE and BELOW in one octave of eta alone."""
LOW_PEAK = (
    "the highest rate was {:.2g} of the plan's: the best eta holds for schedules with that peak, "
    "and a run whose schedule reaches 1, as a longer one's may, trains at {:.2g} times the rate"
)
SAMPLE = 2**18
"""Entries of a parameter by which its spread is judged."""
SPREAD, DEVIATIONS = 0.03, 5.0
"""So far may a spread be from the planned one, as a fraction, and beside it by chance."""
LOOKS = 64
"""Rates that lie on a device are read so many times in a run, since that waits for the device."""
STRANGE = 16
"""After so many steps of others' parameters the model must have moved."""
UNUSED = (
    "the script loads the plan and does not train by it: draw the weights with plan.init_(model), "
    "and give plan.param_groups(model) to the optimizer"
)


@dataclass
class PlanUse:
    """What a script gave to `init_` and to `param_groups`, the last of each."""

    plan: weakref.ref[TransferPlan] | None = None
    drawn: weakref.ref[nn.Module] | None = None
    grouped: weakref.ref[nn.Module] | None = None
    scale: float = 1.0

    @property
    def model(self) -> nn.Module | None:
        """The model that is trained, while it is there."""
        reference = self.grouped or self.drawn
        return reference() if reference else None


USE = PlanUse()
"""Of this process: kept of every plan, as `sweeper.watch` may come later."""


def note_use(plan: TransferPlan, model: nn.Module, scale: float | None = None) -> None:
    """Remember that the model was drawn, or that groups were made, with rates times `scale`."""
    USE.plan = weakref.ref(plan)
    if scale is None:
        USE.drawn = weakref.ref(model)
    else:
        USE.grouped, USE.scale = weakref.ref(model), scale
    for watch in WATCHES:
        watch.listen()


@dataclass
class Peak:
    """The highest rate of a group and its step, beside the planned rate where that is known."""

    rate: float = 0.0
    step: int = 0
    name: str = ""
    planned: float = nan


@dataclass
class Stepped:
    """An optimizer that was stepped; `begun` and `last` say when, on the clock of all."""

    optimizer: weakref.ref[Optimizer]
    owns: bool
    begun: int
    last: int = 0
    steps: int = 0
    peaks: list[Peak] = field(default_factory=list)


class PlanWatch:
    """The optimizers of this process beside a plan; `folder` is a trial's, which has `steps`."""

    def __init__(self, plan: TransferPlan, folder: Path | None = None, steps: int = 0) -> None:
        self.settings, self.betas = plan.absorbed(), plan.betas
        self.folder, self.steps = folder, steps
        self.used, self.problem, self._idle = False, "", ""
        self._seen: dict[int, Stepped] = {}
        self._clock = self._checked = 0
        self._sample: list[Tensor] = []
        self._busy, self._process = False, os.getpid()
        self._handle: Any = None
        # A run that went on from a checkpoint has weights of its own, and may be past its peak.
        ended = try_json(folder / "result.json") if folder else {}
        self.resumed = bool(ended.get("resumes"))
        WATCHES.append(self)
        atexit.register(self._end)

    def use(self) -> None:
        """The plan's numbers are read: written at once, as a worker may end in any way."""
        if not self.used:
            self.used = True
            self._write(problem="", ended=False, used=True)

    def listen(self) -> None:
        """Hear of every optimizer's steps; it needs torch."""
        if self._handle is None:
            from torch.compiler import is_compiling
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._is_compiling = is_compiling
            self._handle = register_optimizer_step_pre_hook(self._stepping)

    def _stepping(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Before a step of anybody's optimizer: where it has other groups, it goes on unseen."""
        if self._busy or self._is_compiling():
            return
        try:
            self._step(optimizer, len(args) > 1 or "closure" in kwargs)
        except BadInput:
            raise
        except Exception:
            self._handle.remove()

    def _step(self, optimizer: Optimizer, has_closure: bool) -> None:
        """What is done here is done at every step."""
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.optimizer() is not optimizer:
            if (model := USE.model) is None:
                return
            seen = self._begin(optimizer, model)
        self._clock += 1
        seen.last = self._clock
        seen.steps = steps = seen.steps + 1
        groups, peaks = optimizer.param_groups, seen.peaks
        if len(groups) > len(peaks):
            peaks += [Peak() for _ in groups[len(peaks) :]]
        if steps & (steps - 1) == 0:
            self._look(seen, has_closure)
        for group, peak in zip(groups, peaks, strict=False):
            rate = group["lr"]
            if rate.__class__ is not float:
                rate = self._number(rate, steps)
            if rate > peak.rate:
                peak.rate, peak.step = rate, steps
                self._check_peak(peak)

    def _check_peak(self, peak: Peak) -> None:
        if peak.rate > peak.planned * ABOVE:
            self._fail(_rate_problem(peak, f"its rate is {peak.rate:.4g} at step {peak.step}"))

    def _number(self, rate: Any, steps: int) -> float:
        """A rate that is no float; 0 for none, or one that lies on a device, but at a few steps."""
        device = getattr(getattr(rate, "device", None), "type", "cpu")
        if device != "cpu":
            every = max(1, self.steps // LOOKS)
            if (steps % every and steps & (steps - 1)) or _is_captured():
                return 0.0
        return float(rate or 0.0)

    def _begin(self, optimizer: Optimizer, model: nn.Module) -> Stepped:
        ids = {id(parameter) for parameter in model.parameters()}
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]} & ids
        seen = Stepped(weakref.ref(optimizer), bool(owned), self._clock + 1)
        self._seen[id(optimizer)] = seen
        self.resumed = self.resumed or (bool(owned) and _has_stepped(optimizer))
        is_first = all(each.steps < 2 for each in self._seen.values() if each.owns)
        if owned and is_first and not self.resumed:
            matched = [each for each in self._matched(model) if id(each[1]) in owned]
            self._check_weights(matched)
        return seen

    def _check_weights(self, matched: Matched) -> None:
        """Before anything is trained; without `init_` weights may as well have been loaded."""
        what = "the weights were not drawn by plan.init_(model), or anew after it"
        if USE.drawn is None:
            if self.folder is None or not _is_fresh(matched):
                return
            what = "the weights are not the plan's: plan.init_(model) was not called"
        from sweeper.plan.apply import first_few

        if lines := [*_spread_problems(matched)]:
            self._fail(
                f"{what}: {first_few(lines)}. Call it once, after the model has all its parts and "
                "before training; trained weights that are loaded are kept by a search with "
                "'model.keep_init=[\"*\"]'"
            )

    def _matched(self, model: nn.Module) -> Matched:
        from sweeper.plan.apply import match_parameters

        with suppress(BadInput):
            return match_parameters(self.settings, model, differs=("*",))
        return []

    def _look(self, seen: Stepped, has_closure: bool) -> None:
        model, owners = USE.model, [s for s in self._seen.values() if s.owns and s.optimizer()]
        if model is None or _is_captured():
            return
        if not owners:
            self._look_at_strange(seen, model)
        elif seen.owns and self._clock - self._checked >= len(owners):
            self._checked, self._busy, self._idle = self._clock, True, ""
            try:
                self._check(seen, owners, self._matched(model), model, has_closure)
            finally:
                self._busy = False

    def _look_at_strange(self, seen: Stepped, model: nn.Module) -> None:
        """An optimizer of others' parameters alone: copies of the model's, or not the model's."""
        first = [*model.parameters()][:LOOKS]
        optimizer, self._idle = seen.optimizer(), ""
        now = [p.detach().flatten()[:8].to("cpu", copy=True) for p in first]
        if not self._sample:
            self._sample = now
        elif seen.steps >= STRANGE and all(
            bool((a == b).all()) for a, b in zip(self._sample, now, strict=True)
        ):
            self._idle = (
                f"{type(optimizer).__name__} steps {STRANGE} times, and the model that the "
                "plan was given does not change: give it plan.param_groups(model) of the model "
                "that is trained, made after it is moved, wrapped or sharded"
            )
            # Another model may be trained before.
            groups = optimizer.param_groups if optimizer else []
            shapes = [tuple(p.shape) for group in groups for p in group["params"]]
            planned = {setting.shape for setting in self.settings}
            if 2 * sum(shape in planned for shape in shapes) >= len(shapes):
                self._fail(self._idle)

    def _check(
        self,
        seen: Stepped,
        owners: Sequence[Stepped],
        matched: Matched,
        model: nn.Module,
        has_closure: bool,
    ) -> None:
        from sweeper.plan.apply import check, first_few

        if not matched:
            return
        # One that a newer one took over from steps no more.
        newest = owners[-1]
        live = [s for s in owners if s is newest or s.last > newest.begun]
        optimizers = [o for s in live if (o := s.optimizer()) is not None]
        # One within another, as a sharded one's own, has the same parameters.
        parts = (part for o in optimizers for part in vars(o).values())
        inner = {id(i) for part in parts for i in (part if isinstance(part, list) else [part])}
        optimizers = [o for o in optimizers if id(o) not in inner]
        held = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
        trained = [(s, p) for s, p in matched if not s.frozen]
        optimizers += _others([p for _, p in trained if id(p) not in held], optimizers)
        stepped = seen.optimizer()
        own = {id(p) for g in stepped.param_groups for p in g["params"]} if stepped else set()
        if by_hand := [s.name for s, p in trained if id(p) in own and not p.requires_grad]:
            self._fail(
                f"{first_few(by_hand)}: the plan trains what the script has frozen "
                "(requires_grad=False): search with model.frozen=[...], which names it"
            )
        late = newest.steps > 1 and not has_closure
        if late and all(p.grad is None for _, p in trained):
            self._fail(
                "no parameter of the model that plan.param_groups was given has a gradient: give "
                "it the model that is trained"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pairs = check(self.settings, optimizers, model, self.betas, USE.scale)
        except BadInput as error:
            self._fail(str(error))
        peaks = {
            id(group): peak
            for each in live
            if (optimizer := each.optimizer()) is not None
            for group, peak in zip(optimizer.param_groups, each.peaks, strict=False)
        }
        for pair in pairs:
            if (peak := peaks.get(id(pair.group))) is not None:
                peak.name, peak.planned = pair.label, pair.lr * USE.scale
                self._check_peak(peak)

    def _fail(self, problem: str) -> NoReturn:
        self.problem = problem
        self._write(problem=problem, ended=False, used=True)
        raise BadInput(problem)

    def _write(self, **line: Any) -> None:
        """In one piece: several processes may write."""
        if self.folder is not None:
            with suppress(OSError), (self.folder / SEEN).open("a") as file:
                file.write(f"\n{json.dumps(line)}\n")

    def _end(self) -> None:
        if self.problem or os.getpid() != self._process:
            return
        problem, note = ("", "") if self.resumed else self._low_peak()
        if self.folder is None:
            if problem or note:
                warnings.warn(problem or note, stacklevel=1)
            return
        # Without torch, or by an exporter, it is trained by what reads the plan's numbers.
        others = "torch" not in sys.modules or "sweeper.export.exporter" in sys.modules
        self._write(problem=problem, note=note, ended=True, used=self.used or others)

    def _low_peak(self) -> tuple[str, str]:
        """What is wrong at the end, and what only has to be known."""
        # A graph that is replayed takes steps of which nobody hears.
        heard = [seen for seen in self._seen.values() if seen.steps * 4 >= self.steps]
        every = [(peak, seen.steps) for seen in heard for peak in seen.peaks if peak.name]
        every.sort(key=lambda each: each[0].rate)
        highest = {each[0].name: each for each in every}.values()
        for peak, steps in highest:
            if peak.rate < BELOW * peak.planned:
                plural = "s" * (steps != 1)
                what = f"its highest rate is {peak.rate:.4g} in all of {steps} step{plural}"
                why = ", or a schedule that never reaches its peak"
                if peak.step == steps:
                    why += ", as it still rises in the last step: a warm-up longer than the run"
                return _rate_problem(peak, what, why), ""
        ratio = min((peak.rate / peak.planned for peak, _ in highest if peak.planned), default=1.0)
        return self._idle, LOW_PEAK.format(ratio, 1 / ratio) if ratio < NOTED else ""


WATCHES: list[PlanWatch] = []


def watch_trial(read: Any) -> None:
    """Begin to look at a trial's steps, once, where a plan is loaded or given to a worker.

    By the trial's own plan, which `read` reads, wherever the script has another one from.
    """
    folder = Path(os.environ[TRIAL]).parent
    own = folder / PLAN
    if os.environ.get(SWITCH) == "0" or not own.is_file() or any(w.folder for w in WATCHES):
        return
    steps = try_json(folder / "trial.json").get("steps")
    PlanWatch(read(own), folder, steps if isinstance(steps, int) else 0)


def watch_optimizers(optimizers: Sequence[Optimizer], plan: TransferPlan) -> None:
    """See `sweeper.watch`."""
    if os.environ.get(SWITCH) == "0" or any(w.folder for w in WATCHES):
        return
    if USE.plan is None or USE.plan() is not plan:
        raise BadInput(
            "sweeper.watch(optimizer, plan) looks at the model that the plan was given: make the "
            "optimizer's groups with plan.param_groups(model) first"
        )
    plan.check(optimizers, USE.model)
    PlanWatch(plan).listen()


def disagreement(folder: Path, *, ended: bool) -> str:
    """What a trial's processes found to disagree with its plan; empty where nothing does.

    Only of a run that `ended` well is asked whether it used the plan, and how high its rates were.
    """
    lines = [*_seen(folder)]
    for line in lines:
        if line["problem"] and (ended or not line["ended"]):
            return str(line["problem"])
    return UNUSED if ended and lines and not any(line["used"] for line in lines) else ""


def low_peak(folder: Path) -> str:
    """What a trial's processes found of rates below the plan's: it fails no run."""
    return next((note for line in _seen(folder) if (note := line.get("note", ""))), "")


def _seen(folder: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError):
        for line in (folder / SEEN).read_text().splitlines():
            with suppress(ValueError):  # a process that was killed while it wrote
                yield json.loads(line)


def _rate_problem(peak: Peak, what: str, why: str = "") -> str:
    return (
        f"{peak.name}: {what}, planned {peak.planned:.4g}. The script has a rate of its own{why}. "
        "Write the schedule as a factor, 1 at its peak: "
        '`group["lr"] = group["initial_lr"] * factor`'
    )


def _is_fresh(matched: Matched) -> bool:
    """Whether the weights are random, and not those of a model that was trained.

    Training moves the gains of norms, and gives matrices longer tails than a normal's.
    """
    gains = [_local(p) for setting, p in matched if setting.init_mean and not setting.frozen]
    if gains := [each for each in gains if each.numel()]:
        return all(bool((gain == gain.flatten()[0]).all()) for gain in gains)
    for values in (_local(p).double() for _, p in matched if p.dim() > 1):
        tail = float(((values - values.mean()) / values.std()).pow(4).mean()) - 3
        if tail > 4 * sqrt(24 / values.numel()):
            return False
    return True


def _local(parameter: Tensor) -> Tensor:
    values: Any = parameter.detach()
    values = values.to_local() if hasattr(values, "to_local") else values
    if values.dim() and values.numel():
        values = values[: 1 + SAMPLE // values[0].numel()]
    sample: Tensor = values
    return sample


def _spread_problems(matched: Matched) -> Iterator[str]:
    for setting, parameter in matched:
        if setting.frozen or setting.init in ("kept", "norm"):
            continue
        values = _local(parameter)
        if not values.numel() or not values.is_floating_point():
            continue
        if values.any():  # the row of a padding is 0
            values = values[values != 0]
        squares = (values.double() - setting.init_mean).square()
        spread, planned = sqrt(float(squares.mean())), setting.init_std
        slack = SPREAD + DEVIATIONS / sqrt(2 * squares.numel())
        if abs(spread - planned) > slack * planned + 1e-6 * abs(setting.init_mean):
            around = f" around {setting.init_mean:g}" if setting.init_mean else ""
            yield f"{setting.name} has std {spread:.4g}{around}, planned {planned:.4g}"


def _has_stepped(optimizer: Optimizer) -> bool:
    """Whether its state is of earlier steps, from a checkpoint: some have one from the start."""
    state = next((dict(each) for each in optimizer.state.values() if each), {})
    return bool(state) and float(state.get("step", 1)) > 0


def _others(lost: Sequence[Tensor], known: Sequence[Optimizer]) -> list[Optimizer]:
    from torch.optim import Optimizer

    ids, others = {id(parameter) for parameter in lost}, list[Optimizer]()
    for each in gc.get_objects() if ids else ():
        # Its class is asked, as an object of anybody's may answer anything.
        if issubclass(type(each), Optimizer) and not any(each is one for one in known):
            with suppress(Exception):
                held = {id(p) for group in each.param_groups for p in group["params"]}
                others += [each] * bool(held & ids)
                ids -= held
    return others


def _is_captured() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
