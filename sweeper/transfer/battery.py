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

DEVIATES = 0.1
"""Exponents that differ by less from muP's are taken as equal."""
MATTERS = 0.01
"""From this share of entries below eps on, eps is taken to hold training back."""
NEAR_EDGE = 1.0
"""An optimum within this, in log2, of a rate that diverges is at the edge of stability."""
ROLES = {
    Role.EMBEDDING: "the embedding's",
    Role.HIDDEN: "the hidden layers'",
    Role.READOUT: "the readout's",
    Role.VECTOR: "the gains' and biases'",
}


@dataclass(frozen=True, kw_only=True)
class Head:
    """Attention at one size: the size of a head, and the factor of q k^T."""

    size: int
    logit: float


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What is known of a transfer that fails before anything more is trained.

    `tree` is the study's resolved configuration and `best_log2` its optimum. `rows` are the
    parameters with their exponents, read between `base` and `large`; empty when these are
    equally wide. `heads` is the attention at both sizes, None without any. `margins`, at base
    and large, say how far in log2 the optimum lies below the first rate that diverged; +inf
    where none did. `below_eps`, likewise, is the share of entries whose root of the second
    moment is below the optimizer's eps; NaN where it was not measured.
    """

    tree: Mapping[str, Any]
    best_log2: Log2Hps
    base: Size
    large: Size
    parameters: Sequence[PlannedParameter]
    rows: Sequence[Explained] = ()
    heads: tuple[Head, Head] | None = None
    margins: tuple[float, float] = (math.inf, math.inf)
    below_eps: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One change of the configuration, by dotted keys, and what it would mean if that helps.

    `change` says in words what is changed, `cause` what is then the cause of the failure, and
    `seen` what speaks for it without training; empty when nothing does.
    """

    name: str
    change: str
    cause: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    seen: str = ""

    def tree(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """`tree` with the change; the original is left as it is."""
        found = dict(tree)
        for key, value in self.overrides.items():
            group, _, name = key.partition(".")
            found[group] = {**found[group], name: value} if name else value
        return found


def deviations(rows: Sequence[Explained]) -> dict[Role, Change]:
    """By role, the powers that a scheme's rules lack to muP's; roles that agree are left out.

    muP's exponents (Everett et al., Table 1, with erratum E1, docs/errata.md; full alignment) are
    first shifted to the scheme's own multiplier, so that schemes which train alike do not deviate.
    """
    found: dict[Role, Change] = {}
    for role in ROLES:
        mine = [_lacks(row, role) for row in rows if row.parameter.role == role]
        if not mine:
            continue
        b, c = (round(fmean(values), 3) + 0.0 for values in zip(*mine, strict=True))
        if max(abs(b), abs(c)) > DEVIATES:
            found[role] = Change(b=b, c=c)
    return found


def _lacks(row: Explained, role: Role) -> tuple[float, float]:
    """(b, c) of muP less those of one parameter."""
    update = Update(row.parameter.update)
    plain = Role.EMBEDDING if role is Role.VECTOR else role
    mup = exponents(MUP, plain, update, "full")
    there = shift(mup, row.a - mup.a, update)
    return there.b - row.b if row.parameter.init == "normal" else 0.0, there.c - row.c


def _adjusted(s: Situation, **changes: Any) -> dict[str, Any]:
    """The override that wraps the scheme."""
    own = dict(s.tree["parameterization"])
    space = own.pop("space")
    made = {k: asdict(v) if isinstance(v, Change) else v for k, v in changes.items()}
    target = plugin_target("parameterization", "adjusted")
    return {"parameterization": {TARGET: target, "scheme": own, **made, "space": space}}


def _powers(change: Change) -> str:
    parts = [("init std", change.b), ("learning rate", change.c)]
    return " and ".join(f"{name} times m^{-value:+g}" for name, value in parts if abs(value) > 1e-9)


def _rules(s: Situation) -> Ablation | None:
    found = deviations(s.rows)
    if len(found) < 2:
        return None
    told = "; ".join(f"{ROLES[role]} {_powers(change)}" for role, change in found.items())
    return Ablation(
        name="rules",
        change=f"muP's rules for all parameters ({told}; m is the growth of the width)",
        cause="the parameterization does not rescale its parameters with the width as muP does",
        overrides=_adjusted(s, **{str(role): change for role, change in found.items()}),
        seen=f"{len(found)} of the roles of parameters follow other powers of the width than muP",
    )


def _role(role: Role) -> Callable[[Situation], Ablation | None]:
    """The rule of muP for one role, where the scheme has another."""

    def ablation(s: Situation) -> Ablation | None:
        change = deviations(s.rows).get(role)
        seen = f"muP has its {_powers(change)}" if change else ""
        if change is None:
            if role is not Role.EMBEDDING or not s.rows:
                return None
            # u-muP paper, A.3: muP's own rule for the embedding is the doubtful one.
            change = Change(c=0.5)
        return Ablation(
            name=str(role),
            change=f"{ROLES[role]} {_powers(change)} (m is the growth of the width)",
            cause=f"{ROLES[role]} rule for the width is wrong",
            overrides=_adjusted(s, **{str(role): change}),
            seen=seen,
        )

    return ablation


def _depth(s: Situation) -> Ablation | None:
    rule = s.tree["parameterization"].get("depth")
    if rule is None or s.base.depth == s.large.depth:
        return None
    other = "completep" if rule == "depth_mup" else "depth_mup"
    return Ablation(
        name="depth",
        change=f"the depth rule {other} instead of {rule}",
        cause=f"residual branches follow the depth by the rule {rule}",
        overrides={"parameterization.depth": other},
        seen="the residual branches have no rule for the depth" if rule == "none" else "",
    )


def _decay(s: Situation) -> Ablation | None:
    strength, rule = (
        s.tree["optimizer"].get("weight_decay"),
        s.tree["parameterization"].get("decay"),
    )
    if not strength:
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
    seen = f"a step removes {base:.3g} of a hidden weight at the base and {large:.3g} at {s.large}"
    return Ablation(
        name="decay",
        change=f"weight decay independent of the learning rate, {base:.3g} a step as at the base",
        cause=f"the weight decay is {rule}: it follows the learning rate of each parameter",
        overrides={"parameterization.decay": "independent", "optimizer.weight_decay": kept},
        seen=seen if abs(math.log2(large / base)) > DEVIATES else "",
    )


def has_eps(tree: Mapping[str, Any]) -> bool:
    """Whether a configuration's optimizer has an eps that plays a part."""
    optimizer = tree["optimizer"]
    return bool(optimizer.get("eps")) and not optimizer.get("atan2")


def _epsilon(s: Situation) -> Ablation | None:
    if not has_eps(s.tree):
        return None
    optimizer, rule = s.tree["optimizer"], s.tree["parameterization"].get("epsilon")
    eps, seen = optimizer["eps"], []
    if rule == "fixed":
        seen.append("eps is the same at all sizes while gradients shrink")
    if seen or max(s.below_eps) >= MATTERS:
        seen += _held_back(s)
    change, overrides = f"eps 2^-10 of {eps:g}", {"optimizer.eps": eps * 2.0**-10}
    if "atan2" in optimizer:
        change, overrides = "steps by atan2, which need no eps", {"optimizer.atan2": True}
    return Ablation(
        name="epsilon",
        change=change,
        cause="gradients shrink below the optimizer's eps as the model grows",
        overrides=overrides,
        seen="; ".join(seen),
    )


def _held_back(s: Situation) -> list[str]:
    """What was measured of eps, if it was."""
    if any(map(math.isnan, s.below_eps)):
        return []
    shares = (
        f"{100 * share:.3g} % of entries at {size}"
        for size, share in zip((s.base, s.large), s.below_eps, strict=True)
    )
    return [f"eps exceeds the root of the second moment for {' and '.join(shares)}"]


def _attention(s: Situation) -> Ablation | None:
    if s.heads is None or s.heads[0].size == s.heads[1].size:
        return None
    base, large = s.heads
    power = -math.log(large.logit / base.logit) / math.log(large.size / base.size)
    if abs(power - 1) <= DEVIATES:
        return None
    return Ablation(
        name="attention",
        change="attention's logits over the head size",
        cause="attention's logits grow with the head size",
        overrides=_adjusted(s, attention=round(1 - power, 3), head_size=base.size),
        seen=f"heads grow from {base.size} to {large.size}; their logits shrink as its power "
        f"{-power:.2f}, not -1",
    )


def _switch(
    name: str, starts: str, cause: str, seen: str
) -> Callable[[Situation], Ablation | None]:
    """A yes of the model, by the first letters of its key, turned into a no."""

    def ablation(s: Situation) -> Ablation | None:
        keys = [k for k, value in s.tree["model"].items() if value is True and k.startswith(starts)]
        if not keys:
            return None
        key = f"model.{keys[0]}"
        return Ablation(
            name=name, change=f"{key}=false", cause=cause, overrides={key: False}, seen=seen
        )

    return ablation


def _warmup(s: Situation) -> Ablation | None:
    share = s.tree["train"]["warmup"]
    longer = min(0.5, max(0.25, 2 * share))
    if longer <= share:
        return None
    return Ablation(
        name="warmup",
        change=f"a warm-up over {longer:g} of the steps",
        cause="the optimum is held down by the edge of stability: the warm-up is too short",
        overrides={"train.warmup": longer},
        seen=_edge(s),
    )


def _stability(s: Situation) -> Ablation | None:
    if s.tree["train"].get("clip") is not None:
        return None
    return Ablation(
        name="stability",
        change="gradients clipped to norm 1",
        cause="the optimum is held down by the edge of stability: large gradients throw runs off",
        overrides={"train.clip": 1.0},
        seen=_edge(s),
    )


def _edge(s: Situation) -> str:
    """How close the optimum is to rates that diverge, where it is close at either size."""
    if min(s.margins) > NEAR_EDGE:
        return ""
    told = (
        f"by {margin:.2g} at {size}" if math.isfinite(margin) else f"none diverges at {size}"
        for size, margin in zip((s.base, s.large), s.margins, strict=True)
    )
    return f"the optimum lies below the first rate that diverges, in log2: {', '.join(told)}"


def _horizon(s: Situation) -> Ablation:
    steps = s.tree["train"]["steps"]
    return Ablation(
        name="horizon",
        change=f"{2 * steps} steps",
        cause="the runs are too short for the optimum to have settled",
        overrides={"train.steps": 2 * steps},
    )


def _batch(s: Situation) -> Ablation | None:
    batch = s.tree["train"]["batch_size"]
    return (
        Ablation(
            name="batch",
            change=f"batches of {batch // 2}",
            cause="the batch is beyond the critical size of one of the models",
            overrides={"train.batch_size": batch // 2},
        )
        if batch > 1
        else None
    )


BATTERY: Mapping[str, Callable[[Situation], Ablation | None]] = {
    "rules": _rules,
    **{str(role): _role(role) for role in ROLES},
    "depth": _depth,
    "decay": _decay,
    "epsilon": _epsilon,
    "attention": _attention,
    "gains": _switch(
        "gains", "norm_gain", "the norms' gains train", "the norms have trainable gains"
    ),
    "tied": _switch(
        "tied", "tie", "embedding and readout are one", "embedding and readout are tied"
    ),
    "warmup": _warmup,
    "stability": _stability,
    "horizon": _horizon,
    "batch": _batch,
}
"""Every ablation by name; each says of a situation what it would change, if it applies."""


def ablations(s: Situation, only: Sequence[str] | None = None) -> list[Ablation]:
    """Those that apply, what something speaks for first; `only` names those wanted."""
    wanted = [make(s) for name, make in BATTERY.items() if not only or name in only]
    return sorted((e for e in wanted if e is not None), key=lambda e: not e.seen)
