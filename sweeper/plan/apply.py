"""A plan's settings on a module of anyone's: initial weights, and groups for a torch optimizer.

Everything goes by parameter name, so that copies, compiled, wrapped and sharded modules are all
served; nothing is ever kept on a tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sweeper.errors import BadInput, ConfigError
from sweeper.models.initial_values import norm_like, normal, padding_rows
from sweeper.plan.muon_conventions import CONVENTIONS, NORMUON, Performed, asked, documented
from sweeper.scaling.prescription import AbsorbedParam
from sweeper.scaling.spec import WRAPPERS, Update, matching, with_layer

MAX_NAMES = 20

Matched = list[tuple[AbsorbedParam, nn.Parameter]]


def unwrapped(name: str) -> str:
    """`name` without the parts that wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def match_parameters(
    settings: Sequence[AbsorbedParam], model: nn.Module, differs: Sequence[str] = ()
) -> Matched:
    """Every parameter of `model`, in its order, beside its settings.

    A name that the plan has as it stands wins; otherwise wrappers are taken off on both sides.
    BadInput lists parameters that only the model or only the plan has, and other shapes where
    the plan's name matches none of the patterns `differs`.
    """
    if not settings:
        raise BadInput(
            "the plan is of a command that scales by itself: it holds hyperparameters and no "
            "parameter. For one that init_ and param_groups take, search with rules, as in "
            "parameterization=mup, and give the command {plan}"
        )
    free = matching("differs", differs, [setting.name for setting in settings])
    exact = {setting.name: setting for setting in settings}
    cores: dict[str, list[AbsorbedParam]] = {}
    for setting in settings:
        cores.setdefault(unwrapped(setting.name), []).append(setting)
    matched: Matched = []
    unknown, reshaped, unmatched = [], [], set(exact)
    for name, parameter in model.named_parameters():
        options = [exact[name]] if name in exact else cores.get(unwrapped(name), [])
        # None, or several that only wrappers tell apart, or one that another name has taken.
        if len(options) != 1 or options[0].name not in unmatched:
            unknown.append(f"{name} {list(parameter.shape)}")
            continue
        unmatched.discard(options[0].name)
        if tuple(parameter.shape) != options[0].shape and options[0].name not in free:
            reshaped.append(f"{name} {list(parameter.shape)}, planned {list(options[0].shape)}")
        matched.append((options[0], parameter))
    kinds = {
        "the plan does not know these parameters of the model": unknown,
        "the model does not have these parameters of the plan": [
            n for n in exact if n in unmatched
        ],
        "these parameters have another shape": reshaped,
    }
    if outer := _around(list(unmatched), [text.rpartition(" [")[0] for text in unknown]):
        raise BadInput(
            f"the plan was made of a module around this model: all its names begin with {outer!r}, "
            "and the model's do not. Let that module inherit from the model's class, "
            "which keeps the names, and search again"
        )
    if problems := [
        f"{what}: {first_few(names, MAX_NAMES)}" for what, names in kinds.items() if names
    ]:
        hint = "Is it the model, width and depth that the plan was made for?"
        if reshaped:
            name = reshaped[0].partition(" ")[0]
            hint += f' What may differ, such as positions, is named: differs=["{name}"]'
        raise BadInput(". ".join([*problems, hint]))
    return matched


def _around(planned: Sequence[str], there: Sequence[str]) -> str:
    """The one prefix by which all names of the plan differ from the model's, else ""."""
    if not planned or not there or len(planned) != len(there):
        return ""
    outer = min(planned, key=len).removesuffix(min(there, key=len))
    return outer if outer and {outer + name for name in there} == {*planned} else ""


