"""The u-muP paper's independent lines in a study of Optuna's own: a small regression in torch.

python scripts/examples/optuna/search.py [--storage sqlite:///lines.db] [--jobs 2]
"""

from __future__ import annotations

import argparse

import optuna
import torch

from sweeper.samplers import IndependentLines

SPACE = {
    "lr": (2**-9, 2**-2, 2**-6),  # low, high and default: a range that is searched in log2
    "init": (2**-3, 2**3, 1.0),
    "decay": (2**-16, 2**-6, 2**-12),
    "activation": ["relu", "tanh"],  # choices, the default first
}


def train(lr: float, init: float, decay: float, activation: str, seed: int) -> float:
    """The mean loss over the last of 60 steps of a two-layer network."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(8, 32, generator=generator) * init / 8**0.5
    second = torch.randn(32, 1, generator=generator) / 32**0.5
    weights = [first.requires_grad_(), second.requires_grad_()]
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=decay)
    losses = []
    for _ in range(60):
        x = torch.randn(64, 8, generator=generator)
        y = torch.sin(x[:, :1] + x[:, 1:2])
        loss = ((getattr(torch, activation)(x @ first) @ second - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / 20


def main() -> None:
    """Search, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", help="where the study is kept; several processes may share it")
    parser.add_argument("--jobs", type=int, default=1, help="threads")
    parser.add_argument("--runs", type=int, default=45, help="trials of the lines")
    arguments = parser.parse_args()

    sampler = IndependentLines(SPACE, learning_rate="lr", runs=arguments.runs, seed=0)

    def objective(trial: optuna.Trial) -> float:
        return train(**sampler.suggest(trial), seed=sampler.seed(trial))

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="lines", storage=arguments.storage, sampler=sampler, load_if_exists=True
    )
    study.optimize(objective, n_jobs=arguments.jobs)  # ends by itself

    answer = sampler.answer(study)
    print(f"{answer.value:.4f} ({answer.basis}) after {answer.conclusion.runs} trials:")
    for name, value in answer.params.items():
        print(f"  {name} = {value if isinstance(value, str) else format(value, 'g')}")
    for note in answer.notes:
        print(f"  {note}")
    print(f"The luckiest run, which study.best_value names, had {study.best_value:.4f}.")


if __name__ == "__main__":
    main()
