"""A model's module, and its modes of losses and gradients of many trials, for all batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint as activation_checkpoint

from sweeper.engine.compile import CompileRecord
from sweeper.engine.optimizers.optimizer import unsqueeze_like
from sweeper.engine.prepare import PreparedSpec, prepare
from sweeper.errors import BrokenDeviceError, first_line
from sweeper.models.scaled import Dropout, Embedding
from sweeper.trial import TrialSpec

_OUT_OF_MEMORY = (
    "out of memory",  # torch, CUDA, Triton
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED, and cuDNN's and cuSOLVER's
    "cublas_status_not_initialized",  # a handle's workspace had no place
    "can't allocate memory",  # torch on a CPU
    "not enough memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, in the words of any library or compiler; causes count."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        text = str(cause).lower()
        if isinstance(cause, torch.OutOfMemoryError | MemoryError):
            return True
        # Spaces for underscores find CUDA_ERROR_OUT_OF_MEMORY, which CUDA's driver says.
        if isinstance(cause, RuntimeError) and any(
            phrase in text or phrase in text.replace("_", " ") for phrase in _OUT_OF_MEMORY
        ):
            return True
        # torch's compiler keeps what it wraps as `inner_exception`.
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    return False


def forget_frames(error: BaseException) -> None:
    """Free the tensors that frames of `error` hold, of its causes and of what was handled then."""
    seen: list[BaseException] = []
    ahead: list[BaseException | None] = [error]
    while ahead:
        current = ahead.pop()
        if current is None or any(current is other for other in seen):
            continue
        seen.append(current)
        current.__traceback__ = None
        inner = getattr(current, "inner_exception", None)
        ahead += [inner, current.__cause__, current.__context__]


def raise_if_out_of_memory(error: BaseException) -> None:
    """`torch.OutOfMemoryError` from `error` if an allocation failed: callers know one kind."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    if is_out_of_memory(error):
        raise torch.OutOfMemoryError(str(error)) from error


def raise_if_broken(device: torch.device, error: BaseException) -> None:
    """BrokenDeviceError if `device`, asked itself, does nothing more in this process."""
    if device.type != "cuda":
        return
    try:
        torch.zeros(1, device=device).add_(1).item()
    except Exception as still:
        if not is_out_of_memory(still):
            reason = f"{device} is unusable after an error: {first_line(error)}"
            raise BrokenDeviceError(reason) from error


def free_unused(device: torch.device) -> None:
    """Give cached memory back to the device, for other processes on it and for larger blocks."""
    if device.type == "cuda":
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def weights_dtype(prepared: PreparedSpec) -> torch.dtype:
    """What weights are kept in: bfloat16 and tf32 are ways of computing with float32 weights."""
    return torch.float64 if prepared.train.precision == "float64" else torch.float32


@dataclass
class LossScale:
    """What losses are multiplied by before float16 gradients are taken, as torch's GradScaler does.

    Of K trials, each by itself: `scale`, how many steps in a row were `good`, and the steps that
    were `taken`. One whose gradients are not finite is skipped, and halves the scale; it doubles
    after INTERVAL good ones.
    """

    scale: Tensor
    good: Tensor
    taken: Tensor

    @classmethod
    def of(cls, count: int, device: torch.device) -> LossScale:
        """A start as GradScaler's."""
        zeros = torch.zeros(count, device=device)
        return cls(zeros + INITIAL_SCALE, zeros, zeros.clone())

    def unscale(self, grads: list[Tensor]) -> Tensor:
        """Unscale gradients [K, ...] in place, to 0 but for the returned trials [K], which step."""
        finite = [grad.flatten(1).isfinite().all(1) for grad in grads]
        takes = torch.stack(finite).all(0)
        for grad in grads:
            grad.mul_(unsqueeze_like(1 / self.scale, grad))
            grad.masked_fill_(~unsqueeze_like(takes, grad), 0.0)
        return takes

    def update(self, takes: Tensor) -> None:
        """After a step that these trials took."""
        good = torch.where(takes, self.good + 1, 0.0)
        grows = good == INTERVAL
        larger = torch.where(grows, self.scale * GROWTH, self.scale)
        self.scale.copy_(torch.where(takes, larger, self.scale * BACKOFF))
        self.good.copy_(torch.where(grows, 0.0, good))
        self.taken.add_(takes)

    def tensors(self) -> Stacked:
        """All of it, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


INITIAL_SCALE, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000.0
"""GradScaler's own."""