@torch.no_grad()
def init_(
    settings: Sequence[AbsorbedParam], model: nn.Module, seed: int, differs: Sequence[str] = ()
) -> None:
    """Draw the parameters of `model` in place, by (seed, the plan's name) alone.

    Neither the order of modules nor sharding changes a value: each process draws the whole
    parameter (8 bytes an entry, one parameter at a time) and keeps its part of it, without any
    communication. What is kept or frozen stays as it is, and the row of a padding is 0. BadInput
    as `match_parameters`, and for parameters without memory.
    """
    matched = match_parameters(settings, model, differs)
    if empty := [setting.name for setting, parameter in matched if parameter.is_meta]:
        raise BadInput(
            f"{len(empty)} parameters are on the meta device, {empty[0]} first: "
            "call model.to_empty(device=...) before plan.init_(model)"
        )
    by_name = {setting.name: (setting, parameter) for setting, parameter in matched}
    padding = {id(model.get_parameter(name)): row for name, row in padding_rows(model).items()}
    for setting, parameter in matched:
        if setting.frozen or setting.init == "kept":
            continue
        if setting.init == "norm":
            weight, of = by_name[setting.norm_of]
            values = norm_like(_drawn(weight, of.shape, seed), parameter.shape)
        else:
            values = _drawn(setting, parameter.shape, seed)
        if (row := padding.get(id(parameter))) is not None:
            values[row] = 0
        values = values.to(parameter.dtype).to(parameter.device)
        if (mesh := getattr(parameter, "device_mesh", None)) is not None:
            # Not at the top: slow to import, and not part of every build of torch.
            from torch.distributed.tensor import DTensor, Replicate

            # All ranks drew the same, so a replica becomes shards by slicing alone.
            whole = DTensor.from_local(values, mesh, [Replicate()] * mesh.ndim, run_check=False)
            sharded: Any = parameter
            values = whole.redistribute(placements=sharded.placements)
        parameter.copy_(values)


def _drawn(setting: AbsorbedParam, shape: Sequence[int], seed: int) -> Tensor:
    return normal(setting.name, shape, seed) * setting.init_std + setting.init_mean


