"""Specifications of weights whose sides are given."""

from typing import Any

from sweeper.scaling.spec import ParamSpec, Role


def weight(
    role: Role, out: int, into: int, base: tuple[int, int] | None = None, **more: Any
) -> ParamSpec:
    base_out, base_into = base or (out, into)
    fans = {"fan_in": into, "fan_out": out, "base_fan_in": base_into, "base_fan_out": base_out}
    sides = {"shape": (out, into), "base_shape": (base_out, base_into)}
    return ParamSpec(**({"name": "w", "role": role} | fans | sides | more))
