"""What schemes relative to a base model share: width by exponents, depth, decay and epsilon."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from sweeper.scaling.abc import Alignment, Exponents, Gauge, exponents, shift
from sweeper.scaling.depth import DepthRule, branch_exponent, branch_factor, check_alpha, depth_lr
from sweeper.scaling.plain import plain_site, standard_std
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Site, Update, Values

Decay = Literal["independent", "coupled", "scaled"]
Epsilon = Literal["fixed", "scaled"]


def decay_factor(rule: Decay, eta: float, lr: float, width: float) -> float:
    """Factor on the optimizer's decay, which is the share of a weight that a step removes.

    independent: 1, whatever the learning rate. coupled: the parameter's own learning rate, as
    torch's AdamW has it. scaled: coupled, with the rate's factor of width, `width`, divided
    out (microsoft/mup; CompleteP's decay times m for hidden weights).
    """
    if rule == "independent":
        return 1.0
    return eta * lr if rule == "coupled" else eta * lr / width


@dataclass(frozen=True, kw_only=True)
class Relative:
    """A scheme whose rules are powers of width / base width, and nothing at the base.

    A scheme names its `gauge`, and may change what the base model is given (`at_base`) and the
    scale of attention. With m the growth of the dimension that a parameter's exponents speak
    of, `eta_l = eta * gamma_l * m^-c_l` and `eps_l = eps * m^-g_l` (Everett et al., section 4).
    Without an `alignment` learning rates and epsilon have no rule: c = g = 0.
    """

    alignment: Alignment | None = "full"
    depth: DepthRule = "none"
    completep_alpha: float = 1.0
    decay: Decay = "independent"
    epsilon: Epsilon = "scaled"

    hyperparameters: ClassVar[tuple[str, ...]] = (
        "eta",
        "gamma_embedding",
        "gamma_hidden",
        "gamma_readout",
    )
    unit_scaled: ClassVar[bool] = False
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse an alpha of no known rule."""
        check_alpha(self.completep_alpha)

    def gauge(self) -> Gauge:
        """(a, b) by role."""
        raise NotImplementedError

    def at_base(self, spec: ParamSpec, hps: Values) -> ParamScale:
        """Standard init, and the layer's constant gamma (vectors: the embedding's)."""
        role = Role.EMBEDDING if spec.role is Role.VECTOR else spec.role
        std = standard_std(spec, spec.base_fan_in)
        return ParamScale(init_std=std, lr=hps.get(f"gamma_{role}", 1.0))

    def exponents(self, spec: ParamSpec, update: Update = Update.SIGN) -> Exponents:
        """The parameter's exponents of width, as they are applied.

        A vector is an embedding (it contracts nothing) without a multiplier: a is folded away.
        """
        vector = spec.role is Role.VECTOR
        role = Role.EMBEDDING if vector else spec.role
        found = exponents(self.gauge(), role, update, self.alignment or "full")
        found = shift(found, -found.a, update) if vector else found
        return replace(found, c=0.0, g=0.0) if self.alignment is None else found

    def scale(self, spec: ParamSpec, hps: Values, update: Update = Update.SIGN) -> ParamScale:
        """The base's prescription times powers of the growth in width and in depth."""
        base, e, m = self.at_base(spec, hps), self.exponents(spec, update), growth(spec)
        alpha = branch_exponent(self.depth, self.completep_alpha) if spec.residual else None
        layers = spec.depth / spec.base_depth
        lr = base.lr * m**-e.c * depth_lr(layers, alpha, update)
        eps = m**-e.g * branch_factor(layers, alpha) if self.epsilon == "scaled" else 1.0
        return replace(
            base,
            init_std=base.init_std * m**-e.b,
            multiplier=base.multiplier * m**-e.a,
            lr=lr,
            eps=eps,
            weight_decay=decay_factor(self.decay, hps["eta"], lr, m**-e.c),
        )

    def logit(self, head_size: int, hps: Values) -> float | None:
        """Factor of q k^T; None for d_head^-1/2."""
        return None

    def site(self, site: Site, hps: Values) -> dict[str, float]:
        """Attention's scale, and the depth rule's on residual branches."""
        logit, branch = None, 1.0
        if site.kind == "attention":
            logit = self.logit(site.geometry["head_size"], hps)
        if site.kind == "residual":
            layers = site.geometry["branches"] / site.geometry["base_branches"]
            branch = branch_factor(layers, branch_exponent(self.depth, self.completep_alpha))
        return plain_site(site, logit=logit, branch=branch)


def growth(spec: ParamSpec) -> float:
    """m: how much the dimension grew that the exponents speak of.

    Each side counts for itself: the fan-in for what is contracted over (an FFN's second matrix
    has a fan-in of its own), the fan-out for embeddings and vectors. 1 when nothing grows.
    """
    if spec.role in (Role.HIDDEN, Role.READOUT):
        return spec.fan_in / spec.base_fan_in
    return spec.fan_out / spec.base_fan_out
