"""A model that nobody but the command builds."""

from __future__ import annotations

from torch import nn

from sweeper.errors import ConfigError


class Unbuilt(nn.Module):
    """Stands for the command's own model, of which sweeper knows the sizes alone."""

    def __init__(self, *, width: int, depth: int) -> None:
        """ConfigError: whoever builds it wants to read it."""
        super().__init__()
        raise ConfigError(
            "_target_",
            "own",
            "what builds your model, to be read without memory: "
            "model._target_=package.module.function (its arguments: width and depth)",
        )
