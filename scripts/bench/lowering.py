"""The kernels that torch.compile would launch on a GPU, found without one.

A function is traced with fake tensors. They claim to be on the CPU, because a build of torch
without CUDA cannot differentiate on any other device, and the graphs of ATen operations are the
same. Before Inductor splits a graph into forward and backward all of it moves to CUDA; from there
on everything is Inductor's own: it lowers, fuses and schedules for the GPU described here, and
stops where it would write Triton code.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # its modules look at functions that are replaced here: load them before
import torch._inductor.compile_fx as compile_fx
import torch._inductor.scheduler as scheduling
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config
from torch._inductor.dependencies import MemoryDep
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import MultiOutput
from torch._inductor.output_code import OutputCode, set_tracing_context_output_strides
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
GUARDS, CUDA_INDEX, META_INDEX = "_ZN3c104impl26device_guard_impl_registryE", 1, 14
"""The symbol of torch's device guards, a pointer for each kind of device, and two of these."""
GPU = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    warp_size=32,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20,
    total_memory=139 << 30,
)
"""What Inductor may ask of the device."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One launch: what it computes, and the bytes of every buffer that it reads and writes."""

    name: str
    buffers: dict[str, int]

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.buffers.values())


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """The kernels of one graph."""

    backward: bool
    kernels: tuple[Kernel, ...]

    @property
    def bytes(self) -> int:
        """Of all kernels."""
        return sum(kernel.bytes for kernel in self.kernels)


@contextmanager
def lowering() -> Iterator[list[Lowered]]:
    """What is compiled inside is lowered for the GPU and listed here, and computes nothing.

    Tensors made inside are fake; the compiled functions return fake tensors of the right shapes.
    """
    found: list[Lowered] = []
    generate, joint_passes = compile_fx.fx_codegen_and_compile, _joint_passes()

    def generated(gm: Any, inputs: Any, *rest: Any, **options: Any) -> OutputCode:
        outputs = [_value(node) for node in gm.graph.find_nodes(op="output")[0].args[0]]
        inputs = [_on_gpu(value) for value in inputs]
        code = generate(gm, inputs, *rest, **options)
        return _Nothing(outputs, code)

    def counted(graph: GraphLowering) -> Any:
        graph.init_wrapper_code()
        graph._update_scheduler()
        backward = bool(graph.is_backward)
        found.append(Lowered(backward=backward, kernels=tuple(_kernels(graph))))
        graph.cache_key = graph.cache_path = ""
        graph.cache_linemap = []
        return SimpleNamespace(call=None)

    with ExitStack() as stack:
        for owner, name, stand_in in (
            (compile_fx, "fx_codegen_and_compile", generated),
            (compile_fx, "_recursive_joint_graph_passes", joint_passes),
            (GraphLowering, "compile_to_module", counted),
            (F, "scaled_dot_product_attention", _flash_attention),
            (scheduling, "has_triton", lambda *_: True),
            (torch.cuda, "get_device_properties", lambda *_: GPU),
            (torch.cuda, "get_device_capability", lambda *_: (GPU.major, GPU.minor)),
            (CudaInterface, "get_device_properties", staticmethod(lambda *_: GPU)),
            (CudaInterface.Worker, "get_device_properties", staticmethod(lambda *_: GPU)),
            (CudaInterface, "get_compute_capability", staticmethod(lambda *_: 90)),
            (CudaInterface, "is_bf16_supported", staticmethod(lambda *_, **__: True)),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        stack.callback(_forget)
        stack.enter_context(config.patch(fx_graph_cache=False, fx_graph_remote_cache=False))
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        stack.enter_context(_device_guard())
        stack.enter_context(FakeTensorMode())
        _forget()
        yield found


@contextmanager
def _device_guard() -> Iterator[None]:
    """Let torch's functions take fake CUDA tensors where it was built without CUDA.

    They enter the tensor's device, which such a build knows nothing of; the guard of the meta
    device, which does nothing, takes its place. torch does as much itself (see
    `_ensureCUDADeviceGuardSet`), but in builds with CUDA alone.
    """
    if torch.backends.cuda.is_built():
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so"))
    guards = (ctypes.c_void_p * (META_INDEX + 1)).in_dll(library, GUARDS)
    guards[CUDA_INDEX] = guards[META_INDEX]
    try:
        yield
    finally:
        guards[CUDA_INDEX] = None


def _forget() -> None:
    """Nothing compiled here may be used elsewhere, nor the other way round."""
    torch._dynamo.reset()
    DeviceProperties.create.cache_clear()


class _Nothing(OutputCode):
    """Compiled code that only knows the shapes of its outputs."""

    def __init__(self, outputs: list[Any], code: Any) -> None:
        """`code` is what Inductor made: it knows the strides that it gives to the outputs."""
        super().__init__()
        self.outputs, self.code = outputs, code
        self._boxed_call = True  # of the instance: what wraps it copies no attribute of the class

    def __call__(self, inputs: Any) -> list[Any]:
        """Fake tensors of the mode that the caller is in."""
        return [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            if isinstance(value, Tensor)
            else value
            for value in self.outputs
        ]

    def post_compile(self, example_inputs: Any, *_: Any) -> None:
        """The backward pass is compiled for what the forward pass leaves."""
        set_tracing_context_output_strides(example_inputs, self.code)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is no Triton code."""


def _joint_passes() -> Any:
    """Inductor's passes over forward and backward together; then the graph moves to the GPU."""
    passes = compile_fx._recursive_joint_graph_passes

    def moving(gm: Any, *rest: Any, **options: Any) -> Any:
        result = passes(gm, *rest, **options)
        move_graph(gm if result is None else result)
        return result

    return moving


def move_graph(gm: torch.fx.GraphModule) -> None:
    """Inputs and what is made of them to the GPU; numbers that were wrapped as tensors stay."""
    for node in gm.graph.nodes:
        inputs = tree_leaves([_value(one) for one in node.all_input_nodes])
        made_here = "device" in node.kwargs and node.target != torch.ops.aten.scalar_tensor.default
        follows = any(isinstance(one, Tensor) and one.device == CUDA for one in inputs)
        if not (node.op == "placeholder" or made_here or follows):
            continue
        if "val" in node.meta:
            node.meta["val"] = tree_map(_on_gpu, node.meta["val"])
        if "device" in node.kwargs:
            node.update_kwarg("device", CUDA)
    gm.recompile()


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def _on_gpu(value: Any) -> Any:
    if not isinstance(value, FakeTensor) or value.device == CUDA:
        return value
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=CUDA)


