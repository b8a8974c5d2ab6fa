"""A plan's parameters as patterns of names: what is trained alike stands in one row."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sweeper.errors import BadInput
from sweeper.export.exporter import Setting, as_planned
from sweeper.scaling.spec import NUMBER
from sweeper.transfer.plan import PlannedParameter, TransferPlan

WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Parts that DDP, torch.compile, activation checkpointing and FSDP1 put into a name."""

ODD = re.compile(r"[\s\"'\\*?\[\]]")
"""What a name must not have: patterns stand between spaces and quotes, and some are a shell's."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Parameters of equal numbers: patterns of their names, in which * is a layer's number.

    `mean` and `std` are of the normal distribution of initial values, None where a parameter keeps
    its model's own. `weight_decay` is the share that a step removes; what is `frozen` is not
    trained. `role` is the parameters' own.
    """

    patterns: tuple[str, ...]
    names: tuple[str, ...]
    role: str
    mean: float | None
    std: float | None
    lr: float
    eps: float
    weight_decay: float
    frozen: bool

    @property
    def decay_over_lr(self) -> float:
        """The `weight_decay` of an optimizer that removes lr x weight_decay a step."""
        return self.weight_decay / self.lr

    def settings(self, eps: bool) -> str:
        """Arguments of a torch group as Python; without `eps` where an optimizer takes none."""
        if self.frozen:
            return "None"
        told = f"lr={self.lr!r}, weight_decay={self.decay_over_lr!r}"
        return f"dict({told}, eps={self.eps!r})" if eps else f"dict({told})"

    @property
    def note(self) -> str:
        """The row for people."""
        count = len(self.names)
        return f"{self.role}, {count} parameter{'s' * (count > 1)}"


def rows(plan: TransferPlan, settings: dict[str, Setting] | None = None) -> list[Row]:
    """All parameters in rows; `settings` by name replace the plan's with multipliers absorbed.

    BadInput for a name that no pattern can say.
    """
    if odd := next((one.name for one in plan.parameters if ODD.search(one.name)), None):
        raise BadInput(
            f"the parameter {odd!r} cannot be written as a pattern: its name has a space, a quote, "
            "a backslash or one of * ? [ ]"
        )
    members: dict[tuple[object, ...], list[PlannedParameter]] = {}
    for one in plan.parameters:
        members.setdefault(_key(one, _setting(one, settings)), []).append(one)
    everything = [parameter.name for parameter in plan.parameters]
    return [_row(alike, _setting(alike[0], settings), everything) for alike in members.values()]


def _setting(parameter: PlannedParameter, settings: dict[str, Setting] | None) -> Setting:
    return settings[parameter.name] if settings is not None else as_planned(parameter)


def _key(parameter: PlannedParameter, setting: Setting) -> tuple[object, ...]:
    numbers = (setting.lr, setting.eps, setting.weight_decay, setting.init_std, setting.forward)
    return (parameter.role, parameter.init, parameter.frozen, *numbers)


def _row(alike: Sequence[PlannedParameter], setting: Setting, everything: Sequence[str]) -> Row:
    first, names = alike[0], tuple(parameter.name for parameter in alike)
    kept = first.frozen or first.init == "kept"
    mean = first.absorbed().init_mean / setting.forward
    return Row(
        patterns=patterns(names, everything),
        names=names,
        role=first.role,
        mean=None if kept else mean,
        std=None if kept else setting.init_std,
        lr=setting.lr,
        eps=setting.eps or 0.0,
        weight_decay=setting.weight_decay,
        frozen=first.frozen,
    )


def patterns(names: Collection[str], everything: Collection[str]) -> tuple[str, ...]:
    """Patterns that match `names` once each and no other name of `everything`.

    They do so as regular expressions and as shell patterns, in which * matches dots too. Numbers
    become * where that holds; elsewhere names stand as they are.
    """
    alike: dict[str, set[str]] = {}
    for name in names:
        alike.setdefault(NUMBER.sub("*", name), set()).add(name)
    found: dict[str, None] = {}
    for pattern, members in alike.items():
        matched = {name for name in everything if fnmatchcase(name, pattern)}
        found.update(dict.fromkeys([pattern] if matched == members else sorted(members)))
    return tuple(found)


def regex(patterns: Sequence[str], prefix: str = "") -> str:
    r"""A regular expression of whole names, for `re.search`; * is a number.

    `prefix` is a part that may stand before every name.
    """
    before = f"(?:{prefix}\\.)?" if prefix else ""
    names = [re.escape(pattern).replace(r"\*", r"\d+") for pattern in patterns]
    return f"^{before}{names[0]}$" if len(names) == 1 else f"^{before}(?:{'|'.join(names)})$"
