"""What every parameter and operation of a model is, read off its forward pass at two sizes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from typing import Any

from torch import nn

from sweeper.errors import BadInput, ConfigError, suggest
from sweeper.models.probe import Inputs, Probe, Sizes, built, shapes_of, watch
from sweeper.models.roles import UNUSED, Undecided, Verdict, fans, judge, settled
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.names import NUMBER
from sweeper.scaling.spec import ParamSpec, Role, ScaledOp

Build = Callable[[int, int], nn.Module]
"""Makes the model of a given width and depth."""

_DEPTH = re.compile(r"depth|layers?($|_)")


def classify(
    build: Callable[..., nn.Module],
    base: Sizes,
    other: Sizes,
    inputs: Inputs = None,
    roles: Mapping[str, Role | str] | None = None,
) -> dict[str, ParamSpec]:
    """Every parameter of `build(**other)`, beside its counterpart in `build(**base)`, by name.

    `base` and `other` are keyword arguments of `build`, such as {"width": 64} and
    {"width": 128}; those named depth or layers may differ too, all others are widths. `inputs`
    is what the model is called with: a tensor, a tuple, a dict of named arguments, or a
    function of the sizes that returns one of them; models that say so themselves need none
    (`example_inputs()`, `seq_len`, or a configuration of transformers). `roles` decides where
    the trace cannot: patterns of names, and the role of the parameters that match, the first
    that matches counts. The prefix that `torch.compile` gives to names is left out.

    Nothing is allocated: models live on the meta device. BadInput names every parameter that
    cannot be decided, with the reason and the override to give.
    """
    if base.keys() != other.keys():
        raise BadInput(f"base and other must name the same sizes: {[*base]} and {[*other]}")
    deep = [name for name in base if _DEPTH.search(name) and base[name] != other[name]]
    wide = [name for name in base if name not in deep and base[name] != other[name]]
    if not wide:
        raise BadInput("base and other must differ in a width: roles are read off its growth")
    wider_sizes = {**base, **{name: other[name] for name in wide}}

    def at(sizes: Sizes) -> nn.Module:
        return built(partial(build, **sizes), sizes)

    wider = watch(at(wider_sizes), wider_sizes, inputs)
    study = _Study(
        base=watch(at(base), base, inputs),
        wider=wider,
        target=watch(at(other), other, inputs) if deep else wider,
        deeper=shapes_of(at({**base, **{name: other[name] for name in deep}})) if deep else None,
        depth=int(other[deep[0]]) if deep else 1,
        base_depth=int(base[deep[0]]) if deep else 1,
        width=_width(other),
        base_width=_width(base),
        roles={pattern: _role_named(pattern, role) for pattern, role in (roles or {}).items()},
    )
    return {spec.name: spec for spec in study.specs()}


def _width(sizes: Sizes) -> int:
    """The size that is called width, if one is a number; else 1."""
    value = sizes.get("width", 1)
    return value if isinstance(value, int) else 1


def specs_between(
    build: Build,
    *,
    base: tuple[int, int],
    target: tuple[int, int],
    inputs: Inputs = None,
    roles: Mapping[str, Role | str] | None = None,
) -> list[ParamSpec]:
    """Every parameter of the model at `target` (width, depth), beside `base`.

    Roles come from the model at the base and at twice its width, where a dimension that grows
    shows itself; one layer more tells the repeated blocks, which are residual branches.
    """

    def at(width: int, depth: int) -> tuple[nn.Module, Sizes]:
        sizes = {"width": width, "depth": depth}
        return built(lambda: build(width, depth), sizes), sizes

    study = _Study(
        base=watch(*at(*base), inputs),
        wider=watch(*at(2 * base[0], base[1]), inputs),
        target=watch(*at(*target), inputs),
        deeper=shapes_of(at(base[0], base[1] + 1)[0]),
        depth=target[1],
        base_depth=base[1],
        width=target[0],
        base_width=base[0],
        roles={pattern: _role_named(pattern, role) for pattern, role in (roles or {}).items()},
    )
    return study.specs()


def _role_named(pattern: str, role: Role | str) -> Role:
    try:
        return Role(role)
    except ValueError:
        raise ConfigError(f"roles[{pattern!r}]", role, suggest(str(role), list(Role))) from None


def _first_layer(name: str, known: Container[str]) -> str:
    """`name` with one of its numbers replaced by 0, if that is a known name; else `name`."""
    for match in NUMBER.finditer(name):
        first = f"{name[: match.start()]}0{name[match.end() :]}"
        if first in known:
            return first
    return name


@dataclass(frozen=True, kw_only=True)
class _Study:
    """A model at the base, wider, deeper, and at the size asked for."""

    base: Probe
    wider: Probe
    target: Probe
    deeper: Probe | None
    depth: int
    base_depth: int
    width: int
    base_width: int
    roles: Mapping[str, Role]
    problems: list[str] = field(default_factory=list)

    def specs(self) -> list[ParamSpec]:
        """All specs; BadInput lists the parameters that cannot be decided."""
        self._check_overrides()
        found = [spec for name in self.target.shapes if (spec := self._spec(name)) is not None]
        if self.problems:
            raise BadInput(self._refusal())
        unused = [spec.name for spec in found if spec.note == UNUSED]
        if unused:
            warnings.warn(
                f"never used in the traced forward pass: {', '.join(unused)}. If training uses "
                "them, give inputs= that do",
                stacklevel=3,
            )
        return found

    def _refusal(self) -> str:
        """Every parameter that cannot be decided, why, and what to give."""
        why = self.base.why or self.wider.why or self.target.why
        shown = self.problems[:10] if why else self.problems
        more = [f"and {len(self.problems) - 10} more"] if shown != self.problems else []
        first = self.problems[0].partition(" ")[0]
        return "\n  ".join(
            [
                *([why] if why else []),
                "these parameters cannot be classified, so no scheme can scale them:",
                *shown,
                *more,
                f'give their roles, such as roles={{"{first}": "hidden"}}; names may be patterns, '
                f"roles are {', '.join(Role)}",
            ]
        )

    def _check_overrides(self) -> None:
        for pattern in self.roles:
            if not any(fnmatchcase(name, pattern) for name in self.target.shapes):
                allowed = f"no parameter matches; {suggest(pattern, self.target.shapes)}"
                raise ConfigError(f"roles[{pattern!r}]", str(self.roles[pattern]), allowed)

    def _spec(self, name: str) -> ParamSpec | None:
        shape = self.target.shapes[name]
        known = name if name in self.base.shapes else _first_layer(name, self.base.shapes)
        if known not in self.base.shapes or known not in self.wider.shapes:
            raise BadInput(f"parameter {name} has no counterpart in the base model")
        grows = _differ(self.base.shapes[known], self.wider.shapes[known])
        try:
            verdict = self._verdict(name, known, grows)
            now = self._fans(self.target, name, verdict, grows)
            then = self._fans(self.base, known, verdict, grows)
        except Undecided as error:
            self.problems.append(f"{name} {list(shape)}: {error}")
            return None
        return ParamSpec(
            name=name,
            role=verdict.role,
            shape=shape,
            base_shape=self.base.shapes[known],
            fan_in=now[0],
            fan_out=now[1],
            base_fan_in=then[0],
            base_fan_out=then[1],
            width=self.width,
            base_width=self.base_width,
            residual=_first_layer(known, self.base.shapes) in self._repeated(),
            depth=self.depth,
            base_depth=self.base_depth,
            init=verdict.init,
            width_dims=grows,
            depth_dims=self._deep_dims(known),
            lookup=verdict.signature is not None and verdict.signature[0] == "lookup",
            tied=self.target.tied.get(name, ()),
            note="; ".join(filter(None, (verdict.note, *self._warnings(known, verdict.role)))),
        )

    def _verdict(self, name: str, known: str, grows: tuple[int, ...]) -> Verdict:
        """The traced role, or the one that the user gave."""
        asked = next((r for p, r in self.roles.items() if fnmatchcase(name, p)), None)
        try:
            traced = judge(_settled(self.base, known), _settled(self.wider, known), grows)
        except Undecided:
            if asked is None:
                raise
            return Verdict(role=asked, note="role given; fans by torch's layout")
        if asked is None or traced.role is asked:
            return traced
        note = f"role given, traced as {traced.role}: {traced.note}"
        return Verdict(role=asked, signature=traced.signature, init=traced.init, note=note)

    def _fans(
        self, probe: Probe, name: str, verdict: Verdict, grows: tuple[int, ...]
    ) -> tuple[int, int]:
        """Fans as used; of an override without a use, by torch's layout [out, in, ...]."""
        if verdict.signature is None:
            shape = probe.shapes[name]
            if len(shape) < 2:
                return 1, prod(shape)
            rows, rest = shape[0], prod(shape[1:])
            return (rows, rest) if verdict.role is Role.EMBEDDING else (rest, rows)
        use = _settled(probe, name).get(verdict.signature)
        if use is None:
            raise Undecided("it is used in other ways at the size asked for")
        return fans(use, grows)

    def _repeated(self) -> set[str]:
        more = self.deeper.shapes.keys() ^ self.base.shapes.keys() if self.deeper else ()
        return {_first_layer(name, self.base.shapes) for name in more}

    def _deep_dims(self, known: str) -> tuple[int, ...]:
        if self.deeper is None or known not in self.deeper.shapes:
            return ()
        return _differ(self.base.shapes[known], self.deeper.shapes[known])

    def _warnings(self, known: str, role: Role) -> Iterable[str]:
        """What the user should mind beside the role."""
        if role is Role.READOUT and known in self.base.fed:
            yield "its output feeds further layers: consider the role hidden"
        pairs = zip(self.base.products, self.wider.products, strict=False)
        sizes = {b.size for b, w in pairs if b.size != w.size and known in b.sources}
        for size in sorted(sizes):
            yield (
                f"its output enters a product of activations over {size} entries, which grow "
                "with the width (head size): attention needs 1/d, not 1/sqrt(d)"
            )


def _settled(probe: Probe, name: str) -> dict[Any, Any]:
    if probe.uses is None:
        raise Undecided("the forward pass was not traced")
    return settled(probe.uses[name], probe.shapes[name])


def _differ(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    if len(one) != len(other):
        raise BadInput(f"a parameter of shape {list(one)} becomes one of shape {list(other)}")
    return tuple(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


def scaled_ops(model: nn.Module) -> list[ScaledOp]:
    """Every scalable operation of `model`, by the name of its module."""
    found = []
    for name, module in model.named_modules():
        op = module.scale_op(name) if isinstance(module, ScaledModule) else None
        if op is not None:
            found.append(op)
    return found
