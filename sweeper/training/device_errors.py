"""What an error of a device means: too little memory, a broken device, or the model's own fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch

from sweeper.errors import BrokenDeviceError, first_line

_OUT_OF_MEMORY = (
    "out of memory",  # torch, CUDA, Triton
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED, and cuDNN's and cuSOLVER's
    "cublas_status_not_initialized",  # a handle's workspace had no place
    "can't allocate memory",  # torch on a CPU
    "not enough memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, by whichever library tried it.

    Libraries have their own words, and compilers wrap errors in their own; causes count.
    """
    for one in _causes(error):
        # CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation: out of memory
        text = str(one).lower()
        if isinstance(one, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(one, RuntimeError) and any(
            words in text or words in text.replace("_", " ") for words in _OUT_OF_MEMORY
        ):
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, what it came of, what that came of, ..."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        # torch's compiler keeps what it wraps as `inner_exception`.
        current = getattr(current, "inner_exception", None) or current.__cause__


def forget_frames(error: BaseException) -> None:
    """Let go of the tensors that the frames of `error`, and of what it came of, keep alive.

    Of what was being handled when it was raised as well, though it says nothing of the error.
    """
    seen: list[BaseException] = []
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        one.__traceback__ = None
        ahead += [getattr(one, "inner_exception", None), one.__cause__, one.__context__]


def raise_if_out_of_memory(error: BaseException) -> None:
    """`torch.OutOfMemoryError` from `error` if an allocation failed: callers know one kind."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    if is_out_of_memory(error):
        raise torch.OutOfMemoryError(str(error)) from error


def raise_if_broken(device: torch.device, error: BaseException) -> None:
    """BrokenDeviceError if `device` does nothing more in this process after `error`.

    Asked of the device itself: which errors leave a CUDA context unusable is the driver's affair.
    """
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
