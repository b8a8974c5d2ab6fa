"""A plan's settings on a module of anyone's: initial weights, and groups for a torch optimizer.

Everything goes by parameter name, so that copies, compiled, wrapped and sharded modules are all
served; nothing is ever kept on a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.errors import BadInput
from sweeper.models.padding import padding_rows
from sweeper.scaling.patterns import matching
from sweeper.scaling.prescription import AbsorbedParam
from sweeper.scaling.spec import with_layer
from sweeper.training.draw import normal

WRAPPER_NAMES = {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
"""Parts of a name that DDP, torch.compile, activation checkpointing and FSDP1 put into it."""
MAX_NAMES = 20
"""An error lists this many names of a kind at most."""

Matched = list[tuple[AbsorbedParam, nn.Parameter]]


def unwrapped(name: str) -> str:
    """`name` without the parts that wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPER_NAMES)


def match_parameters(
    settings: Sequence[AbsorbedParam], model: nn.Module, differs: Sequence[str] = ()
) -> Matched:
    """Every parameter of `model`, in its order, beside its settings.

    A name that the plan has as it stands wins; otherwise wrappers are taken off on both sides.
    BadInput lists parameters that only the model or only the plan has, and other shapes where
    the plan's name matches none of the patterns `differs`.
    """
    if not settings:
        raise BadInput(
            "the plan is of a command that scales by itself: it holds hyperparameters and no "
            "parameter. For one that init_ and param_groups take, search with a scheme, as in "
            "parameterization=mup, and give the command {plan}"
        )
    free = matching("differs", differs, [setting.name for setting in settings])
    exact = {setting.name: setting for setting in settings}
    cores: dict[str, list[AbsorbedParam]] = {}
    for setting in settings:
        cores.setdefault(unwrapped(setting.name), []).append(setting)
    matched: Matched = []
    unknown, reshaped, unmatched = [], [], set(exact)
    for name, parameter in model.named_parameters():
        options = [exact[name]] if name in exact else cores.get(unwrapped(name), [])
        if len(options) != 1 or options[0].name not in unmatched:
            unknown.append(f"{name} {list(parameter.shape)}")
            continue
        unmatched.discard(options[0].name)
        if tuple(parameter.shape) != options[0].shape and options[0].name not in free:
            reshaped.append(f"{name} {list(parameter.shape)}, planned {list(options[0].shape)}")
        matched.append((options[0], parameter))
    _refuse(unknown, [name for name in exact if name in unmatched], reshaped)
    return matched


def _refuse(unknown: list[str], missing: list[str], reshaped: list[str]) -> None:
    """BadInput that lists what does not fit, if anything."""
    kinds = (
        ("the plan does not know these parameters of the model", unknown),
        ("the model does not have these parameters of the plan", missing),
        ("these parameters have another shape", reshaped),
    )
    parts = []
    for words, names in kinds:
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        if names:
            parts.append(f"{words}: {'; '.join(names[:MAX_NAMES])}{more}")
    if parts:
        hint = "Is it the model, width and depth that the plan was made for?"
        if reshaped:
            name = reshaped[0].partition(" ")[0]
            hint += f' What may differ, such as positions, is named: differs=["{name}"]'
        raise BadInput(". ".join([*parts, hint]))


@torch.no_grad()
def init_(
    settings: Sequence[AbsorbedParam], model: nn.Module, seed: int, differs: Sequence[str] = ()
) -> None:
    """Draw the parameters of `model` in place, by (seed, the plan's name) alone.

    Neither the order of modules nor sharding changes a value: each process draws the whole
    parameter (8 bytes an entry, one parameter at a time) and keeps its part of it, without any
    communication. What is kept or frozen stays as it is, and the row of a padding is 0. BadInput
    as `match_parameters`, and for parameters without memory.
    """
    matched = match_parameters(settings, model, differs)
    if empty := [setting.name for setting, parameter in matched if parameter.is_meta]:
        raise BadInput(
            f"{len(empty)} parameters are on the meta device, {empty[0]} first: "
            "call model.to_empty(device=...) before plan.init_(model)"
        )
    padding = {id(model.get_parameter(name)): row for name, row in padding_rows(model).items()}
    for setting, parameter in matched:
        if setting.frozen or setting.init == "kept":
            continue
        values = normal(setting.name, parameter.shape, seed) * setting.init_std + setting.init_mean
        if (row := padding.get(id(parameter))) is not None:
            values[row] = 0
        parameter.copy_(_as_stored(values, parameter))


def _as_stored(values: Tensor, parameter: nn.Parameter) -> Tensor:
    """`values` as `parameter` is kept: its type, device and, for a DTensor, its shards."""
    values = values.to(parameter.dtype).to(parameter.device)
    data: Any = parameter
    if not hasattr(data, "device_mesh"):
        return values
    # Not at the top: slow to import, and not part of every build of torch.
    from torch.distributed.tensor import DTensor, Replicate

    mesh = data.device_mesh
    # All ranks drew the same, so a replica becomes shards by slicing alone.
    whole = DTensor.from_local(values, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=data.placements)


def param_groups(
    settings: Sequence[AbsorbedParam],
    model: nn.Module,
    lr_scale: float,
    differs: Sequence[str] = (),
    betas: tuple[float, float] | None = None,
) -> list[dict[str, Any]]:
    """Parameters of equal settings as one group; see `TransferPlan.param_groups`."""
    if not lr_scale > 0:
        raise BadInput(f"lr_scale={lr_scale!r} is refused: a positive number")
    matched = match_parameters(settings, model, differs)
    parameters = {setting.name: parameter for setting, parameter in matched}
    groups = []
    for name, members in grouped_settings([setting for setting, _ in matched]):
        lr = members[0].lr * lr_scale
        groups.append(
            {
                "params": [parameters[setting.name] for setting in members],
                "name": name,
                "lr": lr,
                "initial_lr": lr,
                "eps": members[0].eps,
                "weight_decay": members[0].weight_decay / lr,
                **({} if betas is None else {"betas": betas}),
            }
        )
    return groups


def grouped_settings(
    settings: Iterable[AbsorbedParam],
) -> list[tuple[str, list[AbsorbedParam]]]:
    """What is trained, by equal settings; a group's name is for people: `*` for layers' numbers."""
    groups: dict[tuple[float, float, float], list[AbsorbedParam]] = {}
    for setting in settings:
        if not setting.frozen:
            key = (setting.lr, setting.eps, setting.weight_decay)
            groups.setdefault(key, []).append(setting)
    named = []
    for members in groups.values():
        patterns = dict.fromkeys(with_layer(setting.name, "*") for setting in members)
        named.append((", ".join(patterns), members))
    return named
