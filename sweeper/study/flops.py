"""FLOPs of trials, counted from their models, and how fast trials trained.

To count builds the model, which brings torch: whoever asks for time alone imports `cost.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from sweeper.files import try_json, write_json
from sweeper.study.cost import spent, trained
from sweeper.study.folder import StudyFolder
from sweeper.trial import Result, TrialSpec

OWN = "own"
"""The parameterization of commands that scale by themselves: nobody knows their models."""


def flops_of(spec: TrialSpec) -> float:
    """FLOPs of a whole run; NaN where they are not known: of models that nobody names, or lost.

    Those of a command are those of the model that is named beside it.
    """
    return math.nan if spec.parameterization.name == OWN else _model_flops(spec)


@lru_cache(maxsize=256)
def _model_flops(spec: TrialSpec) -> float:
    # It brings torch, which a study without trials does not need.
    from sweeper.engine.prepare import prepare

    try:
        return prepare(spec).flops()
    except Exception:  # a model of the user's own that is gone, or needs what is not here
        return math.nan


def keep_flops(folder: Path, specs: Iterable[TrialSpec]) -> None:
    """Keep the FLOPs of a run of each of `specs` for commands that import no class of a study's."""
    counted = try_json(StudyFolder(folder).flops)
    new = {spec.digest: flops_of(spec) for spec in {*specs} if spec.digest not in counted}
    if new := {key: flops for key, flops in new.items() if not math.isnan(flops)}:
        write_json(StudyFolder(folder).flops, counted | new)


def flops_in(folder: Path) -> Callable[[TrialSpec], float]:
    """`flops_of` for trials of the study in `folder`, by what it has kept."""
    counted = try_json(StudyFolder(folder).flops)

    # The file first: to count anew builds the model, by a class that may be a stranger's.
    def flops(spec: TrialSpec) -> float:
        count = counted.get(spec.digest)
        return float(count) if isinstance(count, int | float) else flops_of(spec)

    return flops


def relative_flops(spec: TrialSpec) -> float:
    """FLOPs of a whole run; where nobody knows, what is in proportion to them."""
    count, train = flops_of(spec), spec.train
    tokens = train.steps * train.batch_size * train.seq_len
    return float(spec.width**2 * spec.depth * tokens) if math.isnan(count) else count


PEAK_FLOPS = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "GH200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A10": 125e12,
    "V100": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Dense bfloat16 (V100: float16) products, in FLOPs a second, by words in the device's name; the
vendors' data sheets."""


def speeds(results: Iterable[Result]) -> list[str]:
    """Throughput by size and device, smallest first; trials that failed or kept no time are out.

    Trials that are trained together share the time, so that theirs is the throughput of all. FLOPs
    are the model's own (`PreparedSpec.flops`): recomputed activations do not count.
    """
    from sweeper.engine.prepare import prepare

    groups: dict[tuple[int, int, str], list[Result]] = {}
    for result in results:
        if result.status != "failed" and result.seconds > 0:
            key = (result.trial.width, result.trial.depth, result.device)
            groups.setdefault(key, []).append(result)
    sentences = []
    for (width, depth, device), members in sorted(groups.items()):
        cost = spent(members, lambda spec: prepare(spec).flops())
        tokens = sum(trained(run) * prepare(run.trial.spec).tokens() for run in members)
        speed = f"{tokens / cost.seconds:,.0f} tokens/s on {device or 'cpu'}"
        # Whole words: an A10G is no A10. Longer names come first: "H200" is a word of "H200 NVL".
        peak = next(
            (p for name, p in PEAK_FLOPS.items() if re.search(rf"\b{name}\b", device)), None
        )
        if peak is not None:
            share = cost.flops / cost.seconds / peak
            speed += f", {share:.1%} of its peak (model FLOPs utilisation)"
        sentences.append(f"width {width}, depth {depth}: {speed}")
    return sentences
