"""What one parameter is trained with, in absolute numbers, with its multiplier or without one.

A parameterization gives factors (`ParamScale`), an optimizer and a trial give what they multiply:
`prescription_of` is the one place where they meet. What trains, exports and explains takes its
numbers from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Literal, Protocol

from sweeper.records import NotNegative, Positive
from sweeper.scaling.gamma import ADAM_GAMMA, gamma
from sweeper.scaling.spec import (
    SUMMED,
    Init,
    Parameterization,
    ParamSpec,
    Role,
    Update,
)
from sweeper.trial import PlainHps

SETTING_FACTORS = ("weight_decay", "eps")
"""Hyperparameters that any trial may have: factors on the optimizer's settings."""


@dataclass(frozen=True, kw_only=True)
class Prescription:
    """One parameter's numbers at one size.

    The forward pass uses `multiplier * W`, W drawn with `init_std`; `backward_multiplier` takes
    its place in the gradient to the layer's input. `lr` is the schedule's peak. `weight_decay`
    is the share of a weight that one step at the peak removes, whatever the learning rate
    (independent weight decay).
    """

    init_std: NotNegative
    multiplier: Positive
    backward_multiplier: float
    lr: Positive
    eps: NotNegative
    weight_decay: NotNegative


class UpdateRule(Protocol):
    """What a prescription takes from an optimizer; eps and decay are those before any factor.

    One that leaves some parameters to Adam, beside an update of its own, has `beside_adam`.
    """

    eps: float
    weight_decay: float

    def kind(self, spec: ParamSpec) -> Update:
        """How the entries of this parameter's updates scale."""


def prescription_of(
    spec: ParamSpec, parameterization: Parameterization, optimizer: UpdateRule, hps: PlainHps
) -> Prescription:
    """What `spec` is trained with, given every hyperparameter."""
    update = optimizer.kind(spec)
    scale = parameterization.scale(spec, hps, update)
    # eta_l = eta gamma_l m^-c_l. A decay that is coupled to the parameter's rate has gamma_l too.
    constant = constant_of(spec, optimizer, hps)
    has_gamma = getattr(parameterization, "decay_has_gamma", False)
    decay = scale.weight_decay * constant if has_gamma else scale.weight_decay
    scale = replace(scale, lr=scale.lr * constant, weight_decay=decay)
    if spec.norm_of:  # no input's gradient goes through a gain
        lr, eps = absorbed_factors(update, norm_growth(spec, parameterization, optimizer, hps))
        scale = replace(scale, backward_multiplier=None, lr=scale.lr * lr, eps=scale.eps * eps)
    # A trial's factors on eps and decay are the same for all parameters: no parameterization has to
    # know them.
    factors: Mapping[str, float] = {
        name: getattr(scale, name) * hps[name] for name in SETTING_FACTORS if name in hps
    }
    scale = replace(scale, **factors)
    # A parameterization sees a cut expert as one of another width and gives its init r^-1/2; the
    # other r^-1/2 is the same under all of them. It is for the start alone: a step that goes as
    # the weight would have it too.
    if spec.inner_growth != 1.0:
        cut = expert_init(spec.inner_growth)
        lr = scale.lr / cut if update.relative else scale.lr
        scale = replace(scale, init_std=scale.init_std * cut, lr=lr)
    spared, backward = update.holds_norm or is_spared(spec, optimizer), scale.backward_multiplier
    return Prescription(
        init_std=scale.init_std,
        multiplier=scale.multiplier,
        backward_multiplier=scale.multiplier if backward is None else backward,
        lr=hps["eta"] * scale.lr,
        eps=optimizer.eps * scale.eps,
        weight_decay=(0.0 if spared else optimizer.weight_decay) * scale.weight_decay,
    )


def decayed_of(optimizer: UpdateRule, specs: Iterable[ParamSpec]) -> Literal["all", "matrices"]:
    """What decays of a user's model that leaves it open: the matrices, where it has norms."""
    return "matrices" if optimizer.weight_decay and any(spec.gain for spec in specs) else "all"


def is_spared(spec: ParamSpec, optimizer: UpdateRule) -> bool:
    """Whether it is none of the matrices that alone decay where the optimizer says so.

    Gains, biases and tables whose rows are picked or added are spared. A table that gives the
    logits, too, is a matrix, as in nanoGPT.
    """
    if getattr(optimizer, "decayed", None) != "matrices":
        return False
    if spec.lookup or spec.role is Role.EMBEDDING:
        return not (spec.projection or spec.readout_fan_in)
    return spec.role is Role.VECTOR or spec.norm_of is not None or len(spec.shape) < 2