def _flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """What `scaled_dot_product_attention` does on a GPU, in the types that autocast chooses."""
    assert attn_mask is None, "flash attention takes no mask"
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    out: Tensor = flash(q, k, v, dropout_p, is_causal, scale=scale)[0]
    return out


def _kernels(graph: GraphLowering) -> Iterator[Kernel]:
    """Every node of the schedule that launches something."""
    nodes = graph.scheduler.nodes
    parts = [node.node for node in nodes if isinstance(node.node, MultiOutput)]
    for node in nodes:
        if isinstance(node, scheduling.NopKernelSchedulerNode) or node.node in parts:
            continue  # a part is one of several results of a kernel
        sizes = _accesses(node)
        for part in parts:
            if node.node is not None and part.inputs[0].get_name() == node.node.get_name():
                sizes[part.get_name()] = _whole(part)
                sizes.pop(node.node.get_name(), None)
        yield Kernel(
            name=_name(node),
            buffers={f"{name} {_shape(name)}".strip(): size for name, size in sizes.items()},
        )


def _accesses(node: Any) -> dict[str, int]:
    """Bytes of each buffer that a kernel reads and writes, by the buffer's name.

    Inductor's own count takes all of a buffer where a fused kernel accesses some of it.
    """
    sizes: dict[str, int] = node.get_read_write_buffer_accesses(True, True)
    accesses: dict[str, set[Any]] = {}
    for dep in (*node.read_writes.reads, *node.read_writes.writes):
        accesses.setdefault(dep.name, set()).add(
            dep.normalize() if isinstance(dep, MemoryDep) else dep
        )
    for name, deps in accesses.items():
        if name in sizes and all(isinstance(dep, MemoryDep) for dep in deps):
            sizes[name] = min(sizes[name], sum(dep.numbytes_hint() for dep in deps))
    return sizes


def _whole(buffer: Any) -> int:
    """Bytes of a buffer."""
    return prod(int(size) for size in buffer.get_size()) * buffer.get_dtype().itemsize


def _name(node: Any) -> str:
    """The operations of a kernel, the most frequent first."""
    origins = Counter(
        origin.name.rstrip("0123456789").rstrip("_")
        for part in node.get_nodes()
        for origin in (part.node.get_origins() if part.node is not None else ())
    )
    kind = "extern" if node.is_extern() else "fused"
    return f"{kind} {' '.join(name for name, _ in origins.most_common(6))}"


def _shape(name: str) -> str:
    try:
        sizes = [int(size) for size in V.graph.get_buffer(name).get_size()]
        return f"{V.graph.get_dtype(name)}".removeprefix("torch.") + str(sizes)
    except (AttributeError, NotImplementedError, TypeError, KeyError, RuntimeError):
        return ""
