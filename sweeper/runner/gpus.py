"""This machine's GPUs, by the names that processes know them by."""

from __future__ import annotations

import os

import torch


def visible_gpus(device: str) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES should be for each GPU that `device` ("cuda" or "cuda:i") names."""
    if not device.startswith("cuda"):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = visible.split(",")[:count] if visible else [str(index) for index in range(count)]
    _, _, index = device.partition(":")
    return tuple(name.strip() for name in ([names[int(index)]] if index else names))
