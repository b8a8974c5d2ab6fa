"""The ablations that look for the cause of a transfer that fails: one change each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from sweeper.decide.transfer import Answer, SizeVerdict
from sweeper.plan.explain import Explained
from sweeper.plan.plan import PlannedParameter
from sweeper.records import NOT_WRITTEN
from sweeper.registry import TARGET, plugin_name, plugin_target, takes_eps, with_names
from sweeper.scaling.abc import MUP, exponents, shift
from sweeper.scaling.relative import Change
from sweeper.scaling.spec import Role, Update
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderRule, Size, SizeCurve
from sweeper.trial import Log2Hps

EXPONENT_TOLERANCE = 0.1
"""Exponents of the width that differ by at most this are taken as equal."""
EPS_FRACTION = 0.01
"""From this fraction of entries below eps on, eps is taken to hold training back."""
EDGE_DISTANCE = 1.0
"""An optimum within this, in log2, of a rate that diverges is at the edge of stability."""
SCALED_ROLES = (Role.EMBEDDING, Role.HIDDEN, Role.READOUT, Role.VECTOR)
"""Roles whose rule for the width may be wrong."""


@dataclass(frozen=True, kw_only=True)
class HeadScale:
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
    attention: tuple[HeadScale, HeadScale] | None = None
    distances_to_divergence: tuple[float, float] = (math.inf, math.inf)
    below_eps: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One change of the configuration, by dotted keys.

    `known` are the values that its sentences need, by name, and `seen` whether something speaks
    for it without training. The sentences are for the record: `change` is what is changed, `cause`
    what is the cause of the failure if the change helps, `evidence` what was seen.
    """

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict, metadata=NOT_WRITTEN, compare=False)
    seen: bool = field(default=False, metadata=NOT_WRITTEN, compare=False)
    change: str = ""
    cause: str = ""
    evidence: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; plugins have their stable names."""
        return {
            "name": self.name,
            "change": self.change,
            "cause": self.cause,
            "overrides": with_names("parameterization", self.overrides),
            "evidence": self.evidence,
        }

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
    """By role, the powers of the width that make rules muP's; those that agree are left out."""
    deviations: dict[Role, Change] = {}
    for role in SCALED_ROLES:
        changes = [_deviation(row, role) for row in rows if row.parameter.role == role]
        if not changes:
            continue
        # + 0.0 turns -0.0 into 0.0, which would be shown with a sign.
        b, c = (round(fmean(values), 3) + 0.0 for values in zip(*changes, strict=True))
        if max(abs(b), abs(c)) > EXPONENT_TOLERANCE:
            deviations[role] = Change(b=b, c=c)
    return deviations


def _deviation(row: Explained, role: Role) -> tuple[float, float]:
    """(b, c) of muP less those of one parameter.

    A layer may be split differently into multiplier, init and rate and train the same. So muP's
    exponents (Everett et al., Table 1, with erratum E1 of docs/papers.md; full alignment) are
    first shifted to the parameter's multiplier.
    """
    update = Update(row.parameter.update)
    # A gain or a bias sums over nothing, as an embedding: it has the embedding's exponents.
    plain = Role.EMBEDDING if role is Role.VECTOR else role
    mup = exponents(MUP, plain, update, "full")
    target = shift(mup, row.a - mup.a, update)
    # What is not drawn (ones, zeros, kept) has no std that a power could change.
    return target.b - row.b if row.parameter.init == "normal" else 0.0, target.c - row.c


def _adjusted(s: FailedTransfer, **changes: Any) -> dict[str, Any]:
    """The override that wraps the parameterization in `scaling.relative.Adjusted`."""
    # The space is the config's, beside the plugin's own fields: it stays on the outside.
    parameterization = dict(s.tree["parameterization"])
    space = parameterization.pop("space")
    plain = {k: asdict(v) if isinstance(v, Change) else v for k, v in changes.items()}
    target = plugin_target("parameterization", "adjusted")
    return {
        "parameterization": {
            TARGET: target,
            "parameterization": parameterization,
            **plain,
            "space": space,
        }
    }