@contextmanager
def computing(prepared: PreparedSpec, device: torch.device) -> Iterator[None]:
    """What the precision and the device ask of torch while a batch computes."""
    with ExitStack() as stack:
        if prepared.train.precision == "tf32":
            # Matrix products of float32 on a GPU's tensor cores.
            before = torch.get_float32_matmul_precision()
            stack.callback(torch.set_float32_matmul_precision, before)
            torch.set_float32_matmul_precision("high")
        if device.type == "cuda":
            from torch.nn.attention import SDPBackend, sdpa_kernel

            # Not cuDNN's attention, which fails under a compiled map.
            kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
            stack.enter_context(sdpa_kernel(kernels))
        yield


@contextmanager
def quiet_attention() -> Iterator[None]:
    """Without torch's warning that on a CPU attention under vmap runs trial by trial.

    At the sizes of proxies that is as fast as a batched product with an explicit softmax.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule for aten::_scaled_dot_product")
        yield


Stacked = dict[str, Tensor]
"""Tensors [K, ...] by name: one slice a trial."""
StackedLoss = Callable[[Stacked, Stacked, Tensor, Tensor], Tensor]
"""Losses [K] of weights and buffers on inputs and targets [K, batch, ...]."""

GradientMode = Literal["mapped", "alone", "looped", "compiled mapped", "compiled alone"]
"""How gradients of a batch are computed.

"mapped": vmap over all trials; "alone": the module itself, of one trial; "looped": one trial after
the other, for modules that cannot be mapped.
"""
COMPILED_UPDATE = "compiled update"
"""The name of the optimizer's compiled update, beside the modes."""

MAX_COMPILATIONS = 256
"""Shapes that may be compiled before torch gives up on compiling: far more than a study has."""
# The compiler's own random numbers differ from those of eager torch. They are part of a trial's
# result, which must not depend on whether its batch was compiled. Inductor stores what reads more
# than four tensors; a factor of every trial counts as one, so that the gradient of a gated
# activation or of a scaled norm would be written and read once more (8 % of a step's traffic).
COMPILE_OPTIONS: dict[str, Any] = {"fallback_random": True, "realize_reads_threshold": 8}


