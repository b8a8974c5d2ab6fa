"""The optimizers as others wrote them, trial by trial.

torch's own, pytorch_optimizer's SOAP, and Lion and Shampoo from their papers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any

import numpy as np
import pytorch_optimizer
import torch
from scipy.linalg import fractional_matrix_power
from torch import Tensor

from sweeper.scaling.spec import Update
from tests.engine.optimizers import Member

Step = Callable[[list[Tensor], float], None]
"""One step in place of a trial's parameters, given their gradients and the schedule factor."""


def stepper(made: torch.optim.Optimizer) -> Step:
    """Steps of torch's optimizer, every parameter in its own group."""
    peaks = [group["lr"] for group in made.param_groups]

    def step(grads: list[Tensor], factor: float) -> None:
        for group, peak, grad in zip(made.param_groups, peaks, grads, strict=True):
            group["lr"] = peak * factor
            group["params"][0].grad = grad.reshape(group["params"][0].shape).clone()
        made.step()

    return step


def groups(
    params: Sequence[Tensor], member: Member, indices: Sequence[int]
) -> list[dict[str, Any]]:
    """torch couples the decay to the learning rate, so it is given decay / lr."""
    return [
        {
            "params": [p],
            "lr": member.lr_of(i),
            "weight_decay": member.weight_decay / member.lr_of(i),
        }
        for i, p in zip(indices, params, strict=True)
    ]


def adamw(
    optimizer: Any,
    params: list[Tensor],
    kinds: Sequence[Update],
    member: Member,
    indices: Sequence[int] | None = None,
) -> Step:
    settings = optimizer.settings(member.values)
    if getattr(optimizer, "atan2", False):
        return adam_by_atan2(settings, params, member)
    chosen = groups(params, member, indices or range(len(params)))
    for group, i in zip(chosen, indices or range(len(params)), strict=True):
        group["eps"] = member.eps_of(i)
    return stepper(torch.optim.AdamW(chosen, betas=(settings["beta1"], settings["beta2"])))


def adam_by_atan2(settings: dict[str, float], params: list[Tensor], member: Member) -> Step:
    """4/pi atan2(m, sqrt v) of bias-corrected moments (arXiv:2407.05872), no eps."""
    beta1, beta2 = settings["beta1"], settings["beta2"]
    moments = [torch.zeros(2, *p.shape, dtype=p.dtype) for p in params]
    count = 0

    def step(grads: list[Tensor], factor: float) -> None:
        nonlocal count
        count += 1
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            m, v = moments[i]
            m.copy_(beta1 * m + (1 - beta1) * g)
            v.copy_(beta2 * v + (1 - beta2) * g * g)
            angle = torch.atan2(m / (1 - beta1**count), (v / (1 - beta2**count)).sqrt())
            p.data.mul_(1 - factor * member.weight_decay)
            p.data.sub_(factor * member.lr_of(i) * 4 / pi * angle)

    return step


def sgd(optimizer: Any, params: list[Tensor], kinds: Sequence[Update], member: Member) -> Step:
    """torch's decay is a gradient's: here it is done beside it, at the same weights."""
    momentum = optimizer.settings(member.values)["momentum"]
    chosen = [group | {"weight_decay": 0.0} for group in groups(params, member, range(len(params)))]
    nesterov = optimizer.nesterov and momentum > 0  # else torch refuses it
    inner = stepper(torch.optim.SGD(chosen, momentum=momentum, nesterov=nesterov))

    def step(grads: list[Tensor], factor: float) -> None:
        with torch.no_grad():
            for p in params:
                p.mul_(1 - factor * member.weight_decay)
        inner(grads, factor)

    return step


def lion(optimizer: Any, params: list[Tensor], kinds: Sequence[Update], member: Member) -> Step:
    """Algorithm 2 of the paper; lambda is the decay over the learning rate."""
    settings = optimizer.settings(member.values)
    beta1, beta2 = settings["beta1"], settings["beta2"]
    m = [torch.zeros_like(p) for p in params]

    def step(grads: list[Tensor], factor: float) -> None:
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            eta, decay = factor * member.lr_of(i), member.weight_decay / member.lr_of(i)
            p.data.sub_(eta * ((beta1 * m[i] + (1 - beta1) * g).sign() + decay * p.data))
            m[i] = beta2 * m[i] + (1 - beta2) * g

    return step


