"""Which layer of a shallow model a layer of a deep one corresponds to, by kind and by place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sweeper.scaling.spec import NUMBER

_LAYER = re.compile(rf"{NUMBER.pattern}|(?<=_l)\d+(?=_|$)")
"""A layer's number: a whole part of a name, or as torch's recurrent layers write it."""

Shapes = Mapping[str, tuple[int, ...]]


def pattern_of(name: str) -> str:
    """The name with # for every layer's number."""
    return _LAYER.sub("#", name)


def repeated_containers(base: Iterable[str], deeper: Iterable[str]) -> set[str]:
    """Containers (patterns that end with a dot) that hold other numbers in a deeper model.

    Their items are the repeated blocks, whatever their kind: of layers that are dense first and
    have experts later, a deeper model has more of the second kind alone.
    """
    before, after = _numbers_held(base), _numbers_held(deeper)
    return {pattern_of(at) for at in before.keys() & after.keys() if before[at] != after[at]}


def _numbers_held(names: Iterable[str]) -> dict[str, set[str]]:
    held: dict[str, set[str]] = {}
    for name in names:
        for match in NUMBER.finditer(name):
            held.setdefault(name[: match.start()], set()).add(match[0])
    return held


def lies_in(name: str, containers: set[str]) -> bool:
    """Whether a parameter belongs to an item of one of the `containers`."""
    return any(pattern_of(name[: match.start()]) in containers for match in NUMBER.finditer(name))


@dataclass(frozen=True)
class LayerMatching:
    """Counterparts of parameters of `target` among those of a shallower or deeper `base`.

    The counterpart has the same name but for the layers' numbers and, in the target itself, the
    same shape: it stands in a layer of the same kind. Of several, the one counts whose block
    holds the same parameters, that differs in the fewest numbers, and that is nearest.
    """

    base: Shapes
    target: Shapes
    _by_pattern: dict[str, list[str]] = field(default_factory=dict)
    _kinds: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.base:
            self._by_pattern.setdefault(pattern_of(name), []).append(name)
        for model, shapes in (("base ", self.base), ("target ", self.target)):
            for name in shapes:
                for match in NUMBER.finditer(name):
                    block = self._kinds.setdefault(model + name[: match.end()], set())
                    block.add(pattern_of(name[match.end() :]))

    def counterpart(self, name: str) -> str | None:
        """The parameter of the base that `name` corresponds to; None if there is none."""
        if name in self.base and len(self.base[name]) == len(self.target[name]):
            return name
        alike = [c for c in self._by_pattern.get(pattern_of(name), ()) if self._fits(name, c)]
        return max(alike, key=lambda other: self._likeness(name, other), default=None)

    def missing(self) -> list[str]:
        """Parameters of the target without a counterpart."""
        return [name for name in self.target if self.counterpart(name) is None]

    def _fits(self, name: str, other: str) -> bool:
        # Where the target lacks the layer `other`, it has layers of that kind at other places.
        there = self.target.get(other)
        if there is None:
            return len(self.base[other]) == len(self.target[name])
        return there == self.target[name] and len(there) == len(self.base[other])

    def _likeness(self, name: str, other: str) -> tuple[bool, int, int]:
        pairs = list(zip(_LAYER.finditer(name), _LAYER.finditer(other), strict=True))
        differ = [(a, b) for a, b in pairs if a[0] != b[0]]
        kinds = [
            self._kinds.get(f"{model} {n[: match.end()]}")
            for model, n, match in (
                ("target", name, differ[0][0]),
                ("base", other, differ[0][1]),
            )
        ]
        distance = sum(abs(int(a[0]) - int(b[0])) for a, b in differ)
        return kinds[0] == kinds[1], -len(differ), -distance
