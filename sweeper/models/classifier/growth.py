"""Which dimensions grow with the width, and which with the depth."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from sweeper.errors import BadInput
from sweeper.models.classifier.layers import LayerMatching, repeated_containers
from sweeper.models.classifier.model_trace import ModelTrace, Sizes


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Shapes of a model at the base, wider, deeper, and at the size asked for (the target).

    `sizes` are those of the base, the wider model and the target. `rounded` collects parameters
    that grow at the target alone.
    """

    base: ModelTrace
    wider: ModelTrace
    target: ModelTrace
    deeper: ModelTrace | None
    sizes: tuple[Sizes, Sizes, Sizes]
    rounded: list[str] = field(default_factory=list)

    @cached_property
    def matching(self) -> LayerMatching:
        """Counterparts of the target's parameters in the base."""
        return LayerMatching(self.base.shapes, self.target.shapes)

    @cached_property
    def repeated(self) -> set[str]:
        """Containers of the blocks that a deeper model has more of."""
        return repeated_containers(self.base.shapes, self.deeper.shapes) if self.deeper else set()

    @cached_property
    def at_target(self) -> bool:
        """Whether the target differs from the base in a width."""
        base, wider, target = self.sizes
        return any(base[s] != target[s] for s in base if base[s] != wider[s])

    def check(self) -> None:
        """BadInput if the model ignores its width."""
        base, wider, target = self.sizes
        pairs = [(name, self.matching.counterpart(name)) for name in self.target.shapes]
        for name, base_name in pairs:
            # Without a counterpart there is something else to refuse.
            if base_name is None or base_name not in self.wider.shapes:
                return
            if self.width_dims(name, base_name):
                return
        tried = [described(size) for size in (wider, target) if size != base]
        raise BadInput(
            f"no parameter of the model at {' or '.join(dict.fromkeys(tried))} is larger than at "
            f"{described(base)}: the model ignores its width. Have build make its layers of it"
        )

    def width_dims(self, name: str, base_name: str) -> tuple[int, ...]:
        """Dimensions that grow with the width, in the wider model or at the target."""
        grown = differing_dims(base_name, self.base, self.wider)
        if not self.at_target:
            return grown
        shape, there = self.base.shapes[base_name], self.target.shapes[name]
        deep = self.depth_dims(base_name)
        late = [i for i, (a, b) in enumerate(zip(shape, there, strict=True)) if a != b]
        more = {i for i in late if i not in deep} - {*grown}
        if more and name not in self.rounded:
            self.rounded.append(name)
        self._check_direction(name, base_name, grown)
        return tuple(sorted({*grown, *more}))

    def _check_direction(self, name: str, base_name: str, grown: tuple[int, ...]) -> None:
        """BadInput if a dimension that grows with the width shrinks towards a wider target."""
        base, wider, target = self.sizes
        up = [s for s in base if _larger(wider[s], base[s]) and _larger(target[s], base[s])]
        down = [s for s in base if _larger(base[s], target[s])]
        small, large = self.base.shapes[base_name], self.wider.shapes[base_name]
        there = self.target.shapes[name]
        if up and not down and any(there[i] < small[i] < large[i] for i in grown):
            raise BadInput(
                f"parameter {name} is {list(small)} at {described(base)}, {list(large)} at "
                f"{described(wider)}, but {list(there)} at {described(target)}: it grows with the "
                "width and shrinks, so no rule of width holds. Take sizes that divide evenly"
            )

    def depth_dims(self, base_name: str) -> tuple[int, ...]:
        """Dimensions that grow with the depth (layers in one stacked parameter)."""
        if self.deeper is None or base_name not in self.deeper.shapes:
            return ()
        return differing_dims(base_name, self.base, self.deeper)


def differing_dims(name: str, base: ModelTrace, other: ModelTrace) -> tuple[int, ...]:
    """Dimensions of a parameter that differ between two models; BadInput if their number does."""
    shape, grown = base.shapes[name], other.shapes[name]
    if len(shape) != len(grown):
        raise BadInput(
            f"parameter {name} has shape {list(shape)} in the base model and {list(grown)} in a "
            "larger one: the number of its dimensions must not change"
        )
    return tuple(i for i, (a, b) in enumerate(zip(shape, grown, strict=True)) if a != b)


def width_of(sizes: Sizes) -> int:
    """The size that is called width, if one is a number; else 1."""
    value = sizes.get("width", 1)
    return value if isinstance(value, int) else 1


def described(sizes: Sizes) -> str:
    """Sizes in words."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _larger(a: object, b: object) -> bool:
    return isinstance(a, int | float) and isinstance(b, int | float) and a > b