def adafactor(
    optimizer: Any, params: list[Tensor], kinds: Sequence[Update], member: Member
) -> Step:
    """Learning rates must stay below t^-1/2, where torch caps them."""
    chosen = groups(params, member, range(len(params)))
    for i, group in enumerate(chosen):
        group["eps"] = (member.eps_of(i), optimizer.rms_floor)
    made = torch.optim.Adafactor(chosen, beta2_decay=optimizer.beta2_decay)
    for group in made.param_groups:
        group["d"] = optimizer.clip  # torch's constructor refuses what is below 1
    return stepper(made)


def muon(optimizer: Any, params: list[Tensor], kinds: Sequence[Update], member: Member) -> Step:
    """torch's Muon for hidden matrices, its factor of shape divided out; else torch's AdamW."""
    hidden, others, plain = _beside_adamw(optimizer, params, kinds, member)
    flat = [params[i].detach().view(len(params[i]), -1) for i in hidden]
    chosen = groups(flat, member, hidden)
    for group, p, i in zip(chosen, flat, hidden, strict=True):
        ratio = sqrt(max(1.0, p.shape[0] / p.shape[1]))
        group["lr"], group["weight_decay"] = group["lr"] / ratio, group["weight_decay"] * ratio
        group["eps"] = member.eps_of(i)
    fixed = {
        "momentum": optimizer.settings(member.values)["momentum"],
        "nesterov": optimizer.nesterov,
        "ns_coefficients": tuple(optimizer.coefficients),
        "ns_steps": optimizer.steps,
    }
    orthogonal = stepper(torch.optim.Muon(chosen, **fixed))

    def step(grads: list[Tensor], factor: float) -> None:
        plain([grads[i] for i in others], factor)
        orthogonal([grads[i] for i in hidden], factor)

    return step


def shampoo(optimizer: Any, params: list[Tensor], kinds: Sequence[Update], member: Member) -> Step:
    """The paper's Algorithm 1 with bias-corrected averages, by SciPy's powers of matrices."""
    settings = optimizer.settings(member.values)
    beta1, beta2 = settings["beta1"], settings["beta2"]
    hidden, others, plain = _beside_adamw(optimizer, params, kinds, member)
    state: dict[int, list[Any]] = {}
    count = 0

    def inverse_root(mean: Any, eps: float) -> Any:
        """In the directions that gradients had; SciPy would blow up rounding in the others."""
        values, vectors = np.linalg.eigh(mean)
        basis = vectors[:, values > np.finfo(float).eps * len(mean) * max(values[-1], 0.0)]
        root = fractional_matrix_power(basis.T @ mean @ basis, 0.5) if basis.size else mean[:0, :0]
        inner = root + eps * np.eye(len(root))
        return basis @ (fractional_matrix_power(inner, -0.5) if basis.size else inner) @ basis.T

    def step(grads: list[Tensor], factor: float) -> None:
        nonlocal count
        count += 1
        plain([grads[i] for i in others], factor)
        for i in hidden:
            g = grads[i].reshape(len(grads[i]), -1).numpy()
            sums = state.setdefault(i, [0.0 * g, 0.0 * g @ g.T, 0.0 * g.T @ g])
            for j, (beta, new) in enumerate([(beta1, g), (beta2, g @ g.T), (beta2, g.T @ g)]):
                sums[j] = beta * sums[j] + (1 - beta) * new
            before, behind = (
                inverse_root(side / (1 - beta2**count), member.eps_of(i)) for side in sums[1:]
            )
            move = before @ (sums[0] / (1 - beta1**count)) @ behind
            p = params[i].data
            p.mul_(1 - factor * member.weight_decay)
            p.sub_(factor * member.lr_of(i) * torch.from_numpy(move.real.copy()).view_as(p))

    return step


def _beside_adamw(
    optimizer: Any, params: list[Tensor], kinds: Sequence[Update], member: Member
) -> tuple[list[int], list[int], Step]:
    """Indices of matrices with a rule of their own, of all else, and torch's AdamW for that."""
    own = [i for i, kind in enumerate(kinds) if kind is Update.ORTHOGONAL or kind.holds_norm]
    others = [i for i in range(len(params)) if i not in own]
    if not others:
        return own, others, lambda grads, factor: None
    return own, others, adamw(optimizer, [params[i] for i in others], kinds, member, others)


def _seen(sides: Sequence[Tensor], bases: Sequence[Tensor]) -> list[Tensor]:
    """Eigenvectors of the sides, 0 where the eigenvalue is rounding."""
    values = [torch.diagonal(q.T @ side @ q) for side, q in zip(sides, bases, strict=True)]
    least = [v.max().clamp(min=0) * torch.finfo(v.dtype).eps * len(v) for v in values]
    return [q * (v > low) for q, v, low in zip(bases, values, least, strict=True)]