def norm_growth(
    spec: ParamSpec, parameterization: Parameterization, optimizer: UpdateRule, hps: PlainHps
) -> float:
    """The size of a gain that starts as the norm of a weight: its steps are shares of it.

    y = g (v / |v|) x moves by the share of y that g moves by. What is summed over the inputs that a
    gain has numbers for adds up instead, and has a rate of its own. Rules relative to a base model
    change nothing at the base.
    """
    one_rate = getattr(parameterization, "one_rate", False)
    if one_rate or spec.norm_of is None or spec.role in SUMMED:
        return 1.0

    def start(weight: ParamSpec, gain: tuple[int, ...]) -> float:
        drawn = prescription_of(weight, parameterization, optimizer, hps)
        return drawn.multiplier * drawn.init_std * sqrt(prod(weight.shape) / prod(gain))

    relative = getattr(parameterization, "relative", False)
    at_base = start(spec.norm_of.at_base(), spec.base_shape) if relative else 1.0
    return start(spec.norm_of, spec.shape) / at_base


def constant_of(spec: ParamSpec, optimizer: UpdateRule, hps: PlainHps) -> float:
    """gamma_l, and of what Adam trains beside another update the constant that is Adam's."""
    constant = gamma(spec, hps)
    if getattr(optimizer, "beside_adam", False) and optimizer.kind(spec) is Update.SIGN:
        constant *= hps.get(ADAM_GAMMA, 1.0)
    return constant


def held_norms(optimizer: UpdateRule, specs: Iterable[ParamSpec]) -> tuple[str, ...]:
    """The kinds of updates under which some of the parameters keep their norm."""
    kinds = {optimizer.kind(spec) for spec in specs if not spec.frozen}
    return tuple(sorted(str(kind) for kind in kinds if kind.holds_norm))


def expert_init(inner_growth: float) -> float:
    """Factor on the init of an expert's second matrix, in the growth r of its inner width.

    Its step is to move the expert's output by O(1), for which a learning rate of 1/fan-in does,
    as for any hidden weight. Its init is r^-1/2 below fan-in's, so that a step of the first
    matrix, which the second hands on, also does: a mean over the inner width, like that over the
    experts (arXiv:2601.20205, Table 1: init alpha_ffn^-1 n^-1/2, rate alpha_ffn^-1 n^-1).
    """
    return float(inner_growth**-0.5)


@dataclass(frozen=True, kw_only=True)
class AbsorbedParam:
    """What a parameter is trained with in a forward pass that has no multiplier.

    Values are drawn from N(`init_mean`, `init_std`^2), unless `init` is "kept": then they stay as
    the model's own code sets them. `lr`, `eps` and `weight_decay` are as in `Prescription`, for
    steps of the kind `update`. What is `frozen` is neither drawn nor trained. The init "norm" is
    that of the weight `norm_of`. `matrix` is a `ParamSpec`'s, None where it is not known.
    """

    name: str
    shape: tuple[int, ...]
    init_mean: float
    init_std: float
    lr: float
    eps: float
    weight_decay: float
    init: Init = "normal"
    frozen: bool = False
    update: Update = Update.SIGN
    norm_of: str = ""
    matrix: tuple[int, int] | None = None


def absorb_multiplier(
    prescription: Prescription, update: Update, *, name: str, shape: tuple[int, ...], init: Init
) -> AbsorbedParam:
    """The settings under which `y = W x` trains as `y = multiplier * W x` does by `prescription`.

    This is the abc symmetry (Yang and Hu, arXiv:2011.14522; Everett et al., arXiv:2407.05872)
    with theta such that the multiplier becomes 1. Not absorbed is a `backward_multiplier` that
    differs from `multiplier`: `backward_multiplier / multiplier` remains to be applied.
    """
    # W' = multiplier * W: its start is multiplied, constants ("ones") too. A kept parameter is not
    # drawn; for it these are never read.
    mean, std = {"ones": (1.0, 0.0), "zeros": (0.0, 0.0)}.get(init, (0.0, prescription.init_std))
    lr, eps = absorbed_factors(update, prescription.multiplier)
    return AbsorbedParam(
        name=name,
        shape=shape,
        init_mean=prescription.multiplier * mean,
        init_std=prescription.multiplier * std,
        lr=prescription.lr * lr,
        eps=prescription.eps * eps,
        weight_decay=prescription.weight_decay,
        init=init,
        update=update,
    )


def absorbed_factors(update: Update, multiplier: float) -> tuple[float, float]:
    """Factors on learning rate and eps when a parameter absorbs its positive `multiplier`.

    With `V = multiplier * W` the model computes `V x`. Let g be the gradient to V: W sees
    multiplier * g, and a step of W moves V by multiplier times as much.

    - SIGN: multiplier * lr * (multiplier g) / (multiplier |g| + eps), so lr x multiplier and
      eps / multiplier. ORTHOGONAL and NORMALIZED likewise forget the gradient's scale.
    - GRADIENT: multiplier * lr * (multiplier g), so lr x multiplier squared.
    - PARAMETER, HYPERBALL: the step has the scale of the weight itself, and lr stays.

    Independent weight decay stays as it is under all of them: it removes a share of the weight.
    """
    if update is Update.GRADIENT:
        return multiplier**2, 1.0
    return 1.0 if update.relative else multiplier, 1 / multiplier
