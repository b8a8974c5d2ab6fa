"""What a law is: from where hyperparameters were tuned and where they are used to factors on them.

A parameterization says what the width and the depth of a model ask of each of its parameters. A
law says what its training asks of all of them: the batch, the number of tokens, and the width
where weight decay follows it. Factors of both multiply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sweeper.errors import BadInput, ConfigError


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a law looks at: a model's size, and how it is trained.

    `batch` counts the examples of a step (of text: sequences), `tokens` those of the whole run;
    where an example is no sequence, a token is an example. `parameters` counts the weights of the
    model (None: not known). `betas` are the optimizer's decay rates of averages, by name: empty
    for one that has none, None where they are not known.
    """

    width: int
    depth: int
    batch: int
    steps: int
    tokens: int
    parameters: int | None = None
    betas: Mapping[str, float] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no size."""
        for key in ("width", "depth", "batch", "steps", "tokens"):
            if getattr(self, key) < 1:
                raise ConfigError(key, getattr(self, key), "a whole number of at least 1")


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Factors on eta, eps and weight decay, and the betas that change, by name, as they become.

    Weight decay is what the parameterization makes it: the share of a weight that a step removes
    where decay is independent of the learning rate, that over the rate where it is coupled.
    """

    eta: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0
    betas: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what nothing can be trained with."""
        for key in ("eta", "eps", "weight_decay"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(key, getattr(self, key), "a positive number")
            object.__setattr__(self, key, float(getattr(self, key)))  # a law may compute a tensor
        for name, beta in self.betas.items():
            if not 0 <= beta < 1:
                raise ConfigError(name, beta, "from 0, below 1")


class OutsideLaw(BadInput):
    """A change from base to target that the law says nothing about."""


class Law(Protocol):
    """A law; a plugin.

    `source` says where it was published, `held` what is to stay as it was for it to hold, both in
    words that follow a colon. Laws that are consistent compose: `factors(a, c)` is `factors(a, b)`
    times `factors(b, c)`. A law may also have `notes(base, target)`, sentences for the user, and
    `fitted_to(exponents)`, which gives the law that was fitted to measured ladders; see
    `laws.fit`.
    """

    @property
    def source(self) -> str:
        """See above."""
        ...

    @property
    def held(self) -> str:
        """See above."""
        ...

    def factors(self, base: Scale, target: Scale) -> Factors:
        """What changes from `base` to `target`; `OutsideLaw` where the law does not say."""
        ...


def growth(base: Scale, target: Scale) -> tuple[float, float]:
    """How many times as large the batch is, and the number of tokens."""
    return target.batch / base.batch, target.tokens / base.tokens


def check_exponents(law: object, *names: str) -> None:
    """ConfigError for an exponent that no one could mean."""
    for name in names:
        if not -4 <= getattr(law, name) <= 4:
            raise ConfigError(name, getattr(law, name), "an exponent from -4 to 4")


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