def _rules(s: FailedTransfer) -> Ablation | None:
    deviations = mup_deviations(s.rows)
    # A single deviation is that role's ablation: together they are tried only where there are two.
    if len(deviations) < 2:
        return None
    return Ablation(
        name="rules",
        overrides=_adjusted(s, **{str(role): change for role, change in deviations.items()}),
        known={"changes": deviations},
        seen=True,
    )


def _role(role: Role) -> MakeAblation:
    """The rule of muP for one role, where the parameterization has another."""

    def ablation(s: FailedTransfer) -> Ablation | None:
        change = mup_deviations(s.rows).get(role)
        seen = change is not None
        if change is None:
            if role is not Role.EMBEDDING or not s.rows:
                return None
            # u-muP paper, A.3: muP's own rule for the embedding is the doubtful one.
            change = Change(c=0.5)
        return Ablation(
            name=str(role),
            overrides=_adjusted(s, **{str(role): change}),
            known={"changes": {role: change}},
            seen=seen,
        )

    return ablation


def _depth(s: FailedTransfer) -> Ablation | None:
    rule = s.tree["parameterization"].get("depth")
    if rule is None or s.base.depth == s.large.depth:
        return None
    # The two differ in the power of the depth, 1 and 1/2: the one it lacks is tried.
    other = "completep" if rule == "depth_mup" else "depth_mup"
    return Ablation(
        name="depth",
        overrides={"parameterization.depth": other},
        known={"rule": rule, "other": other},
        seen=rule == "none",
    )


def _decay(s: FailedTransfer) -> Ablation | None:
    rule = s.tree["parameterization"].get("decay")
    if not s.tree["optimizer"].get("weight_decay"):
        return None
    # No rule of the decay to change: asked is whether decay matters at all.
    if rule in (None, "independent"):
        return Ablation(name="decay", overrides={"optimizer.weight_decay": 0.0})
    hidden = [p for p in s.parameters if p.role == Role.HIDDEN] or list(s.parameters)
    base, large = (median(getattr(p, k).weight_decay for p in hidden) for k in ("base", "target"))
    # A trial multiplies the decay by its own factor: taken out, so that the base decays as it did.
    kept = base / 2.0 ** s.best_log2.get("weight_decay", 0.0)
    return Ablation(
        name="decay",
        overrides={"parameterization.decay": "independent", "optimizer.weight_decay": kept},
        known={"rule": rule, "base": base, "large": large, "size": s.large},
        seen=abs(math.log2(large / base)) > EXPONENT_TOLERANCE,
    )


def has_eps(tree: Mapping[str, Any]) -> bool:
    """Whether a configuration's optimizer has an eps that plays a part, and that it names."""
    optimizer = tree["optimizer"]
    name = plugin_name("optimizer", optimizer.get(TARGET, ""))
    return bool(optimizer.get("eps")) and takes_eps(name, optimizer)


def _epsilon(s: FailedTransfer) -> Ablation | None:
    if not has_eps(s.tree):
        return None
    optimizer = s.tree["optimizer"]
    fixed = s.tree["parameterization"].get("epsilon") == "fixed"
    measured = not any(map(math.isnan, s.below_eps))
    matters = measured and (fixed or max(s.below_eps) >= EPS_FRACTION)
    # A command's script steps by itself: what its plan gives it is eps.
    by_atan2 = "atan2" in optimizer and not s.tree.get("runner", {}).get("command")
    # Small beside any gradient that eps held back, and not 0: entries would divide 0 by 0.
    smaller = {"optimizer.eps": optimizer["eps"] * 2.0**-10}
    return Ablation(
        name="epsilon",
        overrides={"optimizer.atan2": True} if by_atan2 else smaller,
        known={
            "eps": optimizer["eps"],
            "fixed": fixed,
            "below_eps": dict(zip((s.base, s.large), s.below_eps, strict=True)) if matters else {},
        },
        seen=fixed or matters,
    )


