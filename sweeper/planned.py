"""What the study's law makes of its hyperparameters at a size: the one place where it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sweeper.laws.applied import AppliedLaw, ask, decay_notes
from sweeper.laws.law import Factors, OutsideLaw, Scale
from sweeper.laws.none import NoLaw
from sweeper.settings import Experiment
from sweeper.transfer.ladder import Size
from sweeper.trial import Log2Hps, plain


def example_length(experiment: Experiment) -> int | None:
    """Tokens of an example; None where an example is no sequence, or nobody knows its length."""
    settings = experiment.settings
    sequences = "input_shape" not in experiment.corpus.identity()
    if not sequences or not (settings.runner.takes("data") or settings.runner.takes("seq_len")):
        return None
    return int(settings.raw["train"]["seq_len"])


def counted(experiment: Experiment) -> str:
    """What the tokens of a scale are."""
    return "examples" if example_length(experiment) is None else "tokens"


def scale_of(experiment: Experiment, size: Size, log2_hps: Log2Hps) -> Scale:
    """What a law looks at, of a run of `size` with hyperparameters tuned at the base."""
    settings = experiment.settings
    base = settings.ladder_base
    batch, steps = (int(getattr(size, k, getattr(base, k))) for k in ("batch_size", "steps"))
    tokens = batch * steps * (example_length(experiment) or 1)
    scale = Scale(width=size.width, depth=size.depth, batch=batch, steps=steps, tokens=tokens)
    if settings.own:
        return replace(scale, betas=None)
    prepared = experiment.prepared(size)
    known = prepared.optimizer.settings(plain(log2_hps))
    betas = {name: value for name, value in known.items() if name.startswith("beta")}
    return replace(scale, parameters=prepared.parameters(), betas=betas)


def apply_law(experiment: Experiment, size: Size, log2_hps: Log2Hps) -> AppliedLaw | None:
    """The law from the base to `size`; None without a law.

    `OutsideLaw` where the law says nothing of such a size.
    """
    settings = experiment.settings
    base = scale_of(experiment, settings.base, log2_hps)
    target = scale_of(experiment, size, log2_hps)
    spec = settings.plugin_spec("law")
    applied = ask(settings.law, spec, base, target, counted=counted(experiment))
    if isinstance(settings.law, NoLaw):
        return None
    cautions = _cautions(experiment, applied.factors, base, target)
    return replace(applied, notes=(*applied.notes, *cautions))


USUAL_BETAS = {"beta1": 0.9, "beta2": 0.999}
"""What a law's change of betas is told on where a command keeps its own to itself."""


def _cautions(experiment: Experiment, factors: Factors, base: Scale, target: Scale) -> list[str]:
    """What multiplies a law's factor on decay; what a command of its own is not given."""
    settings = experiment.settings
    if settings.own:
        changed = [key for key in ("eps", "weight_decay") if getattr(factors, key) != 1]
        lost = [key for key in changed if not _takes(experiment, key)]
        usual = replace(base, betas=USUAL_BETAS)
        betas = settings.law.factors(usual, replace(target, betas=USUAL_BETAS)).betas
        return [
            *(
                f"the command is not given {k}: multiply it by {getattr(factors, k):.4g}"
                for k in lost
            ),
            *(
                f"the command is not given {k}: {USUAL_BETAS[k]} becomes {v:.6g}"
                for k, v in betas.items()
            ),
        ]
    rule = settings.raw["parameterization"].get("decay", "independent")
    return decay_notes(rule, factors)


def _takes(experiment: Experiment, name: str) -> bool:
    axis = experiment.settings.space.get(name)
    return axis is not None and not axis.choices


def planned_log2(experiment: Experiment, size: Size, log2_hps: Log2Hps) -> Log2Hps:
    """The hyperparameters at `size`: as they are where the law says nothing of it."""
    if isinstance(experiment.settings.law, NoLaw):
        return log2_hps
    try:
        applied = apply_law(experiment, size, log2_hps)
    except OutsideLaw:
        return log2_hps
    return log2_hps if applied is None else given(experiment, applied, log2_hps)


def given(experiment: Experiment, applied: AppliedLaw, log2_hps: Log2Hps) -> Log2Hps:
    """What a run is given by a law; a command that scales by itself takes its own names alone."""
    moved = applied.apply(log2_hps)
    if not experiment.settings.own:
        return moved
    return Log2Hps({n: moved[n] if _takes(experiment, n) else v for n, v in log2_hps.items()})


def described(experiment: Experiment, sizes: Sequence[Size], log2_hps: Log2Hps) -> str:
    """What the law says of a ladder, for its verdict; empty without a law."""
    if isinstance(experiment.settings.law, NoLaw):
        return ""
    name, outside = experiment.settings.plugin_spec("law").name, []
    for size in sizes:
        try:
            apply_law(experiment, size, log2_hps)
        except OutsideLaw as error:
            outside.append(str(error))
    if not outside:
        own = callable(getattr(experiment.settings.law, "fitted_to", None))
        return f"law={name}" + ", fitted to these very curves: no independent test" * own
    return f"law={name}, but as at the base at {len(outside)} of {len(sizes)} sizes: {outside[0]}"
