"""What `sweeper transfer` does about a law: the target's batch and tokens, and a law's own fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sweeper.commands.experiment import check_taken
from sweeper.errors import BadInput
from sweeper.laws.law import Law
from sweeper.laws.none import NoLaw
from sweeper.planned import apply_law, counted, example_length, planned_log2, scale_of
from sweeper.replay import Lookup, replay_ladder
from sweeper.settings import Experiment, Settings
from sweeper.study import Study
from sweeper.transfer.exponents import MIN_SIZES, FittedExponents, fit_exponents
from sweeper.transfer.ladder import LadderSize, Size, SizeCurve
from sweeper.trial import Log2Hps, Result

MAX_TOKENS = 10**18
"""More is a slip of the pen."""


def target_size(
    experiment: Experiment, size: Size, tokens: float | None, batch: int | None
) -> Size:
    """The target with its batch and steps, where they are asked for; BadInput for what none has.

    The steps follow: tokens = steps x batch x the length of an example, to the nearest step. What
    is not asked for is the base's.
    """
    if tokens is None and batch is None:
        return size
    base, length = experiment.settings.ladder_base, example_length(experiment) or 1
    taken = batch or base.batch_size
    asked = base.steps * base.batch_size * length if tokens is None else tokens
    if not (math.isfinite(asked) and asked == int(asked) and asked <= MAX_TOKENS):
        raise BadInput(f"--to-tokens {asked:g}: a whole number of at most {MAX_TOKENS:g}")
    if asked < taken * length:
        words = f"{taken} x {length} tokens" if length > 1 else f"{taken} {counted(experiment)}"
        flag = f"--to-batch {taken}" if tokens is None else f"--to-tokens {int(asked)}"
        raise BadInput(
            f"{flag}: {int(asked):,} {counted(experiment)} are less than one step of {words}"
        )
    steps = round(asked / (taken * length))
    target = LadderSize(width=size.width, depth=size.depth, batch_size=taken, steps=steps)
    check_taken(experiment.settings, asdict(target))
    return target


def folder_name(settings: Settings, target: Size) -> str:
    """The target's folder in `transfer`: its batch and steps are told where they are others."""
    name = f"w{target.width}-d{target.depth}"
    base = settings.ladder_base
    if not isinstance(target, LadderSize):
        return name
    if (target.batch_size, target.steps) == (base.batch_size, base.steps):
        return name
    return f"{name}-b{target.batch_size}-s{target.steps}"


def check_law(experiment: Experiment, target: Size, best_log2: Log2Hps, *, validate: bool) -> None:
    """BadInput, before anything is trained, for a target that the law says nothing about."""
    settings = experiment.settings
    if not fits(settings.law):
        apply_law(experiment, target, best_log2)
        return
    if settings.transfer.along != "eta":
        along = settings.transfer.along
        raise BadInput(f"law=fit fits eta, and transfer.along={along}: leave one of them out")
    ladders = settings.transfer.ladders(settings.ladder_base)
    if validate and not {"batch_size", "steps", "size"} & set(ladders):
        base = settings.ladder_base.steps
        raise BadInput(
            "law=fit needs a ladder over steps or batch: add "
            f"transfer.steps=[{max(1, base // 2)},{base},{2 * base}], and likewise "
            "transfer.batches for another batch"
        )


def fits(law: Law) -> bool:
    """Whether a law is fitted to ladders."""
    return callable(getattr(law, "fitted_to", None))


def fit_law(
    experiment: Experiment, best_log2: Log2Hps, curves: Iterable[SizeCurve]
) -> tuple[Experiment, FittedExponents | None]:
    """The experiment with its law fitted to the curves of the base's width and depth, if it can."""
    settings = experiment.settings
    law: Any = settings.law
    if not fits(law):
        return experiment, None
    base = settings.base
    pairs = [
        (scale_of(experiment, curve.size, best_log2), curve)
        for curve in curves
        if (curve.size.width, curve.size.depth) == (base.width, base.depth)
    ]
    exponents = fit_exponents(pairs, best_log2["eta"])
    if exponents is None:
        return experiment, None
    fitted = replace(settings, law=law.fitted_to(exponents))
    return replace(experiment, settings=fitted), exponents


def fit_measured(
    experiment: Experiment, study: Study, best_log2: Log2Hps
) -> tuple[Experiment, FittedExponents | None]:
    """Likewise, with the ladders that the study holds; BadInput where it holds too few."""
    if not fits(experiment.settings.law):
        return experiment, None
    base = experiment.settings.ladder_base
    spans = {
        (spec.train.batch_size, spec.train.steps)
        for spec in (r.trial.spec for r in study.results() if r.trial.phase == "validate")
        if (spec.width, spec.depth) == (base.width, base.depth)
    }
    sizes = [replace(base, batch_size=batch, steps=steps) for batch, steps in sorted(spans)]
    curves = [c for c in (_measured(experiment, study, best_log2, s) for s in sizes) if c]
    fitted, exponents = fit_law(experiment, best_log2, curves)
    if exponents is None:
        raise BadInput(
            f"law=fit needs the curves of {MIN_SIZES} sizes or more that differ in steps or batch, "
            f"each with its optimum inside, and this study has {len(curves)} measured ones for "
            "these settings: add --validate with transfer.steps=[...] or transfer.batches=[...], "
            "or repeat the transfer.* settings that they were measured with"
        )
    return fitted, exponents


def finished(study: Study) -> Lookup:
    """Finds results that are measurements: what was stopped early or failed is none."""

    def lookup(key: str) -> Result | None:
        result = study.get(key)
        return result if result and result.status in ("complete", "diverged") else None

    return lookup


def _measured(
    experiment: Experiment, study: Study, best_log2: Log2Hps, size: Size
) -> SizeCurve | None:
    """A size's curve, None where runs of it are missing."""
    (curve,), _, missing = replay_ladder(experiment, best_log2, [size], finished(study))
    return None if missing else curve


def replanned(
    experiment: Experiment, best_log2: Log2Hps, curves: Mapping[Size, SizeCurve]
) -> dict[Size, SizeCurve]:
    """The curves with what a law that was fitted to them plans at each size."""
    along = experiment.settings.transfer.along
    return {
        size: replace(
            curve,
            planned_log2=planned_log2(experiment, size, best_log2)[along] - best_log2[along],
        )
        for size, curve in curves.items()
    }


def law_record(settings: Settings) -> dict[str, Any] | None:
    """Which law a record was judged by; None without one."""
    if isinstance(settings.law, NoLaw):
        return None
    spec = settings.plugin_spec("law")
    return {"name": spec.name, "arguments": dict(spec.arguments)}


def exponent_lines(exponents: FittedExponents) -> Sequence[str]:
    """The fit for people, and which printed exponents lie inside."""
    head = f"Law fitted over {exponents.sizes} sizes, eta as a power (95 % intervals):"
    return [head, *(f"- {one}" for one in exponents.exponents())]
