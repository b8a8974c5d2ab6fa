"""Layers in the names of modules and parameters: `blocks.3.ffn.up` is of layer 3."""

from __future__ import annotations

import re

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a name that is a number."""


def layer_of(name: str) -> str | None:
    """The layer's number in a name, its first part that is one; None outside of layers."""
    match = NUMBER.search(name)
    return match and match[0]


def with_layer(name: str, layer: str) -> str:
    """The name with `layer` in the place of its layer's number; as it is outside of layers."""
    return NUMBER.sub(lambda _: layer, name, count=1)