def soap(optimizer: Any, params: list[Tensor], kinds: Sequence[Update], member: Member) -> Step:
    """pytorch_optimizer's, which adds eps before its bias correction and decays by itself."""
    settings = optimizer.settings(member.values)
    hidden, others, plain = _beside_adamw(optimizer, params, kinds, member)
    flat = [params[i].detach().view(len(params[i]), -1) for i in hidden]
    chosen = [
        group | {"weight_decay": 0.0, "betas": (settings["beta1"], settings["beta2"])}
        for group in groups(flat, member, hidden)
    ]
    frequency = optimizer.every
    made: Any = pytorch_optimizer.SOAP(chosen, precondition_frequency=frequency)
    # By default it goes on from its last bases by one power iteration: these hold arbitrary
    # vectors where no gradient was, and what follows is no function of the gradients.
    eigenbases = made.get_orthogonal_matrix
    made.get_orthogonal_matrix = lambda sides: _seen(sides, eigenbases(sides))
    made.get_orthogonal_matrix_qr = lambda state, *_: made.get_orthogonal_matrix(state["GG"])
    inner = stepper(made)
    count = 0

    def step(grads: list[Tensor], factor: float) -> None:
        nonlocal count
        plain([grads[i] for i in others], factor)
        for p in flat:
            p.mul_(1 - factor * member.weight_decay)
        for i, group in zip(hidden, made.param_groups, strict=True):
            group["eps"] = member.eps_of(i) * sqrt(1 - settings["beta2"] ** max(count, 1))
        inner([grads[i] for i in hidden], factor)
        count += 1

    return step


def adamh(optimizer: Any, params: list[Tensor], kinds: Sequence[Update], member: Member) -> Step:
    """The rule in plain torch, a matrix at a time, as marin's description of it has it."""
    settings = optimizer.settings(member.values)
    on_spheres, others, plain = _beside_adamw(optimizer, params, kinds, member)
    moments = {i: [torch.zeros_like(params[i]), torch.zeros_like(params[i])] for i in on_spheres}
    muon = {i: torch.zeros_like(params[i]) for i in on_spheres}
    rows: dict[int, Tensor] = {}
    count = 0

    def adam(i: int, g: Tensor) -> Tensor:
        m, v = moments[i]
        m.copy_(settings["beta1"] * m + (1 - settings["beta1"]) * g)
        v.copy_(settings["beta2"] * v + (1 - settings["beta2"]) * g * g)
        root = (v / (1 - settings["beta2"] ** count)).sqrt()
        return m / (1 - settings["beta1"] ** count) / (root + member.eps_of(i))

    def orthogonal(i: int, g: Tensor) -> Tensor:
        muon[i] = settings["momentum"] * muon[i] + (1 - settings["momentum"]) * g
        m = settings["momentum"] * muon[i] + (1 - settings["momentum"]) * g
        x = (m if optimizer.nesterov else muon[i]).reshape(len(g), -1)
        x = x / max(float(x.norm()), member.eps_of(i))
        a, b, c = optimizer.coefficients
        for _ in range(optimizer.steps):
            x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
        if optimizer.normuon:
            x = normuon_rows(rows, i, x, optimizer.normuon)
        return x.view_as(g)

    def step(grads: list[Tensor], factor: float) -> None:
        nonlocal count
        count += 1
        plain([grads[i] for i in others], factor)
        for i in on_spheres:
            u = (orthogonal if kinds[i].orthogonal else adam)(i, grads[i])
            p = params[i].data
            moved = p - factor * member.lr_of(i) * p.norm() * u / max(float(u.norm()), 1e-10)
            p.copy_(moved * p.norm() / moved.norm())

    return step


def normuon_rows(rows: dict[int, Tensor], i: int, o: Tensor, beta2: float) -> Tensor:
    """Algorithm 1 of arXiv:2510.05491 behind the orthogonalisation."""
    rows[i] = beta2 * rows.get(i, torch.zeros(len(o), 1, dtype=o.dtype)) + (1 - beta2) * (
        o * o
    ).mean(1, keepdim=True)
    normed = o / (rows[i].sqrt() + 1e-10)
    return normed * o.norm() / (normed.norm() + 1e-10)


ORACLES: dict[str, Callable[[Any, list[Tensor], Sequence[Update], Member], Step]] = {
    "adafactor": adafactor,
    "adamh": adamh,
    "adamw": adamw,
    "lion": lion,
    "muon": muon,
    "muonh": adamh,
    "sgd": sgd,
    "shampoo": shampoo,
    "soap": soap,
}
