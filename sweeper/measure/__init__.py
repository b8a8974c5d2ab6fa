"""Runs that measure more than their loss: what a trial's `measurement` names, as plain JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from sweeper.control import Control
from sweeper.data.corpus import Corpus
from sweeper.measure.coordinates import measure_modules
from sweeper.measure.scales import operand_scales
from sweeper.measure.underflow import fraction_below_eps
from sweeper.trial import Trial, encode


def _coordinates(trial: Trial, corpus: Corpus, device: str, control: Control) -> Any:
    return encode([asdict(module) for module in measure_modules(trial, corpus, device, control)])


def _scales(trial: Trial, corpus: Corpus, device: str, control: Control) -> Any:
    return encode([asdict(operand) for operand in operand_scales(trial, corpus, device, control)])


def _below_eps(trial: Trial, corpus: Corpus, device: str, control: Control) -> Any:
    return encode(fraction_below_eps(trial, corpus, device, control))


MEASUREMENTS: Mapping[str, Callable[[Trial, Corpus, str, Control], Any]] = {
    "coordinates": _coordinates,
    "scales": _scales,
    "below_eps": _below_eps,
}
"""What can be measured: outputs and their changes, operands of products, entries below eps."""
