"""Laws as their papers print them: batch, decay, horizon, both, and AdamW's timescale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sweeper.errors import ConfigError
from sweeper.laws.law import Exponent, Factors, OutsideLaw, Scale, changed_betas, growth
from sweeper.records import Bounded, check_bounds
from sweeper.scaling.spec import Update

# The batch under Adam, where the number of tokens stays: the square-root rule.


BETAS = ("beta1", "beta2")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`eta ~ B^eta`, `1 - beta ~ B`, `eps ~ B^eps`, B the batch (arXiv:2205.10287).

    With kappa times the batch and as many tokens, hence 1/kappa of the steps, Adam follows the
    same stochastic differential equation where eta is multiplied by the root of kappa, both
    1 - beta by kappa, and eps by 1 / the root. `betas` names those that follow the batch.
    """

    eta: Exponent = 0.5
    eps: Exponent = -0.5
    betas: tuple[str, ...] = BETAS

    source: ClassVar[str] = "arXiv:2205.10287"

    @property
    def fixed(self) -> str:
        """What stays beside the tokens."""
        fixed = [name for name in BETAS if name not in self.betas]
        return ", ".join(["the number of tokens", *fixed, "weight decay"])

    def __post_init__(self) -> None:
        """Refuse betas that Adam does not have."""
        check_bounds(self)
        if unknown := [name for name in self.betas if name not in BETAS]:
            raise ConfigError("betas", unknown[0], f"a list of {' and '.join(BETAS)}, or []")

    def factors(self, base: Scale, target: Scale) -> Factors:
        """Factors on eta and eps, and new betas; `OutsideLaw` for another number of tokens."""
        kappa, _ = growth(base, target)
        # Whole steps of another batch may miss the same number of tokens by half a step, which is
        # target.tokens / target.steps / 2.
        if 2 * abs(target.tokens - base.tokens) * target.steps > target.tokens:
            raise OutsideLaw(
                "law=batch holds at a fixed number of tokens, and "
                f"{target.tokens:,} is not the base's {base.tokens:,}: take law=joint, which has a "
                "rule for both"
            )
        before = base.betas or {}
        betas = {name: 1 - kappa * (1 - before[name]) for name in self.betas if name in before}
        if below := [name for name, beta in betas.items() if beta < 0]:
            most = min(1 / (1 - before[name]) for name in below)
            rest = ",".join(name for name in self.betas if name not in below)
            raise OutsideLaw(
                f"law=batch would make {below[0]} negative at {kappa:g} times the batch; it goes "
                f"to {most:g} times. Hold {' and '.join(below)} fixed with law.betas=[{rest}], or "
                "take law=joint"
            )
        return Factors(
            eta=kappa**self.eta,
            eps=kappa**self.eps,
            betas=changed_betas(base, self.betas, betas) if kappa != 1 else {},
        )


# Weight decay over the width.


SOURCES = {
    0.0: "arXiv:2510.19093 and arXiv:2405.13698 (AdamW)",
    -0.5: "arXiv:2510.15262 (AdamW under muP)",
    -1.0: "arXiv:2512.05620 (Muon, SOAP, Shampoo)",
}
"""Where each power was published. They disagree, and each was measured for its own optimizer."""


@dataclass(frozen=True, kw_only=True)
class Decay(Bounded):
    """Independent weight decay goes as `m^power`, m the width over the base's.

    It is the share of a weight that a step removes. arXiv:2510.15262 writes it as eta lambda with
    lambda ~ sqrt(m) and eta ~ 1 / m, which is m^-1/2; a lambda fixed beside muP's eta ~ 1 / m is
    m^-1.
    """

    power: Exponent = -0.5

    fixed: ClassVar[str] = "eta, betas and eps, the batch and the number of tokens"

    @property
    def source(self) -> str:
        """The paper of the power in use."""
        return SOURCES.get(self.power, "a power of your own")

    def factors(self, base: Scale, target: Scale) -> Factors:
        """The factor on weight decay; `OutsideLaw` for another batch or number of tokens."""
        if (base.batch, base.tokens) != (target.batch, target.tokens):
            raise OutsideLaw(
                "law=decay says what the width does to weight decay, and nothing of another batch "
                "or another number of tokens: take law=joint, or law=timescale for the decay"
            )
        return Factors(weight_decay=(target.width / base.width) ** self.power)


# The horizon: a longer run wants a smaller learning rate.


@dataclass(frozen=True, kw_only=True)
class Horizon(Bounded):
    """`eta ~ D^tokens` at a fixed batch, D the tokens of the run.

    -0.32 is what arXiv:2409.19913 measured for AdamW, and arXiv:2603.28743 (with the code
    microsoft/ArchScale) again for Muon on a sphere.
    """

    tokens: Exponent = -0.32

    source: ClassVar[str] = "arXiv:2409.19913 and arXiv:2603.28743"
    fixed: ClassVar[str] = "the batch, betas, eps and weight decay"

    def factors(self, base: Scale, target: Scale) -> Factors:
        """The factor on eta; `OutsideLaw` for another batch."""
        batch, tokens = growth(base, target)
        if batch != 1:
            raise OutsideLaw(
                f"law=horizon holds at a fixed batch, and {target.batch} is not the base's "
                f"{base.batch}: take law=joint, which has a rule for both"
            )
        return Factors(eta=tokens**self.tokens)


