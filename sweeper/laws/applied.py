"""A law at work: what it changed from one scale to another, for plans and for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.errors import ConfigError, key_prefix
from sweeper.laws.law import Factors, Law, Scale
from sweeper.plugin import user_code
from sweeper.trial import Log2Hps, PluginSpec


@dataclass(frozen=True, kw_only=True)
class AppliedLaw:
    """The law of the plugin `name` with its `arguments`, from `base` to `target`.

    `source` and `held` are the law's own words. `counted` says what tokens are: tokens, or
    examples where those are no sequences. `notes` are sentences for the user.
    """

    name: str
    arguments: Mapping[str, Any]
    source: str
    held: str
    base: Scale
    target: Scale
    factors: Factors
    counted: str = "tokens"
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse a record of betas that the base does not have."""
        for name in self.factors.betas:
            if name not in (self.base.betas or {}):
                raise ConfigError(
                    f"factors.betas.{name}", self.factors.betas[name], "a base's beta"
                )

    @property
    def betas(self) -> dict[str, float]:
        """The optimizer's betas at the target, by name."""
        return {**(self.base.betas or {}), **self.factors.betas}

    @property
    def log2_factors(self) -> dict[str, float]:
        """log2 of the factors, by the names of the hyperparameters that they are factors on.

        A beta's is on its distance from 1, as it is searched; one that falls to 0 forgets all.
        """
        factors = {key: getattr(self.factors, key) for key in ("eta", "eps", "weight_decay")}
        for name, beta in self.factors.betas.items():
            factors[f"one_minus_{name}"] = (1 - beta) / (1 - (self.base.betas or {})[name])
        return {name: math.log2(value) for name, value in factors.items() if value != 1}

    def apply(self, log2_hps: Log2Hps) -> Log2Hps:
        """The hyperparameters at the target; those of the base where nothing changes."""
        changes = self.log2_factors
        if not changes:
            return log2_hps
        moved = {name: log2_hps.get(name, 0.0) + change for name, change in changes.items()}
        return Log2Hps({**log2_hps, **moved})

    @property
    def changes(self) -> str:
        """Every factor in words: eta x 0.87, beta2 0.999 to 0.996."""
        told = [
            f"{name.replace('_', ' ')} x {value:.4g}"
            for name in ("eta", "eps", "weight_decay")
            if (value := getattr(self.factors, name)) != 1
        ]
        base = self.base.betas or {}
        told += [f"{n} {base[n]:.6g} to {beta:.6g}" for n, beta in self.factors.betas.items()]
        return ", ".join(told) or "nothing changes"

    def lines(self) -> list[str]:
        """The law for people: from where to where, what changes, what is held fixed, its notes."""
        options = [f"{key}={value}" for key, value in self.arguments.items()]
        named = f"{self.name} ({', '.join(options)})" if options else self.name
        return [
            f"Law: {named}, from {self._words(self.base)} to {self._words(self.target)}",
            f"- changes: {self.changes}",
            f"- held fixed: {self.held}",
            *([f"- source: {self.source}"] if self.source else []),
            *(f"- note: {note}" for note in self.notes),
        ]

    def _words(self, scale: Scale) -> str:
        counted = f"{scale.tokens:,} {self.counted} ({scale.steps:,} steps of {scale.batch:,})"
        grown = self.base.width != self.target.width
        return f"width {scale.width}, {counted}" if grown else counted


def ask(law: Law, spec: PluginSpec, base: Scale, target: Scale, *, counted: str) -> AppliedLaw:
    """What a law, known by `spec`, says of the way from `base` to `target`.

    `OutsideLaw` where it says nothing, ConfigError where it cannot be asked.
    """
    with user_code("law._target_", spec.name, "a law that can be asked"), key_prefix("law"):
        factors = law.factors(base, target)
        if not isinstance(factors, Factors):
            raise ConfigError("_target_", spec.name, "a law whose factors are sweeper.laws.Factors")
        notes: Sequence[object] = ()
        if own_notes := getattr(law, "notes", None):
            notes = own_notes(base, target)
            notes = [notes] if isinstance(notes, str) else notes
        held, source = str(law.held), str(law.source)
    return AppliedLaw(
        name=spec.name,
        arguments={key: value for key, value in spec.arguments.items() if value is not None},
        source=source,
        held=held,
        base=base,
        target=target,
        factors=factors,
        counted=counted,
        notes=tuple(map(str, notes)),
    )


def decay_notes(rule: str, factors: Factors) -> list[str]:
    """What multiplies a law's factor on decay under the parameterization's `rule` of decay."""
    if factors.weight_decay == 1 or rule == "independent":
        return []
    return [f"the parameterization's decay is {rule}: its own factor multiplies the law's"]
