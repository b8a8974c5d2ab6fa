"""A whole independent search: ours against plain PyTorch processes that Optuna feeds.

    python scripts/bench/search.py --steps 20 --processes 2 --out search.json           # a CPU
    python scripts/bench/search.py --steps 2000 --processes 14 --peer-trials 56         # a GPU

Both sides train the same trials: those that the search asked for. The peer is what one would write
without batched trials: a loop with torch's own AdamW in every process, and one driver that asks
and tells an Optuna study on SQLite (several would claim the same trials twice). Its processes are
started, and have taken a step, before its time begins. `--peer-trials` trains only so many of them
on the peer's side and extrapolates, which the output then says.

The sides must train alike, and the order of sums differs. Where training is stable this moves an
objective by about 1e-7 of it. Where it is not, as at a large eta with large attention logits, it
grows: there plain training itself moves by 0.07 to 3 % when its initial weights are moved by 1e-7
of them. So the largest difference says how unstable the worst trial is, not whether the sides are
equal: it is told, but judged are the median, and the share of trials that are far apart.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from findings import Findings
from rich.console import Console

from sweeper.config.compose import compose_tree
from sweeper.config.settings import resolve
from sweeper.data.corpus import Corpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.study.study import StudyRecord
from sweeper.sweep.experiment import open_experiment
from sweeper.trial import Result, Trial

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"cpu": (1e-5, 1e-3), "cuda": (0.02, 0.02)}
"""What the median difference may be, and what counts as far apart: float32; bfloat16, a guess."""
FAR_SHARE = 0.2
"""So many of the trials may be far apart: of a search on a CPU, 14 % were."""


class Plain:
    """A trial as everyone writes it: a module, torch's AdamW with groups, a schedule, autocast."""

    def __init__(self, trial: Trial, corpus: Corpus, device: str) -> None:
        """The same initial weights as ours."""
        run = BatchedRun(BatchedTrials(trials=(trial,), corpus=corpus))
        self.train, self.trial, self.corpus, self.device = (
            run.prepared.train,
            trial,
            corpus,
            device,
        )
        with torch.device(device):
            self.model = run.prepared.model()
        weights = {name: value[0].detach() for name, value in (run.params | run.buffers).items()}
        self.model.load_state_dict(weights, strict=False)
        buffers = dict(self.model.named_buffers())
        for name in run.buffers:
            buffers[name].copy_(weights[name])
        self.optimizer = torch.optim.AdamW(self._groups(run), fused=device != "cpu")

    def _groups(self, run: BatchedRun) -> list[dict[str, Any]]:
        """Parameters of equal settings as one group."""
        own = run.prepared.optimizer
        groups: dict[tuple[float, float, float], list[Any]] = {}
        prescriptions = run.prepared.prescriptions(self.trial.hps)
        for name, parameter in self.model.named_parameters():
            numbers = prescriptions[name]
            key = (numbers.lr, numbers.eps, numbers.weight_decay)
            groups.setdefault(key, []).append(parameter)
        betas = (own.beta1, own.beta2)  # type: ignore[attr-defined]
        return [
            # torch multiplies the decay by the learning rate; ours does not.
            {"params": members, "lr": lr, "eps": eps, "weight_decay": decay / lr, "betas": betas}
            | {"peak": lr}
            for (lr, eps, decay), members in groups.items()
        ]

    def loss(self, batch: Sequence[Any]) -> torch.Tensor:
        """Mean loss on a batch."""
        x, y = (torch.from_numpy(part).to(self.device) for part in batch)
        casts = self.train.precision == "bfloat16"
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=casts):
            loss: torch.Tensor = self.model(x, y)
        return loss

    def run(self, steps: int) -> float:
        """Train; the objective. Losses stay on the device, so that no step waits."""
        losses, train = [], self.train
        size, factors = (train.batch_size, train.seq_len), train.lr_factors(range(steps))
        for step in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = group["peak"] * factors[step]
            loss = self.loss(self.corpus.batch(self.trial.seed, step, *size))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.detach())
        with torch.no_grad():
            for batch in self.corpus.heldout(*size, train.heldout_batches):
                self.loss(batch)
        return float(torch.stack(losses[-train.window() :]).mean())


