"""What a law is: from where hyperparameters were tuned and where they are used to factors on them.

A parameterization says what the width and the depth of a model ask of each of its parameters. A
law says what its training asks of all of them: the batch, the number of tokens, and the width
where weight decay follows it. Factors of both multiply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol

from sweeper.errors import BadInput, ConfigError, key_prefix
from sweeper.records import (
    WRITTEN_IF_SET,
    AtLeastOne,
    Bounded,
    Bounds,
    Positive,
    check_bounds,
    user_code,
)
from sweeper.registry import plugins
from sweeper.trial import Log2Hps, PluginSpec


@dataclass(frozen=True, kw_only=True)
class Scale(Bounded):
    """What a law looks at: a model's size, and how it is trained.

    `batch` counts the examples of a step (of text: sequences), `tokens` those of the whole run;
    where an example is no sequence, a token is an example. `parameters` counts the weights of the
    model (None: not known). `betas` are the optimizer's decay rates of averages, by name: empty
    for one that has none, None where they are not known. `held` are the kinds of updates under
    which some of the weights keep their norm: none of most optimizers.
    """

    width: AtLeastOne
    depth: AtLeastOne
    batch: AtLeastOne
    steps: AtLeastOne
    tokens: AtLeastOne
    parameters: int | None = None
    betas: Mapping[str, float] | None = field(default_factory=dict)
    held: tuple[str, ...] = field(default=(), metadata=WRITTEN_IF_SET)


FACTORS = ("eta", "eps", "weight_decay", "gamma_adam")


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Factors on eta, eps and weight decay, and the betas that change, by name, as they become.

    `gamma_adam` is one more on the rate of what an optimizer of matrices leaves to Adam.

    Weight decay is what the parameterization makes it: the share of a weight that a step removes
    where decay is independent of the learning rate, that over the rate where it is coupled.
    """

    eta: Positive = 1.0
    eps: Positive = 1.0
    weight_decay: Positive = 1.0
    gamma_adam: Positive = field(default=1.0, metadata=WRITTEN_IF_SET)
    betas: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what nothing can be trained with."""
        for key in FACTORS:
            object.__setattr__(self, key, float(getattr(self, key)))  # a law may compute a tensor
        check_bounds(self)
        for name, beta in self.betas.items():
            if not 0 <= beta < 1:
                raise ConfigError(name, beta, "from 0, below 1")


class OutsideLaw(BadInput):
    """A change from base to target that the law says nothing about."""


class Law(Protocol):
    """A law; a plugin.

    `source` and `fixed` are words that stand after a colon. Consistent laws compose:
    `factors(a, c)` is `factors(a, b)` times `factors(b, c)`. A law may also have
    `notes(base, target)`, sentences for the user, and `fitted_to(exponents)`, which gives the law
    that was fitted to measured ladders; see `laws.fit`.
    """

    @property
    def source(self) -> str:
        """Where it was published."""

    @property
    def fixed(self) -> str:
        """What is to stay as it was for it to hold."""

    def factors(self, base: Scale, target: Scale) -> Factors:
        """What changes from `base` to `target`; `OutsideLaw` where the law does not say."""


Exponent = Annotated[float, Bounds(least=-4, most=4, allowed="an exponent from -4 to 4")]
"""One that somebody could mean."""


def is_of_ladders(law: object) -> bool:
    """Whether a law is fitted to the study's own ladders."""
    return callable(getattr(law, "fitted_to", None))


def growth(base: Scale, target: Scale) -> tuple[float, float]:
    """How many times as large the batch is, and the number of tokens."""
    return target.batch / base.batch, target.tokens / base.tokens


def changed_betas(
    base: Scale, names: tuple[str, ...], change: Mapping[str, float]
) -> dict[str, float]:
    """The betas `names` of `base` as `change` has them; `OutsideLaw` for an optimizer without them.

    Where they are not known, there are none.
    """
    if base.betas is None:
        return {}
    if lacking := [name for name in names if name not in base.betas]:
        raise OutsideLaw(
            f"the law is for optimizers that average by {' and '.join(names)}, such as adamw, and "
            f"this one has no {' and no '.join(lacking)}: take law=horizon or law=fit"
        )
    return {name: change[name] for name in names}


# No law: nothing changes, and nothing is said of another batch or another number of tokens.


