"""A model's module, and the ways of getting losses and gradients of many trials from it.

A program outlives the packs that use it, so that what was compiled for a pack serves the next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint as activation_checkpoint

from sweeper.training.prepare import PreparedSpec, prepare
from sweeper.trial import TrialSpec

Stacked = dict[str, Tensor]
"""Tensors [K, ...] by name: one slice a trial."""
Losses = Callable[[Stacked, Stacked, Tensor, Tensor], Tensor]
"""Losses [K] of weights and buffers on inputs and targets [K, batch, ...]."""

COMPILATIONS = 256
"""Shapes that may be compiled before torch gives up on compiling: far more than a study has."""


class Program:
    """The module of a specification on a device, and its mapped and compiled forms."""

    def __init__(self, prepared: PreparedSpec, device: torch.device) -> None:
        """The module's own weights take no memory: they are replaced at every use."""
        with device:
            self.model: nn.Module = prepared.model().to(device, weights_dtype(prepared))
        self._leaves = dict(self.model.named_parameters())
        self._buffers = {name: value.data for name, value in self.model.named_buffers()}
        self._state, self._places = tuple(self.state()), _places(self.model)
        self._bound: object = self.model
        self.release()
        self.optimizer = prepared.optimizer
        self._autocast = prepared.train.precision == "bfloat16"
        self._device = device
        self.sizes: set[int] = set()
        """Sizes of packs that have been compiled."""
        self.refused: dict[str, str] = {}
        """Ways of `gradients` that this module cannot go, with the reason."""
        self._mapped: Losses = vmap(self._one)
        self._compiled: dict[str, Any] = {}
        self._recomputing = False

    def release(self) -> None:
        """Let go of the weights that the module was last used with; its buffers are as new."""
        if self._bound is None:
            return
        self._bound = None
        for parameter in self.model.parameters():
            parameter.data = parameter.data.new_empty(0)
        for name, value in self.model.named_buffers():
            value.data = self._buffers[name]

    def recompute(self) -> bool:
        """Recompute the activations of blocks (the members of any ModuleList) in backward passes.

        For trials trained alone. False when that is done already, or there are no blocks.
        """
        if self._recomputing:
            return False
        for blocks in self.model.modules():
            for block in blocks if isinstance(blocks, nn.ModuleList) else ():
                block.forward = partial(activation_checkpoint, block.forward, use_reentrant=False)
                self._recomputing = True
        self._compiled.clear()
        return self._recomputing

    def state(self) -> dict[str, Tensor]:
        """Buffers that a checkpoint of the module would keep, such as running statistics.

        One that a module has under several names counts once.
        """
        kept = self.model.state_dict()
        return {name: value for name, value in self.model.named_buffers() if name in kept}

    def gradients(
        self,
        way: str,
        params: Stacked,
        buffers: Stacked,
        x: Tensor,
        y: Tensor,
        seeds: Callable[[], list[int]],
    ) -> tuple[Tensor, list[Tensor]]:
        """Losses [K], and gradients [K, ...] of `params` in their order.

        `way` is "mapped", "alone" (of one trial) or "looped" (one trial after the other, for
        modules that cannot be mapped), the first two also with "compiled " before it. `seeds`
        gives those of what is random in the module, which can not be mapped.
        """
        if not way.endswith("alone"):
            if self._recomputing:  # what recomputes would find other weights than its own
                raise torch.OutOfMemoryError("trials that do not fit alone do not fit together")
            self.release()
        match way.removeprefix("compiled "):
            case "mapped":
                with self._forward():
                    losses = self._losses(way)(params, buffers, x, y)
                grads = _grads(losses.sum(), list(params.values()))
                return losses.detach(), grads
            case "alone":
                return self._alone(way, params, buffers, x, y, seeds()[0])
        rows = [
            self._slice(_at(params, i), _at(buffers, i), x[i], y[i], seed)
            for i, seed in enumerate(seeds())
        ]
        losses = torch.stack([loss for loss, _ in rows])
        return losses, [torch.stack(grads) for grads in zip(*(g for _, g in rows), strict=True)]

    @torch.no_grad()
    def evaluate(self, params: Stacked, buffers: Stacked, x: Tensor, y: Tensor) -> Tensor:
        """Losses [K] of the module in evaluation mode, nothing compiled."""
        training = self.model.training
        self.model.eval()
        try:
            if len(x) > 1 and "mapped" not in self.refused:
                try:
                    with self._forward():
                        return self._mapped(params, buffers, x, y)
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:  # in evaluation a module may do what it else does not
                    del error
            with self._forward():
                ones = [(_at(params, i), _at(buffers, i), x[i], y[i]) for i in range(len(x))]
                return torch.stack([self._one(*one) for one in ones])
        finally:
            self.model.train(training)

    def update(self, compiled: bool) -> Callable[..., None]:
        """The optimizer's update; compiled whole, so that where it fails it has done nothing."""
        if not compiled:
            return self.optimizer.update
        return self._compile("compiled update", self.optimizer.update, whole=True)

    def _forward(self) -> torch.autocast:
        """Autocast, for forward passes alone: a backward pass follows what they did."""
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast)

    def _one(self, params: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        places, tensors = self._places, {**params, **buffers}
        given = {place: value for name, value in tensors.items() for place in places[name]}
        # torch's own way with tied tensors leaves its own in a module that has several names.
        loss = functional_call(self.model, given, (x, y), tie_weights=False)
        for name in self._state:  # torch leaves in `given` what the module put in a buffer's place
            if given[name] is not buffers[name]:
                buffers[name].copy_(given[name])
        return _scalar(loss)

    def _losses(self, way: str) -> Losses:
        if way == "mapped":
            return self._mapped
        return cast(Losses, self._compile(way, self._mapped))

    def _compile(
        self, name: str, function: Callable[..., Any], *, whole: bool = False
    ) -> Callable[..., Any]:
        if name not in self._compiled:
            config: Any = torch._dynamo.config
            key = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
            setattr(config, key, max(getattr(config, key), COMPILATIONS))
            # Random numbers are drawn as without compiling: they are part of a trial's result.
            self._compiled[name] = torch.compile(
                function, dynamic=False, fullgraph=whole, options={"fallback_random": True}
            )
        return cast(Callable[..., Any], self._compiled[name])

    def _alone(
        self, way: str, params: Stacked, buffers: Stacked, x: Tensor, y: Tensor, seed: int
    ) -> tuple[Tensor, list[Tensor]]:
        """The module itself, its weights the only trial's: nothing is mapped, nothing replaced.

        A backward pass that calls the module again (activation checkpointing) then finds them.
        """
        leaves = self._bind(params, buffers)
        self._seed(seed)
        module = self.model if way == "alone" else self._compile(way, self.model)
        with self._forward():
            loss = _scalar(module(x[0], y[0]))
        self._take_back(buffers)
        grads = _grads(loss, [leaves[name] for name in params])
        return loss.detach()[None], [grad[None] for grad in grads]

    def _bind(self, params: Stacked, buffers: Stacked) -> dict[str, nn.Parameter]:
        """Let the module's tensors be views of the only slice; once for a pack."""
        if self._bound is not params:
            self.release()
            for name, value in params.items():
                self._leaves[name].data = value.detach()[0]
            own = dict(self.model.named_buffers())
            for name, value in buffers.items():
                own[name].data = value.detach()[0]
            self._bound = params
        return self._leaves

    def _seed(self, seed: int) -> None:
        """Seed the device's generator; `torch.manual_seed` is slow where CUDA was never used."""
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(seed)

    @torch.no_grad()
    def _take_back(self, buffers: Stacked) -> None:
        """Write into `buffers` what the bound module has put in the place of its own."""
        for name in self._state:
            value = self.model.get_buffer(name)
            if value.data_ptr() != buffers[name].data_ptr():
                buffers[name][0].copy_(value)
                value.data = buffers[name][0]

    def _slice(
        self, params: Stacked, buffers: Stacked, x: Tensor, y: Tensor, seed: int
    ) -> tuple[Tensor, list[Tensor]]:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        self._seed(seed)
        with self._forward():
            loss = self._one(leaves, buffers, x, y)
        return loss.detach(), _grads(loss, list(leaves.values()))


def _places(model: nn.Module) -> dict[str, list[str]]:
    """All names of each parameter and buffer, by its first; a shared module has only one."""
    found: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        own = (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for name, value in chain(*own):
            found.setdefault(id(value), []).append(f"{prefix}.{name}" if prefix else name)
    return {names[0]: names for names in found.values()}


def _scalar(loss: object) -> Tensor:
    """`loss` if it is one; TypeError for anything else that a forward pass may return."""
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    found = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    raise TypeError(f"forward(inputs, targets) must return the loss, a scalar tensor: not {found}")


def _grads(loss: Tensor, params: list[Tensor]) -> list[Tensor]:
    """Gradients; zero for a parameter that took no part."""
    return list(torch.autograd.grad(loss, params, materialize_grads=True, allow_unused=True))


def _at(stacked: Stacked, index: int) -> Stacked:
    return {name: value.detach()[index] for name, value in stacked.items()}


@lru_cache(maxsize=16)
def program(prepared: PreparedSpec, device: torch.device) -> Program:
    """The program of a specification: the same object for every pack of it in this process."""
    return Program(prepared, device)


def for_spec(spec: TrialSpec, device: str) -> Program:
    """The program of a trial's specification."""
    return program(prepare(spec), torch.device(device))


def weights_dtype(prepared: PreparedSpec) -> torch.dtype:
    """What weights are kept in: bfloat16 and tf32 are ways of computing with float32 weights."""
    return torch.float64 if prepared.train.precision == "float64" else torch.float32


def random_seed(seed: int, step: int) -> int:
    """Seed of what is random within a trial's step, by its seed and the step alone."""
    return int.from_bytes(sha256(f"{seed}/step/{step}".encode()).digest()[:8], "big") >> 1
