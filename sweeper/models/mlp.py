"""A multilayer perceptron for classification: no biases, no norms, ReLU."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from sweeper.errors import ConfigError
from sweeper.models.fp8 import Fp8
from sweeper.models.scaled import (
    Activation,
    CrossEntropy,
    Linear,
    Projection,
    check_sizes,
    dropout_of,
    dropped,
)


class MLP(nn.Module):
    """Input layer, `depth` hidden layers [width, width], head.

    Every ReLU is multiplied by sqrt 2 under every parameterization, so that signal and gradient
    keep their scale at initialization; it is He initialization in the activation's place. There are
    no residual branches: the parameterizations' rules for depth, which are for such, say nothing
    here. In training `dropout` is the share of dropped entries of every activation's output,
    `label_smoothing` see `CrossEntropy`.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        classes: int,
        input_shape: tuple[int, ...],
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
        unit: bool = False,
        fp8: Fp8 | None = None,
    ) -> None:
        """The parameterization draws all parameters; ConfigError names a size that is off."""
        super().__init__()
        check_sizes(width=width, depth=depth)
        self.width, self.depth, self.input_shape = width, depth, tuple(input_shape)
        self.fp8 = fp8 or Fp8()
        self.input = Projection(prod(input_shape), width, unit=unit)
        self.layers = nn.ModuleList(Linear(width, width, unit=unit) for _ in range(depth))
        self.act = Activation("relu", unit=True)  # whatever the model's `unit`: see above
        self.drops = nn.ModuleList(filter(None, (dropout_of(dropout) for _ in range(depth + 1))))
        self.head = Linear(width, classes, unit=unit, readout=True)
        self.loss = CrossEntropy(classes, unit=unit, smoothing=label_smoothing)
        self.fp8.apply_to(self)

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [batch, classes] of `inputs` [batch, ...]; with `targets` [batch], the loss."""
        drops = [*self.drops] or [None] * (self.depth + 1)
        x = dropped(drops[0], self.act(self.input(inputs.flatten(1))))
        for layer, drop in zip(self.layers, drops[1:], strict=True):
            x = dropped(drop, self.act(layer(x)))
        logits: Tensor = self.head(x)
        return logits if targets is None else self.loss(logits, targets)


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