class Program:
    """The module of a specification on a device, and its mapped and compiled forms.

    `compiled_sizes` are sizes of batches that have been compiled. `unsupported` holds the modes
    that failed for this module, and COMPILED_UPDATE and those of `graph.py` if they did, each with
    the reason. `seeds` are the names of the buffers that hold seeds of what is random in modules of
    sweeper's; `draws` tells whether the module uses torch's generator, None if not known yet.
    `compile_record` says what compiling it cost and gained.
    """

    def __init__(self, prepared: PreparedSpec, device: torch.device) -> None:
        """The module's own weights take no memory: they are replaced at every use."""
        with device:
            self.model: nn.Module = prepared.model().to(device, weights_dtype(prepared))
        self.optimizer = prepared.optimizer
        self.compiled_sizes: set[int] = set()
        self.compile_record = CompileRecord()
        self.unsupported: dict[str, str] = {}
        self.draws: bool | None = None
        self.notices: list[str] = []  # of a batch that is only measured, too
        self._device = device
        precision = prepared.train.precision
        self._autocast = precision.startswith(("bfloat16", "float16"))
        self._half = torch.float16 if precision == "float16" else torch.bfloat16
        # Every lookup table gives bfloat16, and with it the sum of what branches add. Under
        # autocast alone tables give float32, and so the residual stream is float32: half of what a
        # step of a small model reads and writes.
        for module in self.model.modules() if precision == "bfloat16_stream" else ():
            if isinstance(module, nn.Embedding | Embedding):
                module.register_forward_hook(lambda _module, _inputs, out: out.to(torch.bfloat16))
        drops = {name: m for name, m in self.model.named_modules() if isinstance(m, Dropout)}
        for place, module in enumerate(drops.values()):
            module.place = place
        self.seeds = [f"{name}.seed" for name in drops]
        self._parameters = dict(self.model.named_parameters())
        self._initial_buffers = {name: value.data for name, value in self.model.named_buffers()}
        self._state_names, self._aliases = tuple(self.module_state()), _aliases(self.model)
        self._mapped: StackedLoss = vmap(self._loss)  # over the first dimension of all tensors
        self._compiled: dict[str, Any] = {}
        self.recomputing = False
        # The parameters of the batch whose only slice the module is bound to. At first the module
        # counts as bound to itself, so that `release` frees the weights it was built with.
        self._bound: object = self.model
        self.release()

    def release(self) -> None:
        """Let go of the weights that the module was last used with; its buffers are as new.

        The module of a program outlives batches. Bound to the weights of one, it would keep their
        memory from the next, and would hand on buffers that training has changed.
        """
        if self._bound is None:
            return
        self._bound = None
        for parameter in self.model.parameters():
            parameter.data = parameter.data.new_empty(0)
        for name, value in self.model.named_buffers():
            value.data = self._initial_buffers.get(name, value.data)

    def recompute(self) -> bool:
        """Recompute the activations of blocks (the members of any ModuleList) in backward passes.

        For trials trained alone. False when that is done already, or there are no blocks.
        """
        if self.recomputing:
            return False
        for blocks in self.model.modules():
            for block in blocks if isinstance(blocks, nn.ModuleList) else ():
                block.forward = partial(activation_checkpoint, block.forward, use_reentrant=False)
                self.recomputing = True
        self._compiled.clear()  # it is of the blocks without recomputation
        return self.recomputing

    def module_state(self) -> dict[str, Tensor]:
        """Buffers that a checkpoint would keep, such as running statistics, each by one name."""
        saved = self.model.state_dict()
        return {name: value for name, value in self.model.named_buffers() if name in saved}

    def gradients(
        self,
        mode: GradientMode,
        params: Stacked,
        buffers: Stacked,
        x: Tensor,
        y: Tensor,
        seed: Callable[[int], None],
        scale: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Losses [K], and gradients [K, ...] of `params` in their order, times a `scale` [K].

        `seed` seeds what is random in the module for a slice. Mapped modes have no use for it: vmap
        refuses random numbers.
        """
        if mode in ("alone", "compiled alone"):
            return self._alone(mode, params, buffers, x, y, seed, scale)
        if self.recomputing:
            # A block that recomputes calls itself in the backward pass, when the weights that
            # were put in its place for the forward pass are gone.
            raise torch.OutOfMemoryError("trials that do not fit alone do not fit together")
        self.release()
        if mode == "looped":
            return self._looped(params, buffers, x, y, seed, scale)
        # The map holds the forward pass alone, and autograd differentiates the sum of its losses.
        # The loss of a trial depends on its slice only, so the gradient of the sum holds every
        # trial's. `vmap(grad(...))` would map the backward pass too, for which fused attention
        # has no batching rule: it would fall back to a loop over trials.
        mapped = self._mapped if mode == "mapped" else self._compile(mode, self._mapped)
        with self._forward():
            losses = mapped(params, buffers, x, y)
        grads = _grads(_scaled(losses, scale).sum(), list(params.values()))
        return losses.detach(), grads

    def evaluate(self, params: Stacked, buffers: Stacked, x: Tensor, y: Tensor) -> Tensor:
        """Losses [K] of the module in evaluation mode, nothing compiled."""
        return self._evaluated(self._loss, params, buffers, x, y)

    def hits(self, params: Stacked, buffers: Stacked, x: Tensor, y: Tensor) -> Tensor:
        """The share [K] of x [K, batch, ...] whose class y has the largest logit, in evaluation.

        TypeError or ValueError for a model that returns no logits [batch, classes] without targets.
        """
        return self._evaluated(self._hits, params, buffers, x, y)

    @torch.no_grad()
    def _evaluated(
        self, function: StackedLoss, params: Stacked, buffers: Stacked, x: Tensor, y: Tensor
    ) -> Tensor:
        training = self.model.training
        self.model.eval()
        try:
            if len(x) > 1 and "mapped" not in self.unsupported:
                try:
                    with self._forward():
                        return vmap(function)(params, buffers, x, y)
                except Exception as error:
                    # In evaluation a module may do what it does not do in training: this says
                    # nothing of the mode, and the trials are evaluated one by one.
                    raise_if_out_of_memory(error)
            with self._forward():
                values = [
                    function(_slice_of(params, i), _slice_of(buffers, i), x[i], y[i])
                    for i in range(len(x))
                ]
                return torch.stack(values)
        finally:
            self.model.train(training)

    def update(self, *, compiled: bool) -> Callable[..., None]:
        """The optimizer's update; compiled whole, so that where it fails it has done nothing."""
        if not compiled:
            return self.optimizer.update
        return self._compile(COMPILED_UPDATE, self.optimizer.update, whole=True)

    def _forward(self) -> torch.autocast:
        """Autocast, for forward passes alone: a backward pass follows what they did."""
        return torch.autocast(self._device.type, dtype=self._half, enabled=self._autocast)

    def _loss(self, params: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one slice: the module with these tensors in the place of its own."""
        tensors = self._tensors(params, buffers)
        # Every name of a tied tensor is given here. With `tie_weights`, torch itself would do
        # so, but would leave its tensors in a module that has several names.
        loss = functional_call(self.model, tensors, (x, y), tie_weights=False)
        # A module may put a new tensor in the place of a buffer rather than write into it. torch
        # leaves that tensor in `tensors`; its values go to the batch's.
        for name in self._state_names:
            if tensors[name] is not buffers[name]:
                buffers[name].copy_(tensors[name])
        return loss_of(loss)

    def _hits(self, params: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        tensors = self._tensors(params, buffers)
        logits = functional_call(self.model, tensors, (x,), tie_weights=False)
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(y):
            raise ValueError("forward(inputs) returns no logits [batch, classes]")
        return (logits.argmax(-1) == y).double().mean()

    def _tensors(self, params: Any, buffers: Any) -> dict[str, Tensor]:
        return {
            alias: value
            for name, value in chain(params.items(), buffers.items())
            for alias in self._aliases[name]
        }

    def _compile(
        self, name: str, function: Callable[..., Any], *, whole: bool = False
    ) -> Callable[..., Any]:
        if name not in self._compiled:
            config: Any = torch._dynamo.config
            # Every size of a batch is another shape; torch's limit on them has had two names.
            key = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
            setattr(config, key, max(getattr(config, key), MAX_COMPILATIONS))
            self._compiled[name] = torch.compile(
                function, dynamic=False, fullgraph=whole, options=COMPILE_OPTIONS
            )
        return cast(Callable[..., Any], self._compiled[name])

    def _alone(
        self,
        mode: GradientMode,
        params: Stacked,
        buffers: Stacked,
        x: Tensor,
        y: Tensor,
        seed: Callable[[int], None],
        scale: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The module itself, its weights the only trial's: nothing is mapped, nothing replaced.

        A backward pass that calls the module again (activation checkpointing) then finds them.
        """
        self._bind(params, buffers)
        seed(0)
        module = self.model if mode == "alone" else self._compile(mode, self.model)
        with self._forward():
            loss = loss_of(module(x[0], y[0]))
        self._copy_replaced_buffers(buffers)
        leaves = [self._parameters[name] for name in params]
        grads = _grads(_scaled(loss[None], scale).sum(), leaves)
        return loss.detach()[None], [grad[None] for grad in grads]

    def _bind(self, params: Stacked, buffers: Stacked) -> None:
        """Let the module's tensors be views of the only slice; once for a batch.

        The optimizer writes into the stacked tensors in place, so that the views follow. A batch
        that drops slices has a new dictionary, and is bound again.
        """
        if self._bound is params:
            return
        self.release()
        for name, value in params.items():
            self._parameters[name].data = value.detach()[0]
        others = {**self._parameters, **dict(self.model.named_buffers())}
        for name, value in buffers.items():  # frozen parameters are among them
            others[name].data = value.detach()[0]
        self._bound = params

    def seed(self, seed: int) -> None:
        """Seed the device's generator; `torch.manual_seed` is slow where CUDA was never used."""
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(seed)

    @torch.no_grad()
    def _copy_replaced_buffers(self, buffers: Stacked) -> None:
        """Write into `buffers` what the bound module has put in their place, and bind it again."""
        for name in self._state_names:
            value = self.model.get_buffer(name)
            if value.data_ptr() != buffers[name].data_ptr():
                buffers[name][0].copy_(value)
                value.data = buffers[name][0]

    def _looped(
        self,
        params: Stacked,
        buffers: Stacked,
        x: Tensor,
        y: Tensor,
        seed: Callable[[int], None],
        scale: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        losses, grads = [], []
        for i in range(len(x)):
            leaves = {k: v.requires_grad_() for k, v in _slice_of(params, i).items()}
            seed(i)
            with self._forward():
                loss = self._loss(leaves, _slice_of(buffers, i), x[i], y[i])
            losses.append(loss.detach())
            own = None if scale is None else scale[i]
            grads.append(_grads(_scaled(loss, own), list(leaves.values())))
        return torch.stack(losses), [torch.stack(each) for each in zip(*grads, strict=True)]


def _aliases(model: nn.Module) -> dict[str, list[str]]:
    """All names of each parameter and buffer, by its first; a shared module has one name alone."""
    names: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        parameters = module.named_parameters(recurse=False)
        for name, value in chain(parameters, module.named_buffers(recurse=False)):
            names.setdefault(id(value), []).append(f"{prefix}.{name}" if prefix else name)
    return {aliases[0]: aliases for aliases in names.values()}


def loss_of(output: object) -> Tensor:
    """The loss in what a forward pass returns: TypeError where there is none, or several might be.

    It is the output itself, the one scalar of a tuple such as `(logits, loss)`, or what is called
    `loss` in a mapping or an object, as transformers' models have it.
    """
    candidates: Sequence[object]
    if isinstance(output, Mapping):
        candidates = [output.get("loss")]
    elif isinstance(output, tuple | list) and not hasattr(output, "loss"):
        candidates = [part for part in output if isinstance(part, Tensor) and part.dim() == 0]
    else:
        candidates = [getattr(output, "loss", output)]
    match candidates:
        case [Tensor() as loss] if loss.dim() == 0:
            return loss
    raise TypeError(
        "forward(inputs, targets) must return the loss: a scalar tensor, a tuple with one scalar "
        f"tensor such as (logits, loss), or an object with .loss; not {_described(output)}"
    )


def _described(output: object) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {list(output.shape)}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {', '.join(map(_described, output)) or 'nothing'}"
    return type(output).__name__


def _scaled(losses: Tensor, scale: Tensor | None) -> Tensor:
    """Float32 before it is multiplied: float16 ends at 65504, where the scale begins."""
    return losses if scale is None else losses.float() * scale


def _grads(loss: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """Gradients; zero for a parameter that took no part."""
    return list(torch.autograd.grad(loss, params, materialize_grads=True, allow_unused=True))


def _slice_of(stacked: Stacked, index: int) -> Stacked:
    return {name: value.detach()[index] for name, value in stacked.items()}


@lru_cache(maxsize=16)
def program(prepared: PreparedSpec, device: torch.device) -> Program:
    """The program of a specification: the same object for every batch of it in this process."""
    return Program(prepared, device)


def program_for(spec: TrialSpec, device: str) -> Program:
    """The program of a trial's specification."""
    return program(prepare(spec), torch.device(device))


def random_seed(seed: int, step: int, part: int = 0) -> int:
    """Seed of what is random in a part of a trial's step, by its seed, the step and the part."""
    # The first part has the seed of a step that is not taken apart. 63 bits are what torch takes.
    word = f"{seed}/step/{step}" + f"/{part}" * (part > 0)
    return int.from_bytes(sha256(word.encode()).digest()[:8], "big") >> 1