def _attention(s: FailedTransfer) -> Ablation | None:
    if s.attention is None or s.attention[0].head_size == s.attention[1].head_size:
        return None
    base, large = s.attention
    # The logits' factor goes as head_size^-power. It is 1 in muP and 1/2 in usual attention.
    power = -math.log(large.logit / base.logit) / math.log(large.head_size / base.head_size)
    if abs(power - 1) <= EXPONENT_TOLERANCE:
        return None
    return Ablation(
        name="attention",
        overrides=_adjusted(s, attention=round(1 - power, 3), head_size=base.head_size),
        known={"heads": (base.head_size, large.head_size), "power": -power},
        seen=True,
    )


def _switch(name: str, prefix: str) -> MakeAblation:
    """An option of the model, by the prefix of its key, that is on and is turned off."""

    def ablation(s: FailedTransfer) -> Ablation | None:
        keys = [k for k, value in s.tree["model"].items() if value is True and k.startswith(prefix)]
        if not keys:
            return None
        return Ablation(name=name, overrides={f"model.{keys[0]}": False}, seen=True)

    return ablation


def _warmup(s: FailedTransfer) -> Ablation | None:
    fraction = s.tree["train"]["warmup"]
    # Twice as long or a quarter of the run; beyond half nothing is left to train.
    longer = min(0.5, max(0.25, 2 * fraction))
    if longer <= fraction:
        return None
    return Ablation(name="warmup", overrides={"train.warmup": longer}, **_edge(s))


def _stability(s: FailedTransfer) -> Ablation | None:
    if s.tree["train"].get("clip") is not None:
        return None
    return Ablation(name="stability", overrides={"train.clip": 1.0}, **_edge(s))


def _edge(s: FailedTransfer) -> dict[str, Any]:
    """How far the optimum is from rates that diverge; seen where it is close, at either size."""
    distances = dict(zip((s.base, s.large), s.distances_to_divergence, strict=True))
    return {
        "known": {"distances": distances},
        "seen": min(s.distances_to_divergence) <= EDGE_DISTANCE,
    }


def _horizon(s: FailedTransfer) -> Ablation:
    steps = s.tree["train"]["steps"]
    return Ablation(name="horizon", overrides={"train.steps": 2 * steps})