_CORPUS: dict[str, Any] = {}


def begin(corpus: Corpus, device: str, threads: int, trial: Trial) -> None:
    """In each of the peer's processes, before its time begins: everything is loaded and warm."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    _CORPUS.update(corpus=corpus, device=device)
    Plain(trial, corpus, device).run(1)


def train_plain(number: int, trial: Trial) -> tuple[int, float]:
    """One trial in one of the peer's processes."""
    plain = Plain(trial, _CORPUS["corpus"], _CORPUS["device"])
    return number, plain.run(plain.train.steps)


def idle(seconds: float) -> None:
    """Keep a process busy while the others start."""
    time.sleep(seconds)


def peer(
    results: Sequence[Result], corpus: Corpus, options: argparse.Namespace, folder: Path
) -> tuple[float, list[float]]:
    """Seconds in which N processes train the trials, and each objective's distance from ours."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=f"sqlite:///{folder}/peer-{time.time_ns()}.db")
    ranges = optuna.distributions.FloatDistribution(-60, 60)
    space = dict.fromkeys(results[0].trial.log2_hps, ranges)
    threads = max(1, torch.get_num_threads() // options.processes)
    arguments = (corpus, options.device, threads, results[0].trial)
    objectives: dict[int, float] = {}
    with ProcessPoolExecutor(
        options.processes, get_context("spawn"), initializer=begin, initargs=arguments
    ) as pool:
        list(pool.map(idle, [0.5] * options.processes))
        start = time.perf_counter()
        for result in results:
            study.enqueue_trial(dict(result.trial.log2_hps))
        asked = []
        for result in results:
            trial = study.ask(space)
            config = replace(result.trial, log2_hps=trial.params)
            asked.append(pool.submit(train_plain, trial.number, config))
        for done in as_completed(asked):
            number, objective = done.result()
            study.tell(number, objective if objective == objective else float("inf"))
            objectives[number] = objective
        seconds = time.perf_counter() - start
    pairs = [(objectives[i], r.objective) for i, r in enumerate(results) if r.status == "complete"]
    return seconds, [abs(a - b) / b if a == a else float("inf") for a, b in pairs]


def overrides(options: argparse.Namespace, width: int, root: Path) -> list[str]:
    """The search as the command line has it."""
    words = [f"root={root}", f"study=width{width}", "search=independent", "data=stdlib"]
    words += [f"model.width={width}", f"model.depth={options.depth}"]
    words += [f"train.steps={options.steps}", f"train.batch_size={options.batch_size}"]
    words += [f"train.seq_len={options.seq_len}", f"launcher={options.launcher}"]
    words += [f"runner.device={options.device}", f"search.eta.points={options.eta_points}"]
    return [*words, f"search.runs={options.runs}", "search.fresh_seeds=0", *options.overrides]


def ours(words: Sequence[str]) -> float:
    """Seconds of `sweeper search`, all of it: start, corpus, search, report."""
    command = [sys.executable, "-m", "sweeper", "search", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return time.perf_counter() - start


def measure(options: argparse.Namespace, width: int, folder: Path, say: Any) -> dict[str, Any]:
    """Both sides at one width, in turn, `--repeats` times."""
    row: dict[str, Any] = {"width": width, "ours_s": [], "peer_s": []}
    differences: list[float] = []
    for repeat in range(options.repeats):
        words = overrides(options, width, folder / f"runs-{repeat}")
        row["ours_s"].append(ours(words))
        say(f"width {width}: sweeper {row['ours_s'][-1]:.1f} s")
        settings = resolve(compose_tree(words, None))
        results = [r for r in StudyRecord.read(settings.folder).results() if r.status != "failed"]
        chosen = results
        if options.peer_trials and options.peer_trials < len(results):
            chosen = random.Random(repeat).sample(results, options.peer_trials)
        seconds, of_trials = peer(chosen, open_experiment(settings).corpus, options, folder)
        row["peer_s"].append(seconds * len(results) / len(chosen))
        differences += of_trials
        row |= {"trials": len(results), "peer_trials": len(chosen)}
        row["phases"] = Counter(r.trial.phase for r in results)
        say(f"width {width}: {options.processes} processes {row['peer_s'][-1]:.1f} s")
    row |= {"ours": statistics.median(row["ours_s"]), "peer": statistics.median(row["peer_s"])}
    row["difference"] = spread(differences, options.device)
    return row | {"ratio": row["peer"] / row["ours"]}


def spread(differences: Sequence[float], device: str) -> dict[str, Any]:
    """How far apart the two sides' objectives are, as shares of them, and whether that is alike."""
    median_limit, far = LIMITS[device]
    median = statistics.median(differences)
    share = sum(each > far for each in differences) / len(differences)
    alike = median <= median_limit and share <= FAR_SHARE
    return {"median": median, "far": share, "worst": max(differences), "alike": alike}


