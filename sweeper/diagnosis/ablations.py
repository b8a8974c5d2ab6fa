"""The ablations that look for the cause of a transfer that fails: one change each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from sweeper.catalog import TARGET, plugin_target
from sweeper.scaling.abc import MUP, exponents, shift
from sweeper.scaling.adjusted import Change
from sweeper.scaling.spec import Role, Update
from sweeper.transfer.explain import Explained
from sweeper.transfer.ladder import Size
from sweeper.transfer.plan import PlannedParameter
from sweeper.trial import Log2Hps

EXPONENT_TOLERANCE = 0.1
"""Exponents of the width that differ by at most this are taken as equal."""
EPS_FRACTION = 0.01
"""From this fraction of entries below eps on, eps is taken to hold training back."""
EDGE_DISTANCE = 1.0
"""An optimum within this, in log2, of a rate that diverges is at the edge of stability."""
ROLE_WORDS = {
    Role.EMBEDDING: "the embedding's",
    Role.HIDDEN: "the hidden layers'",
    Role.READOUT: "the readout's",
    Role.VECTOR: "the gains' and biases'",
}


@dataclass(frozen=True, kw_only=True)
class AttentionScale:
    """Attention at one size: the size of a head, and the factor of q k^T."""

    head_size: int
    logit: float


@dataclass(frozen=True, kw_only=True)
class FailedTransfer:
    """What is known of a transfer that fails before any ablation is trained.

    `tree` is the study's resolved configuration and `best_log2` its optimum. `rows` are the
    parameters with their exponents of the width, read between `base` and `large`; empty when
    these are equally wide. Pairs are at base and at large: `attention` is None without any;
    `distances_to_divergence` lead from the optimum to the first rate that diverged, in log2, +inf
    where none did; `below_eps` are the fractions of entries whose root of the second moment is
    below the optimizer's eps, NaN where they were not measured.
    """

    tree: Mapping[str, Any]
    best_log2: Log2Hps
    base: Size
    large: Size
    parameters: Sequence[PlannedParameter]
    rows: Sequence[Explained] = ()
    attention: tuple[AttentionScale, AttentionScale] | None = None
    distances_to_divergence: tuple[float, float] = (math.inf, math.inf)
    below_eps: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One change of the configuration, by dotted keys, and what it means if the change helps.

    `change` says in words what is changed, and `cause` what is then the cause of the failure.
    `evidence` is what speaks for that cause without training; empty when nothing does.
    """

    name: str
    change: str
    cause: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    evidence: str = ""

    def apply(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """`tree` with the change; the original is left as it is."""
        changed = dict(tree)
        for key, value in self.overrides.items():
            group, _, name = key.partition(".")
            changed[group] = {**changed[group], name: value} if name else value
        return changed


MakeAblation = Callable[[FailedTransfer], Ablation | None]
"""An ablation for a failed transfer; None where it does not apply."""


def mup_deviations(rows: Sequence[Explained]) -> dict[Role, Change]:
    """By role, the powers of the width that would turn a scheme's rules into muP's.

    Roles whose rules agree with muP's are left out.
    """
    deviations: dict[Role, Change] = {}
    for role in ROLE_WORDS:
        changes = [_deviation(row, role) for row in rows if row.parameter.role == role]
        if not changes:
            continue
        b, c = (round(fmean(values), 3) + 0.0 for values in zip(*changes, strict=True))
        if max(abs(b), abs(c)) > EXPONENT_TOLERANCE:
            deviations[role] = Change(b=b, c=c)
    return deviations


def _deviation(row: Explained, role: Role) -> tuple[float, float]:
    """(b, c) of muP less those of one parameter.

    A layer may be split differently into multiplier, init and rate and train the same. So muP's
    exponents (Everett et al., Table 1, with erratum E1 of docs/errata.md; full alignment) are
    first shifted to the parameter's multiplier.
    """
    update = Update(row.parameter.update)
    plain = Role.EMBEDDING if role is Role.VECTOR else role
    mup = exponents(MUP, plain, update, "full")
    target = shift(mup, row.a - mup.a, update)
    return target.b - row.b if row.parameter.init == "normal" else 0.0, target.c - row.c


def _adjusted(s: FailedTransfer, **changes: Any) -> dict[str, Any]:
    """The override that wraps the scheme."""
    scheme = dict(s.tree["parameterization"])
    space = scheme.pop("space")
    plain = {k: asdict(v) if isinstance(v, Change) else v for k, v in changes.items()}
    target = plugin_target("parameterization", "adjusted")
    return {"parameterization": {TARGET: target, "scheme": scheme, **plain, "space": space}}


def _powers(change: Change) -> str:
    parts = [("init std", change.b), ("learning rate", change.c)]
    return " and ".join(f"{name} times m^{-value:+g}" for name, value in parts if abs(value) > 1e-9)


def _rules(s: FailedTransfer) -> Ablation | None:
    deviations = mup_deviations(s.rows)
    if len(deviations) < 2:
        return None
    words = "; ".join(f"{ROLE_WORDS[role]} {_powers(one)}" for role, one in deviations.items())
    return Ablation(
        name="rules",
        change=f"muP's rules for all parameters ({words}; m is the growth of the width)",
        cause="the parameterization does not rescale its parameters with the width as muP does",
        overrides=_adjusted(s, **{str(role): change for role, change in deviations.items()}),
        evidence=f"{len(deviations)} roles of parameters follow other powers of the width than "
        "under muP",
    )


def _role(role: Role) -> MakeAblation:
    """The rule of muP for one role, where the scheme has another."""

    def ablation(s: FailedTransfer) -> Ablation | None:
        change = mup_deviations(s.rows).get(role)
        evidence = f"muP's rule has a further {_powers(change)}" if change else ""
        if change is None:
            if role is not Role.EMBEDDING or not s.rows:
                return None
            # u-muP paper, A.3: muP's own rule for the embedding is the doubtful one.
            change = Change(c=0.5)
        return Ablation(
            name=str(role),
            change=f"{ROLE_WORDS[role]} {_powers(change)} (m is the growth of the width)",
            cause=f"{ROLE_WORDS[role]} rule for the width is wrong",
            overrides=_adjusted(s, **{str(role): change}),
            evidence=evidence,
        )

    return ablation


def _depth(s: FailedTransfer) -> Ablation | None:
    rule = s.tree["parameterization"].get("depth")
    if rule is None or s.base.depth == s.large.depth:
        return None
    other = "completep" if rule == "depth_mup" else "depth_mup"
    return Ablation(
        name="depth",
        change=f"the depth rule {other} instead of {rule}",
        cause=f"the depth rule {rule} scales the residual branches wrongly",
        overrides={"parameterization.depth": other},
        evidence="the residual branches have no rule for the depth" if rule == "none" else "",
    )


def _decay(s: FailedTransfer) -> Ablation | None:
    rule = s.tree["parameterization"].get("decay")
    if not s.tree["optimizer"].get("weight_decay"):
        return None
    if rule in (None, "independent"):
        return Ablation(
            name="decay",
            change="no weight decay",
            cause="the weight decay moves the optimum as the model grows",
            overrides={"optimizer.weight_decay": 0.0},
        )
    hidden = [p for p in s.parameters if p.role == Role.HIDDEN] or list(s.parameters)
    base, large = (median(getattr(p, k).weight_decay for p in hidden) for k in ("base", "target"))
    kept = base / 2.0 ** s.best_log2.get("weight_decay", 0.0)
    evidence = (
        f"a step removes {base:.3g} of a hidden weight at the base and {large:.3g} at {s.large}"
    )
    return Ablation(
        name="decay",
        change=f"weight decay independent of the learning rate, {base:.3g} a step as at the base",
        cause=f"the weight decay is {rule}: it follows the learning rate of each parameter",
        overrides={"parameterization.decay": "independent", "optimizer.weight_decay": kept},
        evidence=evidence if abs(math.log2(large / base)) > EXPONENT_TOLERANCE else "",
    )


def has_eps(tree: Mapping[str, Any]) -> bool:
    """Whether a configuration's optimizer has an eps that plays a part."""
    optimizer = tree["optimizer"]
    return bool(optimizer.get("eps")) and not optimizer.get("atan2")


def _epsilon(s: FailedTransfer) -> Ablation | None:
    if not has_eps(s.tree):
        return None
    optimizer, rule = s.tree["optimizer"], s.tree["parameterization"].get("epsilon")
    eps, evidence = optimizer["eps"], []
    if rule == "fixed":
        evidence.append("eps is the same at all sizes while gradients shrink")
    measured = not any(map(math.isnan, s.below_eps))
    if measured and (evidence or max(s.below_eps) >= EPS_FRACTION):
        fractions = (
            f"{100 * fraction:.3g} % of entries at {size}"
            for size, fraction in zip((s.base, s.large), s.below_eps, strict=True)
        )
        evidence.append(f"eps exceeds the root of the second moment for {' and '.join(fractions)}")
    change, overrides = f"an eps 2^-10 times {eps:g}", {"optimizer.eps": eps * 2.0**-10}
    if "atan2" in optimizer:
        change, overrides = "steps by atan2, which needs no eps", {"optimizer.atan2": True}
    return Ablation(
        name="epsilon",
        change=change,
        cause="gradients shrink below the optimizer's eps as the model grows",
        overrides=overrides,
        evidence="; ".join(evidence),
    )


def _attention(s: FailedTransfer) -> Ablation | None:
    if s.attention is None or s.attention[0].head_size == s.attention[1].head_size:
        return None
    base, large = s.attention
    power = -math.log(large.logit / base.logit) / math.log(large.head_size / base.head_size)
    if abs(power - 1) <= EXPONENT_TOLERANCE:
        return None
    return Ablation(
        name="attention",
        change="attention logits divided by the head size",
        cause="attention logits grow with the head size",
        overrides=_adjusted(s, attention=round(1 - power, 3), head_size=base.head_size),
        evidence=f"heads grow from {base.head_size} to {large.head_size}, and the logits' factor "
        f"follows the power {-power:.2f} of that, not -1",
    )


def _switch(name: str, prefix: str, cause: str, evidence: str) -> MakeAblation:
    """An option of the model, by the prefix of its key, that is on and is turned off."""

    def ablation(s: FailedTransfer) -> Ablation | None:
        keys = [k for k, value in s.tree["model"].items() if value is True and k.startswith(prefix)]
        if not keys:
            return None
        key = f"model.{keys[0]}"
        return Ablation(
            name=name, change=f"{key}=false", cause=cause, overrides={key: False}, evidence=evidence
        )

    return ablation


def _warmup(s: FailedTransfer) -> Ablation | None:
    fraction = s.tree["train"]["warmup"]
    longer = min(0.5, max(0.25, 2 * fraction))
    if longer <= fraction:
        return None
    return Ablation(
        name="warmup",
        change=f"a warm-up over {longer:g} of the steps",
        cause="the edge of stability keeps the learning rate low: the warm-up is too short",
        overrides={"train.warmup": longer},
        evidence=_edge(s),
    )


def _stability(s: FailedTransfer) -> Ablation | None:
    if s.tree["train"].get("clip") is not None:
        return None
    return Ablation(
        name="stability",
        change="gradients clipped to norm 1",
        cause="the edge of stability keeps the learning rate low: large gradients end runs",
        overrides={"train.clip": 1.0},
        evidence=_edge(s),
    )


def _edge(s: FailedTransfer) -> str:
    """How close the optimum is to rates that diverge, where it is close at either size."""
    if min(s.distances_to_divergence) > EDGE_DISTANCE:
        return ""
    words = (
        f"{distance:.2g} at {size}" if math.isfinite(distance) else f"none diverges at {size}"
        for size, distance in zip((s.base, s.large), s.distances_to_divergence, strict=True)
    )
    return "distance in log2 from the optimum to the first rate that diverges: " + "; ".join(words)


def _horizon(s: FailedTransfer) -> Ablation:
    steps = s.tree["train"]["steps"]
    return Ablation(
        name="horizon",
        change=f"{2 * steps} steps",
        cause="the runs are too short for the optimum to have settled",
        overrides={"train.steps": 2 * steps},
    )


def _batch(s: FailedTransfer) -> Ablation | None:
    batch = s.tree["train"]["batch_size"]
    if batch == 1:
        return None
    return Ablation(
        name="batch",
        change=f"batches of {batch // 2}",
        cause="the batch size exceeds the critical batch size of one of the models",
        overrides={"train.batch_size": batch // 2},
    )


ABLATIONS: Mapping[str, MakeAblation] = {
    "rules": _rules,
    **{str(role): _role(role) for role in ROLE_WORDS},
    "depth": _depth,
    "decay": _decay,
    "epsilon": _epsilon,
    "attention": _attention,
    "gains": _switch(
        "gains", "norm_gain", "the norms' gains are trained", "the norms have trainable gains"
    ),
    "tied": _switch(
        "tied",
        "tie",
        "the embedding and the readout share their weights",
        "the embedding and the readout are tied",
    ),
    "warmup": _warmup,
    "stability": _stability,
    "horizon": _horizon,
    "batch": _batch,
}


def applicable_ablations(s: FailedTransfer, only: Sequence[str] | None = None) -> list[Ablation]:
    """The ablations that apply, those with evidence first; `only` names those wanted."""
    made = [make(s) for name, make in ABLATIONS.items() if not only or name in only]
    return sorted((one for one in made if one is not None), key=lambda one: not one.evidence)
