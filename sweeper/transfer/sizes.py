"""A model's sizes under the names that its author gave them, as widths and depths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.errors import BadInput, ConfigError
from sweeper.scaling.patterns import DEPTH_NAME
from sweeper.transfer.ladder import Size

Sizes = Mapping[str, Any]
"""Keyword arguments of a function that builds a model, such as {"n_embd": 64, "n_layer": 4}."""

_USUAL_WIDTH = re.compile(r"width|emb|hidden|model|dim|channels")


@dataclass(frozen=True, kw_only=True)
class SizePair:
    """A model's sizes at base and target; `width` and `depth` name the one that stands for each.

    `depth` is None where no size is a depth.
    """

    base: Sizes
    target: Sizes
    width: str
    depth: str | None

    @classmethod
    def of(cls, base: Sizes, target: Sizes) -> SizePair:
        """Choose the sizes that stand for all; ConfigError or BadInput for what cannot be one."""
        if base.keys() != target.keys():
            raise BadInput(f"base and target must name the same sizes: {[*base]} and {[*target]}")
        for which, sizes in (("base", base), ("target", target)):
            for name, value in sizes.items():
                if _is_whole(value) and value < 1:
                    raise ConfigError(f"{which}[{name!r}]", value, "a size of at least 1")
        width = _chosen(base, target, "width", deep=False)
        if width is None:
            allowed = "sizes with a width that is a whole number, such as {'width': 64}"
            raise ConfigError("base", dict(base), allowed)
        pair = cls(
            base=base, target=target, width=width, depth=_chosen(base, target, "depth", deep=True)
        )
        others = [name for name in pair._changed() if name != width]
        if base[width] == target[width] and others:
            raise BadInput(
                f"base and target are equally wide ({width}={base[width]}), yet differ in "
                f"{', '.join(others)}: give another name to what is not the width"
            )
        return pair

    def size(self, sizes: Sizes) -> Size:
        """Width and depth of `sizes`; a depth that nobody names counts as 1."""
        return Size(width=sizes[self.width], depth=sizes[self.depth] if self.depth else 1)

    def at(self, width: int, depth: int) -> dict[str, Any]:
        """All sizes of a model of the given width and depth.

        Other sizes than the base's and the target's are wider or deeper ones, to compare with:
        what grows towards the target is doubled, and depths are one more.
        """
        made = dict(self.base)
        for name, value in self.base.items():
            asked, main = (depth, self.depth) if DEPTH_NAME.search(name) else (width, self.width)
            if main is None or asked == self.base[main]:
                continue
            if asked == self.target[main]:
                made[name] = self.target[name]
            elif DEPTH_NAME.search(name):
                made[name] = _each(name, value, lambda size: size + 1)
            elif name in (self._changed() or (self.width,)):
                made[name] = _each(name, value, lambda size: 2 * size)
        return made

    def _changed(self) -> list[str]:
        """The widths that differ."""
        names = (name for name in self.base if not DEPTH_NAME.search(name))
        return [name for name in names if self.base[name] != self.target[name]]


def _chosen(base: Sizes, target: Sizes, plain: str, *, deep: bool) -> str | None:
    """The size that is called `plain`, else the first whole number of its kind.

    Those that differ come first, and of widths those with a usual name (not the heads' number).
    """
    kind = [n for n, v in base.items() if bool(DEPTH_NAME.search(n)) == deep and _is_whole(v)]

    def rank(name: str) -> tuple[bool, ...]:
        return name != plain, base[name] == target[name], not _USUAL_WIDTH.search(name)

    return min(kind, key=rank, default=None)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _each(name: str, value: Any, grow: Callable[[int], int]) -> Any:
    """A whole number or a list of them, grown."""
    if isinstance(value, list | tuple):
        return type(value)(_each(name, one, grow) for one in value)
    if not _is_whole(value):
        raise ConfigError(f"base[{name!r}]", value, "a size that is a whole number, or a list")
    return grow(value)