def _batch(s: FailedTransfer) -> Ablation | None:
    batch = s.tree["train"]["batch_size"]
    if batch == 1:
        return None
    return Ablation(name="batch", overrides={"train.batch_size": batch // 2})


ABLATIONS: Mapping[str, MakeAblation] = {
    "rules": _rules,
    **{str(role): _role(role) for role in SCALED_ROLES},
    "depth": _depth,
    "decay": _decay,
    "epsilon": _epsilon,
    "attention": _attention,
    "gains": _switch("gains", "norm_gain"),
    "tied": _switch("tied", "tie"),
    "warmup": _warmup,
    "stability": _stability,
    "horizon": _horizon,
    "batch": _batch,
}


def applicable_ablations(s: FailedTransfer, only: Sequence[str] | None = None) -> list[Ablation]:
    """The ablations that apply, those with evidence first; `only` names those wanted."""
    made = (make(s) for name, make in ABLATIONS.items() if not only or name in only)
    applicable = [ablation for ablation in made if ablation is not None]
    # Of equal evidence in the order of ABLATIONS: width first, then depth, then all else.
    return sorted(applicable, key=lambda ablation: not ablation.seen)


# What ablations of a failing transfer show: how much of the failure each explains.


MAX_SEVERITY = 16.0
"""A failure counts at most this many times its threshold: a fraction of infinity says nothing."""
CAUSE_FRACTION = 0.5
"""From this fraction on, an ablation explains the failure; from half of it on, a part of it."""


@dataclass(frozen=True, kw_only=True)
class AblationResult:
    """What an ablation showed at the large size: its verdicts without and with the change.

    `explained` is the fraction of the failure that is gone with the change, NaN when the
    ablation could not be run: `error` then says why. `sentence` is the result in words.
    """

    sentence: str = ""
    ablation: Ablation
    explained: Estimate
    before: SizeVerdict
    after: SizeVerdict | None = None
    error: str = ""

    @property
    def doubtful(self) -> bool:
        """Whether by its interval it may explain nothing."""
        return self.explained.low <= 0

    @property
    def is_cause(self) -> bool:
        """Whether it explains the failure; in doubt too."""
        return self.explained.value >= CAUSE_FRACTION


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All results, the one that explains most first. `answer` is the verdict on the transfer.

    `conclusion` says in words what was found.
    """

    conclusion: str = ""
    axis: str
    answer: Answer
    results: tuple[AblationResult, ...] = ()
    todo: str = ""


def severity(shift: float, loss_gap: float, loss: float, rule: LadderRule) -> float:
    """The larger of shift (log2) and loss gap (nats), each in multiples of its threshold.

    At most `MAX_SEVERITY`, which also stands for a value that is NaN: every run diverged.
    """
    allowed = rule.allowed_gap(loss)
    gap_ratio = loss_gap / allowed if allowed else MAX_SEVERITY * (loss_gap > 0)
    ratios = (abs(shift) / rule.max_shift, gap_ratio)
    # Python's max of a NaN depends on the order.
    return min(MAX_SEVERITY, max(MAX_SEVERITY if math.isnan(r) else r for r in ratios))


def explained_fraction(before: SizeVerdict, after: SizeVerdict, rule: LadderRule) -> Estimate:
    """The fraction of the failure that is gone: 1 less `severity` after over before, at least 0.

    The interval is that of `after` alone: `before` is known to fail beyond its noise.
    """
    whole = severity(before.shift_log2.value, before.loss_gap.value, before.loss.value, rule)
    shift, gap = after.shift_log2, after.loss_gap
    # |shift| over its interval: 0 where that holds 0, else the nearer end; at most the farther one.
    least_shift = max(0.0, shift.low, -shift.high)
    most_shift = max(abs(shift.low), abs(shift.high))
    # The worst case of both explains least, the best case of both most.
    value, low, high = (
        min(1.0, max(0.0, 1 - severity(one_shift, one_gap, after.loss.value, rule) / whole))
        for one_shift, one_gap in (
            (shift.value, gap.value),
            (most_shift, gap.high),
            (least_shift, max(0.0, gap.low)),
        )
    )
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def judge_ablation(
    ablation: Ablation, before: SizeVerdict, after: SizeVerdict | str, rule: LadderRule
) -> AblationResult:
    """The result; `after` is the verdict with the change, or why there is none."""
    if isinstance(after, str):
        unknown = Estimate(value=math.nan, low=0.0, high=1.0)
        return AblationResult(ablation=ablation, explained=unknown, before=before, error=after)
    fraction = explained_fraction(before, after, rule)
    return AblationResult(ablation=ablation, explained=fraction, before=before, after=after)


def rank(results: Sequence[AblationResult]) -> tuple[AblationResult, ...]:
    """What explains most first; of equals, what has evidence, then the lower loss; untried last."""

    def order(result: AblationResult) -> tuple[bool, float, bool, float]:
        if result.after is None:
            return True, 0.0, False, 0.0
        loss = result.after.loss.value
        return False, -result.explained.value, not result.ablation.seen, loss

    return tuple(sorted(results, key=order))


def distance_to_divergence(curve: SizeCurve) -> float:
    """How far above the curve's lowest point a rate first diverged, in log2; +inf: none did."""
    means = {eta: sum(losses) / len(losses) for eta, losses in sorted(curve.losses.items())}
    best = min(means, key=lambda eta: means[eta])
    diverged = [eta for eta, mean in means.items() if eta > best and math.isinf(mean)]
    return min(diverged) - best if diverged and math.isfinite(means[best]) else math.inf