def findings(rows: list[dict[str, Any]], options: argparse.Namespace) -> Findings:
    """The table, and what must be known to read it."""
    shown, notes = [], []
    for row in rows:
        extrapolated = row["peer_trials"] < row["trials"]
        shown.append(
            [
                f"{row['width']}",
                f"{row['trials']} ({' + '.join(map(str, row['phases'].values()))})",
                f"{row['ours']:.1f}",
                f"{row['peer']:.1f}{' (extrapolated)' * extrapolated}",
                f"{row['ratio']:.2f}",
            ]
        )
        if extrapolated:
            notes.append(
                f"Width {row['width']}: the processes trained {row['peer_trials']} of the trials; "
                "their time for all of them is extrapolated."
            )
        apart, far = row["difference"], LIMITS[options.device][1]
        notes.append(
            f"Width {row['width']}: objectives of the two sides differ by {apart['median']:.0e} in "
            f"the median, {apart['far']:.0%} of them by more than {far:.1%}, and by at most "
            f"{apart['worst']:.2%}"
            + ("." if apart["alike"] else ", which is MORE than the order of sums explains.")
        )
    notes.append(
        f"{options.steps} steps of {options.batch_size} x {options.seq_len} tokens, depth "
        f"{options.depth}, on {options.device}; medians of {options.repeats}. The time of sweeper "
        "is the whole command's, its start and report included; the processes' starts with them "
        "ready."
    )
    processes = f"{options.processes} processes, s"
    return Findings(
        title="A whole independent search",
        columns=["width", "trials", "sweeper, s", processes, "ratio"],
        rows=shown,
        notes=notes,
        record={"rows": rows, "options": {k: str(v) for k, v in vars(options).items()}},
    )


def main(words: list[str] | None = None) -> None:
    """Measure, print the table, write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[64])
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--eta-points", type=int, default=9, help="of the first phase")
    parser.add_argument("--runs", type=int, default=330, help="of the second phase")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--launcher", default="inline", help="ours")
    parser.add_argument("--processes", type=int, default=0, help="the peer's (14 on a GPU)")
    parser.add_argument("--peer-trials", type=int, default=0, help="extrapolate from so many")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes as Markdown")
    parser.add_argument("overrides", nargs="*", help="more of the search's configuration")
    options = parser.parse_args(words)
    options.processes = options.processes or (
        os.cpu_count() or 1 if options.device == "cpu" else 14
    )
    warnings.filterwarnings("ignore")
    console = Console(stderr=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        rows = [measure(options, width, Path(folder), say) for width in options.widths]
    findings(rows, options).tell(options.out, options.markdown)


if __name__ == "__main__":
    main()
