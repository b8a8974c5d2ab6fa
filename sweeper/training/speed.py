"""How fast trials trained: tokens a second, and the fraction of the device's peak."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sweeper.training.prepare import prepare
from sweeper.trial import Result

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


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Throughput at one size on one device; `utilisation` is None where no peak is known."""

    width: int
    depth: int
    device: str
    trials: int
    tokens_per_second: float
    utilisation: float | None

    def __str__(self) -> str:
        size = f"width {self.width}, depth {self.depth}"
        text = f"{size}: {self.tokens_per_second:,.0f} tokens/s on {self.device or 'cpu'}"
        if self.utilisation is None:
            return text
        return f"{text}, {self.utilisation:.1%} of its peak (model FLOPs utilisation)"


def speeds(results: Iterable[Result]) -> list[Speed]:
    """Throughput by size and device, smallest first; trials that failed or kept no time are out.

    Trials of a pack share its time, so that theirs is the pack's throughput. FLOPs are the
    model's own (`PreparedSpec.flops`): recomputed activations do not count.
    """
    groups: dict[tuple[int, int, str], list[Result]] = {}
    for result in results:
        if result.status != "failed" and result.seconds > 0:
            key = (result.trial.width, result.trial.depth, result.device)
            groups.setdefault(key, []).append(result)
    return [_speed(key, members) for key, members in sorted(groups.items())]


def _speed(key: tuple[int, int, str], results: list[Result]) -> Speed:
    width, depth, device = key
    tokens = flops = 0.0
    for result in results:
        prepared = prepare(result.trial.spec)
        trained_fraction = result.steps / prepared.train.steps
        tokens += trained_fraction * prepared.tokens()
        flops += trained_fraction * prepared.flops()
    seconds = sum(result.seconds for result in results)
    # Whole words: an A10G is no A10.
    peak = next((p for name, p in PEAK_FLOPS.items() if re.search(rf"\b{name}\b", device)), None)
    return Speed(
        width=width,
        depth=depth,
        device=device,
        trials=len(results),
        tokens_per_second=tokens / seconds,
        utilisation=None if peak is None else flops / seconds / peak,
    )