def param_groups(
    settings: Sequence[AbsorbedParam],
    model: nn.Module,
    lr_scale: float,
    differs: Sequence[str],
    betas: tuple[float, float] | None,
    muon: str,
    own: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Parameters of equal settings as one group; see `TransferPlan.param_groups`.

    An optimizer without eps has it 0 in all `settings`, and its own settings are `own`. `muon`
    names one of `CONVENTIONS` where the plan's matrices are Muon's.
    """
    if not lr_scale > 0:
        raise BadInput(f"lr_scale={lr_scale!r} is refused: a positive number")
    if muon and muon not in CONVENTIONS:
        raise ConfigError("muon", muon, f"one of {', '.join(CONVENTIONS)}")
    by_row = "normuon" in own
    if muon and by_row and muon not in NORMUON:
        allowed = f"{' or '.join(NORMUON)}: the plan's steps are NorMuon's"
        raise ConfigError("muon", muon, allowed)
    if muon == "normuon" and not by_row:
        allowed = "a plan with optimizer={'name': 'muon', 'normuon': 0.95}"
        raise ConfigError("muon", muon, allowed)
    _refuse_other_matrices(settings, muon)
    matched = match_parameters(settings, model, differs)
    parameters = {setting.name: parameter for setting, parameter in matched}
    groups = []
    for name, members in grouped_settings([setting for setting, _ in matched], muon):
        orthogonal = members[0].update.orthogonal
        eps, lr = members[0].eps, _rate(members[0], muon) * lr_scale
        group: dict[str, Any] = {
            "params": [parameters[setting.name] for setting in members],
            "name": name,
            "update": str(members[0].update),
            "lr": lr,
            "initial_lr": lr,
            # torch's Adafactor has the least RMS of a weight beside eps.
            **({"eps": (eps, own["rms_floor"]) if "rms_floor" in own else eps} if eps else {}),
            # torch removes lr * weight_decay of a weight; the plan says what is removed.
            "weight_decay": members[0].weight_decay / lr,
            **({} if betas is None or orthogonal else {"betas": betas}),
        }
        if muon:
            group["muon"] = muon
            if orthogonal:
                group["momentum"] = own.get("momentum", 0.95)
                if CONVENTIONS[muon].flattens == "asked":
                    group["flatten"] = _flat(members[0], muon)
                if by_row:
                    group["normuon"] = own["normuon"]
            else:
                adam = own.get("beta1", 0.9), own.get("beta2", 0.999)
                group.setdefault("betas", adam)
            group = CONVENTIONS[muon].group(group, orthogonal=orthogonal)
        groups.append(group)
    return groups


def _rate(setting: AbsorbedParam, muon: str) -> float:
    if not muon or setting.update is not Update.ORTHOGONAL:
        return setting.lr
    return setting.lr / CONVENTIONS[muon].factor_of(setting.shape, setting.matrix)


def _flat(setting: AbsorbedParam, muon: str) -> bool | None:
    if not muon or not setting.update.orthogonal:
        return False
    return CONVENTIONS[muon].flat(setting.shape, setting.matrix)


def _refuse_other_matrices(settings: Iterable[AbsorbedParam], muon: str) -> None:
    other = [s for s in settings if not s.frozen and _flat(s, muon) is None]
    if other:
        names = first_few([f"{s.name} {list(s.shape)}" for s in other])
        allowed = (
            "an implementation that makes the plan's matrices of parameters of more than two "
            f"dimensions, which {muon} does not of {names}: a convolution is one matrix "
            "[first, all others], or one for each of its groups, and experts are one each. Give "
            "muon='plain' and such an implementation, or write the parameter with two dimensions"
        )
        raise ConfigError("muon", muon, allowed)


def grouped_settings(
    settings: Iterable[AbsorbedParam], muon: str = ""
) -> list[tuple[str, list[AbsorbedParam]]]:
    """What is trained, by equal settings; a group's name is for people: `*` for layers' numbers."""
    groups: dict[tuple[str | float, ...], list[AbsorbedParam]] = {}
    for setting in settings:
        if not setting.frozen:
            rate = _rate(setting, muon)
            flat = _flat(setting, muon)
            key = (setting.update, rate, setting.eps, setting.weight_decay, bool(flat))
            groups.setdefault(key, []).append(setting)
    named = []
    for members in groups.values():
        patterns = dict.fromkeys(with_layer(setting.name, "*") for setting in members)
        named.append((", ".join(patterns), members))
    return named


RATE_TOLERANCE = 1e-3
"""Relative: schedules that multiply at every step lose some digits."""
EXACT_TOLERANCE = 1e-5
"""Relative: what nobody changes was stored as a float32 at worst."""
MAX_GROUPS = 4
SIGN_LIKE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
SPLIT = (
    'give the groups whose "update" is "orthogonal" to Muon and all others to AdamW, and check '
    "both: plan.check([muon, adamw], model)"
)
SPLIT_HELD = (
    'give the groups by their "update": "hyperball" to AdamH, "orthogonal_hyperball" to MuonH and '
    "all others to Adam, and check all that share the model: plan.check([...], model)"
)
RATE_ADVICE = (
    "Write the schedule as a factor that all groups share: "
    '`for group in optimizer.param_groups: group["lr"] = group["initial_lr"] * factor`, '
    "1 at the peak, or take torch's LambdaLR with that factor"
)


@dataclass(frozen=True)
class OptimizerGroup:
    """One of the groups of an optimizer, and what the optimizer does with it; None: not known."""

    optimizer: Optimizer
    settings: Mapping[str, Any]
    does: Performed | None

    @property
    def name(self) -> str:
        """The optimizer's class, for people."""
        return type(self.optimizer).__name__


@dataclass(frozen=True)
class Pair:
    """Settings that one of the optimizer's groups should have; `label` names them for people."""

    label: str
    planned: AbsorbedParam
    owner: OptimizerGroup

    @property
    def group(self) -> Mapping[str, Any]:
        """The group's settings."""
        return self.owner.settings

    @property
    def factor(self) -> float:
        """What the optimizer multiplies the group's rate by for a matrix of this shape."""
        does, shape = self.owner.does, (self.planned.shape, self.planned.matrix)
        if self.planned.update is not Update.ORTHOGONAL:
            return 1.0
        if does is None:  # the one that the group was made for
            made_for = str(self.group.get("muon"))
            return CONVENTIONS.get(made_for, CONVENTIONS["plain"]).factor_of(*shape)
        convention = CONVENTIONS["dion" if self.group.get("flatten") else "torch"]
        return convention.factor_of(*shape, does.factor) if does.orthogonal else 1.0

    @property
    def lr(self) -> float:
        """The planned rate, before that factor."""
        return self.planned.lr / self.factor


def check(
    settings: Sequence[AbsorbedParam],
    optimizers: Sequence[Optimizer],
    model: nn.Module | None,
    betas: tuple[float, float] | None = None,
    scale: float | None = None,
) -> list[Pair]:
    """BadInput with all that does not agree; see `TransferPlan.check`. What agrees is returned.

    `scale` is what peak rates are multiplied by, where that is known. `betas` are those that a law
    planned, if one changed them.
    """
    problems: list[str] = []
    groups = [
        OptimizerGroup(optimizer, group, documented(optimizer, group))
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    if model is None:
        pairs = _pairs_by_name(settings, groups, problems)
    else:
        pairs = _pairs_by_parameter(settings, groups, model, problems, others=scale is not None)
    updates = {setting.update for setting in settings if not setting.frozen}
    for optimizer in optimizers:
        name = type(optimizer).__name__
        # A rate of Adam's bounds a step whatever the gradient; SGD's multiplies it. The same number
        # means two things, and their powers of the width differ.
        if isinstance(optimizer, torch.optim.SGD) and updates - {Update.GRADIENT}:
            problems.append(
                f"its rates are for updates of another kind than {name}'s, which go as the "
                "gradient: make the plan with optimizer=sgd"
            )
        sign_like = isinstance(optimizer, SIGN_LIKE)
        if sign_like and Update.GRADIENT in updates:
            problems.append(
                f"its rates are for SGD, and {name}'s updates do not follow the gradient's size: "
                "make the plan with optimizer=adamw"
            )
        # Torch's Adafactor steps by shares of a weight's RMS, which fall as its initial values do.
        follows = isinstance(optimizer, torch.optim.Adafactor)
        if (follows and Update.SIGN in updates) or (sign_like and Update.PARAMETER in updates):
            kinds = ("a weight's own RMS", "alike whatever the weight")
            is_, planned = kinds if follows else kinds[::-1]
            problems.append(
                f"{name}'s updates go as {is_}, the plan's are {planned}: make the plan with "
                f"optimizer={'adafactor' if follows else 'adamw'}"
            )
    strange = [*_update_problems(pairs)]
    # A rate of another kind of step tells nothing more.
    problems += strange or _rate_problems(pairs)

    def differing(numbers: Iterable[tuple[Pair, float, float]], tolerance: float) -> str:
        """A line for each planned number that differs, of (pair, actual, planned)."""
        lines: dict[float, str] = {}
        for pair, actual, planned in numbers:
            if not isclose(actual, planned, rel_tol=tolerance):
                line = f"{_short(pair.label)} has {actual:.3g}, planned {planned:.3g}"
                lines.setdefault(planned, line)
        return first_few([*lines.values()])

    # An optimizer that has eps takes it from its groups. That of some is a pair, or else.
    eps_of_groups = ((pair, pair.group.get("eps")) for pair in pairs if pair.planned.eps)
    first = ((pair, e[0] if isinstance(e, tuple) else e) for pair, e in eps_of_groups)
    eps = ((pair, e, pair.planned.eps) for pair, e in first if isinstance(e, float))
    if wrong := differing(eps, EXACT_TOLERANCE):
        advice = "keep each group's own eps, as param_groups gives it, and set none on all"
        problems.append(f"eps is not the plan's: {wrong}; {advice}")
    if betas is not None:
        for pair in pairs:
            if pair.planned.update.orthogonal:
                continue
            actual = pair.group.get("betas")
            if actual is None or not np.allclose(actual, betas, rtol=EXACT_TOLERANCE, atol=0):
                line = f"{_short(pair.label)} has {actual}, planned {betas}"
                law = "betas are not those of the plan's law"
                problems.append(f"{law}: {line}; param_groups gives them")
                break
    if coupled := next((p for p in pairs if _is_coupled(p.owner.optimizer, p.group)), None):
        problems.append(
            f"{coupled.owner.name} adds the weight decay of {_short(coupled.label)} to the "
            "gradient (L2), where the plan's is decoupled: take torch.optim.AdamW, or SGD without "
            "momentum, or a plan without decay (optimizer={'name': ..., 'weight_decay': 0})"
        )
    elif wrong := differing(_decays(pairs, scale), RATE_TOLERANCE):
        advice = "it is the plan's decay over the group's peak rate, as param_groups gives it"
        problems.append(f"weight_decay is not the plan's: {wrong}; {advice}")
    if problems:
        raise BadInput(". ".join(["the optimizer does not train by the plan", *problems]))
    return pairs


def _pairs_by_name(
    settings: Sequence[AbsorbedParam], groups: Sequence[OptimizerGroup], problems: list[str]
) -> list[Pair]:
    waiting: dict[frozenset[str], list[list[AbsorbedParam]]] = {}
    muon = next((muon for owner in groups if (muon := owner.settings.get("muon"))), "")
    for name, members in grouped_settings(settings, muon):
        waiting.setdefault(frozenset(name.split(", ")), []).append(members)
    pairs, strange = [], []
    for index, owner in enumerate(groups):
        group = owner.settings
        name = str(group.get("name", ""))
        candidates = waiting.get(frozenset(name.split(", ")), [])
        if not candidates:
            strange.append(name or f"number {index}, without a name")
            continue
        # Groups of one name (layers that only differ in their numbers) come in the plan's order.
        members = candidates.pop(0)
        pairs.append(Pair(name, members[0], owner))
        if len(group["params"]) != len(members):
            problems.append(
                f"group {_short(name)} has {len(group['params'])} parameters, the plan "
                f"{len(members)}"
            )
    if strange:
        problems.append(
            f"these groups are not those of plan.param_groups: {first_few(strange)}; call "
            "plan.check(optimizer, model) to go by the parameters"
        )
    if lost := [
        setting.name for rest in waiting.values() for members in rest for setting in members
    ]:
        problems.append(f"these parameters are in no group of the plan's: {first_few(lost)}")
    return pairs


def _pairs_by_parameter(
    settings: Sequence[AbsorbedParam],
    groups: Sequence[OptimizerGroup],
    model: nn.Module,
    problems: list[str],
    *,
    others: bool,
) -> list[Pair]:
    """Every parameter's settings beside its group; `others` may be trained beside all of them."""
    holders: dict[int, list[OptimizerGroup]] = {}
    for owner in groups:
        for parameter in owner.settings["params"]:
            holders.setdefault(id(parameter), []).append(owner)
    pairs, lost, twice, frozen = [], [], [], []
    for setting, parameter in match_parameters(settings, model, differs=("*",)):
        own_groups = holders.pop(id(parameter), [])
        if setting.frozen:
            frozen += [setting.name] * bool(own_groups)
            continue
        lost += [setting.name] * (not own_groups)
        twice += [setting.name] * (len(own_groups) > 1)
        pairs += [Pair(setting.name, setting, owner) for owner in own_groups]
    kinds = {
        "these parameters of the model are in no group": lost,
        "these parameters are in groups more than once": twice,
        "these parameters are frozen in the plan, and in a group": frozen,
    }
    problems += [f"{problem}: {first_few(names)}" for problem, names in kinds.items() if names]
    if lost and any(setting.update.orthogonal for setting in settings):
        problems.append(SPLIT)
    # What is left was claimed by no parameter of the model.
    if holders and (lost or not others):
        problems.append(
            f"{len(holders)} parameters of its groups are not the model's: make the groups after "
            "the model is moved, wrapped or sharded"
        )
    return pairs


def _update_problems(pairs: Sequence[Pair]) -> Iterator[str]:
    wrong: dict[tuple[str, str, str], list[str]] = {}
    for pair in pairs:
        does, planned = pair.owner.does, pair.planned.update
        if does is not None and does.differs(planned):
            key = (pair.owner.name, does.description, asked(planned).description)
            wrong.setdefault(key, []).append(_short(pair.label))
    for (name, is_, wanted), labels in wrong.items():
        of_norm = any(pair.planned.update.holds_norm for pair in pairs)
        advice = SPLIT_HELD if of_norm else SPLIT
        yield f"{name}'s updates are {is_}, the plan's {wanted}: {first_few(labels)}; {advice}"
    own_kind = [p for p in pairs if p.planned.update.orthogonal or p.planned.update.holds_norm]
    for name in sorted({pair.owner.name for pair in own_kind if pair.owner.does is None}):
        warnings.warn(
            f"plan.check does not know {name}: that its updates are the plan's, and that groups "
            "are made for its factor of a matrix's shape (muon=...), is for you to see",
            stacklevel=4,
        )


def _rate_problems(pairs: Sequence[Pair]) -> list[str]:
    if not pairs:
        return []
    rates = [float(pair.group["lr"]) for pair in pairs]
    factors = [rate / pair.lr for rate, pair in zip(rates, pairs, strict=True)]
    spread = max(factors) - min(factors)
    if all(map(isfinite, factors)) and spread <= RATE_TOLERANCE * max(map(abs, factors)):
        return []
    lines: dict[float, str] = {}
    for rate, pair in zip(rates, pairs, strict=True):
        line = f"{_short(pair.label)} has {rate:.3g}, planned {pair.lr:.3g}"
        lines.setdefault(pair.lr, line)
    same = "one rate stands in all groups" if len(set(rates)) == 1 else "they differ"
    what = "the groups' learning rates are not the plan's times one factor"
    advice = RATE_ADVICE
    # Were they right for steps without a factor, or with another's, the factor is what is wrong.
    own = {p.owner.does.factor for p in pairs if p.factor != 1 and p.owner.does is not None}
    if own:
        advice = (
            f"Orthogonal updates are multiplied by {', '.join(sorted(own))} here: make the groups "
            f"for it, plan.param_groups(model, muon=...), one of {', '.join(CONVENTIONS)}. {advice}"
        )
    return [f"{what}; {same}: {first_few([*lines.values()])}. {advice}"]


def _decays(pairs: Sequence[Pair], scale: float | None) -> Iterator[tuple[Pair, float, float]]:
    # Decay goes by the group's own rate, before any factor of Muon's.
    # lr is what a schedule has made of the peak by now; weight_decay belongs to the peak. What
    # groups without `initial_lr` were multiplied by is read off the first decay: solve
    # weight_decay = planned decay / (planned lr * factor) for the factor. The others must agree.
    factor = 1.0
    for pair in pairs:
        decay = float(pair.group.get("weight_decay", 0.0))
        if decay and pair.planned.weight_decay:
            factor = pair.planned.weight_decay / (decay * pair.lr)
            break
    for pair in pairs:
        own = float(pair.group.get("initial_lr", pair.lr * factor))
        peak = own if scale is None else pair.lr * scale
        planned = pair.planned.weight_decay / peak if peak else 0.0
        yield pair, float(pair.group.get("weight_decay", 0.0)), planned


def _is_coupled(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    if not group.get("weight_decay"):
        return False
    if "decoupled_weight_decay" in group:
        return not group["decoupled_weight_decay"]
    if isinstance(optimizer, torch.optim.SGD):
        return bool(group.get("momentum"))
    return not isinstance(optimizer, torch.optim.AdamW) and _decays_unevenly(optimizer)


def _decays_unevenly(optimizer: Optimizer) -> bool:
    """Whether an optimizer of anybody's, without a gradient, takes other shares of other weights.

    Decoupled decay takes the same share of all. Where it goes through second moments or a sign, a
    small weight loses as much as a large one. False for one that cannot be tried like this.
    """
    weights = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    tried = nn.Parameter(weights.clone())
    tried.grad = torch.zeros_like(weights)
    settings = {**optimizer.defaults, "lr": 0.1, "weight_decay": 0.1}
    # A class of anybody's may raise anything, or want more than a step.
    with suppress(Exception):
        type(optimizer)([tried], **settings).step()
    shares = tried.detach() / weights
    return bool((shares.max() - shares.min()).abs() > EXACT_TOLERANCE)


def _short(label: str) -> str:
    return label if len(label) <= 40 else f"{label[:37]}..."


def first_few(items: Sequence[str], most: int = MAX_GROUPS) -> str:
    """The first items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{'; '.join(items[:most])}{more}"
