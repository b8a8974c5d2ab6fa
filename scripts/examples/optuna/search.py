"""The u-muP paper's independent lines in a study of Optuna's own: a small regression in torch.

python scripts/examples/optuna/search.py [--storage sqlite:///lines.db] [--jobs 2]
"""

from __future__ import annotations

import argparse

import optuna
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution

from sweeper.search.independent import IndependentSearch
from sweeper.search.optuna.enqueue import conclude, enqueue

SPACE = {
    "eta": FloatDistribution(2**-9, 2**-2, log=True),  # the learning rate, where lines begin
    "init": FloatDistribution(2**-3, 2**3, log=True),
    "decay": FloatDistribution(2**-16, 2**-6, log=True),
    "activation": CategoricalDistribution(["relu", "tanh"]),  # the default first
}


def train(eta: float, init: float, decay: float, activation: str, seed: int) -> float:
    """The mean loss over the last of 60 steps of a two-layer network."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(8, 32, generator=generator) * init / 8**0.5
    second = torch.randn(32, 1, generator=generator) / 32**0.5
    weights = [first.requires_grad_(), second.requires_grad_()]
    optimizer = torch.optim.AdamW(weights, lr=eta, weight_decay=decay)
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
    parser.add_argument("--storage", help="where the study is kept; the search goes on there")
    parser.add_argument("--jobs", type=int, default=1, help="threads")
    parser.add_argument("--runs", type=int, default=45, help="trials of the lines")
    arguments = parser.parse_args()

    def objective(trial: optuna.Trial) -> float:
        return train(
            # A line whose best lies at its end goes on beyond the space: here there is room.
            eta=trial.suggest_float("eta", 2**-14, 2**3, log=True),
            init=trial.suggest_float("init", 2**-8, 2**8, log=True),
            decay=trial.suggest_float("decay", 2**-24, 2**2, log=True),
            activation=trial.suggest_categorical("activation", ["relu", "tanh"]),
            seed=trial.user_attrs["seed"],
        )

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name="lines", storage=arguments.storage, load_if_exists=True)
    strategy = IndependentSearch(runs=arguments.runs)
    while waiting := enqueue(study, strategy, SPACE):
        study.optimize(objective, n_trials=waiting, n_jobs=arguments.jobs)

    found = conclude(study, strategy, SPACE)
    print(f"{found.objective:.4f} ({found.basis}) after {found.runs} trials:")
    for name, place in found.best_log2.items():
        choices = getattr(SPACE[name], "choices", None)
        print(f"  {name} = {choices[round(place)] if choices else format(2**place, 'g')}")
    for note in found.notes:
        print(f"  {note}")
    print(f"The luckiest run, which study.best_value names, had {study.best_value:.4f}.")


if __name__ == "__main__":
    main()
