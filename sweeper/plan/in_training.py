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
from math import inf, nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

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
ABOVE, BELOW = 1.001, 0.5
"""Bounds of a run's highest rate over the planned one. Schedules multiply, which loses digits; a
warm-up over half of a cosine's run peaks at 0.55. A rate of the script's own is between the two in
one octave of eta alone."""
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
RATE_LINE = 'group["lr"] = group["initial_lr"] * factor'


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
class Stepped:
    """An optimizer that was stepped: of each group the highest rate, its step, and the bound.

    `planned` are the groups' planned rates and the names they belong to, as far as they are known.
    """

    optimizer: weakref.ref[Optimizer]
    owns: bool
    begun: int
    last: int = 0
    steps: int = 0
    highest: list[float] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    planned: list[tuple[str, float]] = field(default_factory=list)

    def room(self, groups: int) -> None:
        """Have a place for every group."""
        more = groups - len(self.highest)
        self.highest += [0.0] * more
        self.at += [0] * more
        self.bound += [inf] * more
        self.planned += [("", nan)] * more


class PlanWatch:
    """The optimizers of this process beside a plan; `folder` is a trial's, which has `steps`."""

    def __init__(self, plan: TransferPlan, folder: Path | None = None, steps: int = 0) -> None:
        """Nothing is heard of before `listen`."""
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
        if steps & (steps - 1) == 0:
            self._look(seen, has_closure)
        highest, bound, groups = seen.highest, seen.bound, optimizer.param_groups
        if len(groups) > len(highest):
            seen.room(len(groups))
        for index, group in enumerate(groups):
            rate = group["lr"]
            if rate.__class__ is not float:
                rate = self._number(rate, steps)
            if rate > highest[index]:
                highest[index], seen.at[index] = rate, steps
                if rate > bound[index]:
                    name, planned = seen.planned[index]
                    self._fail(_rate_problem(name, rate, planned, "at step", steps))

    def _number(self, rate: Any, steps: int) -> float:
        """A rate that is no float; 0 for none, or one that lies on a device, but at a few steps."""
        device = getattr(getattr(rate, "device", None), "type", "cpu")
        if device != "cpu":
            every = max(1, self.steps // LOOKS)
            if (steps % every and steps & (steps - 1)) or _is_captured():
                return 0.0
        return float(rate or 0.0)

    def _begin(self, optimizer: Optimizer, model: nn.Module) -> Stepped:
        """An optimizer that steps for the first time: the weights are as they were drawn."""
        ids = {id(parameter) for parameter in model.parameters()}
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]} & ids
        seen = Stepped(weakref.ref(optimizer), bool(owned), self._clock + 1)
        seen.room(len(optimizer.param_groups))
        self._seen[id(optimizer)] = seen
        self.resumed = self.resumed or (bool(owned) and _has_stepped(optimizer))
        is_first = all(each.steps < 2 for each in self._seen.values() if each.owns)
        if owned and is_first and not self.resumed:
            matched = [each for each in self._matched(model) if id(each[1]) in owned]
            self._check_weights(matched, model)
        return seen

    def _check_weights(self, matched: Matched, model: nn.Module) -> None:
        """Before anything is trained; without `init_` weights may as well have been loaded."""
        what = "the weights were not drawn by plan.init_(model), or anew after it"
        if USE.drawn is None:
            if self.folder is None or not _is_fresh(matched):
                return
            what = "the weights are not the plan's: plan.init_(model) was not called"
        if lines := [*_spread_problems(matched, model)]:
            self._fail(
                f"{what}: {_listed(lines)}. Call it once, after the model has all its parts and "
                "before training; trained weights that are loaded are kept by a search with "
                "'model.keep_init=[\"*\"]'"
            )

    def _matched(self, model: nn.Module) -> Matched:
        """Parameters beside their settings; none where the model has other names by now."""
        from sweeper.plan.apply import match_parameters

        with suppress(BadInput):
            return match_parameters(self.settings, model, differs=("*",))
        return []

    def _look(self, seen: Stepped, has_closure: bool) -> None:
        """At a few steps: all that the plan says of an optimizer."""
        model, owners = USE.model, [s for s in self._seen.values() if s.owns and s.optimizer()]
        if self.problem:
            raise BadInput(self.problem)
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
        """The plan's numbers beside the optimizers'; it also sets the bounds of their rates."""
        from sweeper.plan.apply import check

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
                f"{_listed(by_hand)}: the plan trains what the script has frozen "
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
        places: dict[int, tuple[Stepped, int]] = {}
        for each in live:
            groups = optimizer.param_groups if (optimizer := each.optimizer()) else []
            each.room(len(groups))
            places |= {id(group): (each, index) for index, group in enumerate(groups)}
        for pair in pairs:
            if (place := places.get(id(pair.group))) is not None:
                each, index = place
                planned = pair.lr * USE.scale
                each.planned[index] = (pair.label, planned)
                each.bound[index] = planned * ABOVE
                if each.highest[index] > planned * ABOVE:
                    step, rate = each.at[index], each.highest[index]
                    self._fail(_rate_problem(pair.label, rate, planned, "at step", step))

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
        """At the end of the process, unless it was killed."""
        if self.problem or os.getpid() != self._process:
            return
        problem = next(self._peaks(), self._idle)
        if self.folder is None:
            if problem:
                warnings.warn(problem, stacklevel=1)
            return
        # Without torch, or by an exporter, it is trained by what reads the plan's numbers.
        others = "torch" not in sys.modules or "sweeper.export.exporter" in sys.modules
        self._write(problem="" if self.resumed else problem, ended=True, used=self.used or others)

    def _peaks(self) -> Iterator[str]:
        """What is to be said of the run's highest rates."""
        best: dict[str, tuple[float, float, int, int]] = {}
        for seen in self._seen.values():
            # A graph that is replayed takes steps of which nobody hears.
            if seen.steps * 4 < self.steps:
                continue
            for (name, planned), rate, at in zip(seen.planned, seen.highest, seen.at, strict=True):
                if name and rate > best.get(name, (-1.0,))[0]:
                    best[name] = (rate, planned, at, seen.steps)
        for name, (rate, planned, at, steps) in best.items():
            if rate < BELOW * planned:
                yield _rate_problem(name, rate, planned, "in all of", steps, rising=at == steps)