@dataclass(frozen=True, kw_only=True)
class NoLaw:
    """Hyperparameters go to another width and depth as the parameterization has them."""

    source: ClassVar[str] = ""
    fixed: ClassVar[str] = "batch and tokens"

    def factors(self, base: Scale, target: Scale) -> Factors:
        """None; `OutsideLaw` for another batch or another number of tokens."""
        if (base.batch, base.tokens) != (target.batch, target.tokens):
            laws = [name for name in plugins()["law"] if name != "none"]
            raise OutsideLaw(
                "law=none has no rule for another batch or another number of tokens: choose a law, "
                f"one of {', '.join(laws)}, as in law=joint; docs/laws.md says when to use which"
            )
        return Factors()


# A law at work: what it changed from one scale to another, for plans and for people.


@dataclass(frozen=True, kw_only=True)
class AppliedLaw:
    """The law of the plugin `name` with its `arguments`, from `base` to `target`.

    `source` and `fixed` are the law's own words. `counted` says what tokens are: tokens, or
    examples where those are no sequences. `notes` are sentences for the user.
    """

    name: str
    arguments: Mapping[str, Any]
    source: str
    fixed: str
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
        factors = {key: getattr(self.factors, key) for key in FACTORS}
        for name, beta in self.factors.betas.items():
            # The average's time scale is 1 / (1 - beta) steps: what a law or a search scales.
            factors[f"one_minus_{name}"] = (1 - beta) / (1 - (self.base.betas or {})[name])
        return {name: math.log2(value) for name, value in factors.items() if value != 1}

    def apply(self, log2_hps: Log2Hps) -> Log2Hps:
        """The hyperparameters at the target; those of the base where nothing changes."""
        changes = self.log2_factors
        if not changes:
            return log2_hps
        # A hyperparameter that is not searched is a factor of 1, log2 of which is 0.
        moved = {name: log2_hps.get(name, 0.0) + change for name, change in changes.items()}
        return Log2Hps({**log2_hps, **moved})

    @property
    def changes(self) -> str:
        """Every factor in words: eta x 0.87, beta2 0.999 to 0.996."""
        changes = [
            f"{name.replace('_', ' ')} x {value:.4g}"
            for name in FACTORS
            if (value := getattr(self.factors, name)) != 1
        ]
        base = self.base.betas or {}
        changes += [f"{n} {base[n]:.6g} to {beta:.6g}" for n, beta in self.factors.betas.items()]
        return ", ".join(changes) or "nothing changes"

    def lines(self) -> list[str]:
        """The law for people: from where to where, what changes, what is held fixed, its notes."""
        options = [f"{key}={value}" for key, value in self.arguments.items()]
        named = f"{self.name} ({', '.join(options)})" if options else self.name
        return [
            f"Law: {named}, from {self._describe(self.base)} to {self._describe(self.target)}",
            f"- changes: {self.changes}",
            f"- held fixed: {self.fixed}",
            *([f"- source: {self.source}"] if self.source else []),
            *(f"- note: {note}" for note in self.notes),
        ]

    def _describe(self, scale: Scale) -> str:
        counted = f"{scale.tokens:,} {self.counted} ({scale.steps:,} steps of {scale.batch:,})"
        widths_differ = self.base.width != self.target.width
        return f"width {scale.width}, {counted}" if widths_differ else counted


def ask(law: Law, spec: PluginSpec, base: Scale, target: Scale, *, counted: str) -> AppliedLaw:
    """What a law, known by `spec`, says of the way from `base` to `target`.

    `OutsideLaw` where it says nothing, ConfigError where it cannot be asked.
    """
    # A law may be the user's own code: what it raises or returns is an error of the configuration.
    with user_code("law._target_", spec.name, "a law that can be asked"), key_prefix("law"):
        factors = law.factors(base, target)
        if not isinstance(factors, Factors):
            raise ConfigError("_target_", spec.name, "a law whose factors are sweeper.laws.Factors")
        notes: Sequence[object] = ()
        if own_notes := getattr(law, "notes", None):
            notes = own_notes(base, target)
            notes = [notes] if isinstance(notes, str) else notes
        fixed, source = str(law.fixed), str(law.source)
    return AppliedLaw(
        name=spec.name,
        # null is an argument that the law leaves at what it means without it.
        arguments={key: value for key, value in spec.arguments.items() if value is not None},
        source=source,
        fixed=fixed,
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