# Batch and tokens together, near Complete(d)P.


@dataclass(frozen=True, kw_only=True)
class Joint(Bounded):
    """`eta ~ B^batch T^tokens`, `beta2 ~ beta2^B`, `eps ~ (B / T)^eps`: B the batch, T the tokens.

    Complete(d)P (arXiv:2512.22382) has eta go as the root of r = B / T, from the stochastic
    differential equation of Adam: `law.tokens=-0.5`. The rules here are those that marin trains
    by, which call themselves close to it (marin-community/marin, `CompletedAdamHHeuristic`): 0.3
    in place of the tokens' 1/2, eps as the root of T / B, beta1 fixed, and beta2 to the power
    B / B0, which keeps the number of tokens after which a squared gradient counts for half.

    `weight_decay=1` has decay go as B / T, the rule of `law=timescale`: a whole run decays as much
    as the base's.
    """

    batch: Exponent = 0.5
    tokens: Exponent = -0.3
    eps: Exponent = -0.5
    beta2: bool = True
    weight_decay: Exponent = 0.0

    source: ClassVar[str] = "arXiv:2512.22382, with the exponents of marin-community/marin"

    @property
    def fixed(self) -> str:
        """What stays."""
        betas = "beta1" if self.beta2 else "betas"
        return betas if self.weight_decay else f"{betas}, and weight decay"

    def factors(self, base: Scale, target: Scale) -> Factors:
        """Factors on eta, eps and decay, and the new beta2."""
        batch, tokens = growth(base, target)
        names = ("beta2",) if self.beta2 and batch != 1 else ()
        powers = {name: beta**batch for name, beta in (base.betas or {}).items()}
        return Factors(
            eta=batch**self.batch * tokens**self.tokens,
            eps=(batch / tokens) ** self.eps,
            weight_decay=(batch / tokens) ** self.weight_decay,
            betas=changed_betas(base, names, powers),
        )


# Weights of fixed norm: the joint rules, and Adam's rate beside them.


@dataclass(frozen=True, kw_only=True)
class Hyperball(Bounded):
    """`law=joint` for AdamH and MuonH; the rate of what Adam trains goes as `(B / T)^adam`.

    So marin trains (`CompletedAdamHHeuristic`): AdamH's rate is joint's, Adam's that of
    Complete(d)P. Without `tokens` the power is -0.3, and -0.32 where some steps are orthogonal, as
    microsoft/ArchScale has it for MuonH (arXiv:2603.28743). Width asks for nothing, and of the
    depth parameterizations know: `depth=depth_mup` has the root of d0 / d. There is no decay.
    """

    batch: Exponent = 0.5
    tokens: Exponent | None = None
    adam: Exponent = 0.5
    eps: Exponent = -0.5
    beta2: bool = True

    source: ClassVar[str] = "marin-community/marin and arXiv:2603.28743"

    @property
    def fixed(self) -> str:
        """What stays."""
        return Joint(beta2=self.beta2).fixed

    def factors(self, base: Scale, target: Scale) -> Factors:
        """Joint's, and Adam's rate over eta's; `OutsideLaw` where no weight keeps its norm."""
        if base.betas is not None and not base.held:
            raise OutsideLaw(
                "law=hyperball is for optimizers under which weights keep their norm, adamh and "
                "muonh: take law=joint, which has the same rules for one learning rate"
            )
        tokens = self.tokens
        if tokens is None:
            tokens = -0.32 if Update.ORTHOGONAL_HYPERBALL in base.held else -0.3
        joint = Joint(batch=self.batch, tokens=tokens, eps=self.eps, beta2=self.beta2)
        factors, (batch, horizon) = joint.factors(base, target), growth(base, target)
        return replace(factors, gamma_adam=(batch / horizon) ** self.adam / factors.eta)


# AdamW's timescale: the decay that keeps how much of a run the weights look back over.


@dataclass(frozen=True, kw_only=True)
class Timescale(Bounded):
    """`tau = B / (eta lambda D)` goes as `(D / N)^ratio`: D tokens, N parameters.

    AdamW's weights are an average of their last 1 / (eta lambda) updates, a share tau of the run's
    D / B steps (arXiv:2405.13698). That share stays: ratio 0. In one pass over the data its
    optimum was measured to fall as (tokens per parameter)^-0.527 (arXiv:2505.13738):
    `law.ratio=-0.527`. Here eta lambda is weight decay itself, the share that a step removes, so
    decay goes as (B / D) / (D / N)^ratio, whatever eta does.
    """

    ratio: Exponent = 0.0

    fixed: ClassVar[str] = "eta, betas and eps"

    @property
    def source(self) -> str:
        """The paper of the exponent in use."""
        return "arXiv:2505.13738" if self.ratio else "arXiv:2405.13698"

    def factors(self, base: Scale, target: Scale) -> Factors:
        """The factor on weight decay; `OutsideLaw` where the parameters are not known."""
        batch, tokens = growth(base, target)
        if not self.ratio:
            return Factors(weight_decay=batch / tokens)
        if base.parameters is None or target.parameters is None:
            raise OutsideLaw(
                "law=timescale with a ratio needs the number of parameters, and the model is known "
                "to the user command alone: take law.ratio=0"
            )
        # How many times as many tokens there are for each parameter.
        ratio = tokens / (target.parameters / base.parameters)
        return Factors(weight_decay=batch / tokens / ratio**self.ratio)