WATCHES: list[PlanWatch] = []
"""Those of this process: a trial's plan has one."""


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
    lines = []
    with suppress(OSError):
        for line in (folder / SEEN).read_text().splitlines():
            with suppress(ValueError):  # a process that was killed while it wrote
                lines.append(json.loads(line))
    for line in lines:
        if line["problem"] and (ended or not line["ended"]):
            return str(line["problem"])
    return UNUSED if ended and lines and not any(line["used"] for line in lines) else ""


def _rate_problem(
    name: str, rate: float, planned: float, when: str, steps: int, *, rising: bool = False
) -> str:
    """A highest rate that is not the planned one."""
    high = rate > planned
    what = f"its rate is {rate:.4g} {when} {steps}" if high else f"its highest rate is {rate:.4g}"
    plural = "s" * (steps != 1)
    over = "" if high else f" {when} {steps} step{plural}"
    why = "The script has a rate of its own"
    if not high:
        why += ", or a schedule that never reaches its peak"
        if rising:
            why += ", as it still rises in the last step: a warm-up longer than the run"
    return (
        f"{name}: {what}{over}, planned {planned:.4g}. {why}. Write the schedule as a factor, 1 at "
        f"its peak: `{RATE_LINE}`"
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
    """A sample of what this process has of a parameter: its first rows."""
    values: Any = parameter.detach()
    values = values.to_local() if hasattr(values, "to_local") else values
    if not values.dim() or not values.numel():
        return cast("Tensor", values)
    return cast("Tensor", values[: 1 + SAMPLE // values[0].numel()])


def _spread_problems(matched: Matched, model: nn.Module) -> Iterator[str]:
    """Parameters whose values do not spread as planned, a line each."""
    from sweeper.models.initial_values import padding_rows

    padding = {id(model.get_parameter(name)): row for name, row in padding_rows(model).items()}
    for setting, parameter in matched:
        if setting.frozen or setting.init in ("kept", "norm"):
            continue
        values = _local(parameter)
        if not values.numel() or not values.is_floating_point():
            continue
        squares = (values.double() - setting.init_mean).square()
        if (row := padding.get(id(parameter))) is not None and row < len(squares):
            squares = squares[[i for i in range(len(squares)) if i != row]]
        count = squares.numel()
        spread, planned = sqrt(float(squares.mean())) if count else nan, setting.init_std
        slack = SPREAD + DEVIATIONS / sqrt(2 * max(1, count))
        if abs(spread - planned) > slack * planned + 1e-6 * abs(setting.init_mean):
            around = f" around {setting.init_mean:g}" if setting.init_mean else ""
            yield f"{setting.name} has std {spread:.4g}{around}, planned {planned:.4g}"


def _has_stepped(optimizer: Optimizer) -> bool:
    """Whether its state is of earlier steps, from a checkpoint: some have one from the start."""
    state = next((dict(each) for each in optimizer.state.values() if each), {})
    return bool(state) and float(state.get("step", 1)) > 0


def _others(lost: Sequence[Tensor], known: Sequence[Optimizer]) -> list[Optimizer]:
    """Optimizers that were not stepped yet, and have parameters that are in no other's groups."""
    from torch.optim import Optimizer

    ids, others = {id(parameter) for parameter in lost}, list[Optimizer]()
    objects = gc.get_objects() if ids else []
    for each in objects:
        # Its class is asked, as an object of anybody's may answer anything.
        if issubclass(type(each), Optimizer) and not any(each is one for one in known):
            with suppress(Exception):
                held = {id(p) for group in each.param_groups for p in group["params"]}
                if held & ids:
                    others.append(each)
                    ids -= held
    return others


def _is_captured() -> bool:
    """Whether a graph is being captured, in which nothing may be read."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _listed(items: Sequence[str], most: int = 3) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{'; '.join(items[:most])}{more}"
