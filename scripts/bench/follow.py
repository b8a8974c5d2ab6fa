"""Whether `sweeper follow` keeps its rate of false alarms, and what it sees of injected faults.

`python scripts/bench/follow.py train OUT` trains a ladder of widths 32 to 128, ten healthy runs of
width 256 that it predicts, and runs of that width which a fault befalls at a third: some twenty
minutes of a core. `python scripts/bench/follow.py judge OUT` follows them all, and prints what
`docs/follow.md` says. Runs that are in OUT already are kept.
`python scripts/bench/follow.py recipes CURVES` follows the runs of a table of recipes (group, run,
step, loss) by a band of eight of each, as they are and with 0.3 % more loss from a third on.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import torch
from torch.nn.functional import cross_entropy

from sweeper.evidence.follow.decision import Seen, Watch
from sweeper.evidence.predict.band import Curves, TrainingCourse, fit_band
from sweeper.evidence.predict.decision import LossQuestion, Prediction, predict_runs
from sweeper.evidence.predict.earlier import expectation
from sweeper.evidence.runs.curves import earlier_runs
from sweeper.evidence.runs.loss_runs import LossRuns
from sweeper.models.llama import Llama
from sweeper.plan.plan_for import plan_for
from sweeper.stats.power_law import Array
from sweeper.trial import TrainSettings, curve

DEPTH, LENGTH, BATCH, STEPS = 1, 16, 32, 400
ETA, DECAY, CLIP = 2.0**-7, 2.0**-8, 1.0
SETTINGS = TrainSettings(steps=STEPS, batch_size=BATCH, seq_len=LENGTH)
WORDS, ROWS = 48, 1 << 12
BASE, WIDTHS, TARGET = 64, (32, 64, 128), 256
THIRD = STEPS // 3
LADDER_SEEDS, TARGET_SEEDS, SICK = 5, 10, 5
"""Of every width, of the runs to follow, and of those that fall sick."""
SHARD = 20
"""Batches of the shard that is repeated."""
RECIPE_BAND, RECIPE_FAULT = 8, 0.003
"""Runs of a recipe's band, and the share of loss that a fault adds."""
FAULTS = (
    "eta x2",
    "eta x4",
    "weight decay off",
    "shard repeated",
    "labels shifted",
    "bf16 stream",
    "clipping lost",
    "ranks alike",
)


def language(tokens: int) -> torch.Tensor:
    """Text of a made-up language [ROWS, tokens / ROWS]: a word depends on the two before it.

    Of real text, batches as small as these differ by 5 % of the loss, in which nothing is seen.
    """
    random = np.random.default_rng(0)
    first, second = random.standard_normal((2, WORDS, 1, WORDS))
    both = random.standard_normal((WORDS, WORDS, WORDS))
    weights = np.exp(2 * first + 2 * second.transpose(1, 0, 2) + both)
    ends = np.cumsum(weights / weights.sum(2, keepdims=True), axis=2)
    found = np.zeros((ROWS, tokens // ROWS), np.int64)
    found[:, :2] = random.integers(WORDS, size=(ROWS, 2))
    for place in range(2, found.shape[1]):
        before, last = found[:, place - 2], found[:, place - 1]
        drawn = (random.random((ROWS, 1)) > ends[before, last]).sum(1)
        found[:, place] = drawn.clip(max=WORDS - 1)
    return torch.from_numpy(found)


def build(width: int) -> Llama:
    """The net."""
    return Llama(width=width, depth=DEPTH, classes=WORDS, seq_len=LENGTH, ffn_ratio=1)


class Run:
    """A run in training: one that is copied at a third goes on with a fault, or without."""

    def __init__(self, width: int, seed: int, eta: float = ETA) -> None:
        """At its first step."""
        plan = plan_for(
            build,
            {"width": BASE},
            {"width": width},
            "mup",
            {"eta": eta},
            optimizer={"name": "adamw", "weight_decay": DECAY},
            inputs=torch.zeros(1, LENGTH, dtype=torch.long),
        )
        self.model = build(width)
        plan.init_(self.model, seed)
        self.optimizer = torch.optim.AdamW(plan.param_groups(self.model))
        for group in self.optimizer.param_groups:
            group["planned_decay"] = group["weight_decay"]
        self.batches = np.random.default_rng([width, seed])
        self.losses = list[float]()

    def train(self, data: torch.Tensor, until: int, fault: str = "") -> Array:
        """Losses so far, of every step before `until`; all steps from here on have the fault."""
        if fault == "bf16 stream":
            for part in (*self.model.layers, self.model.norm):
                part.register_forward_pre_hook(lambda _, x: (x[0].bfloat16().float(),))
        last = data.numel() - LENGTH - 2
        shard = self.batches.integers(last, size=(SHARD, BATCH, 1)) if fault else np.empty(0)
        lr_factors = SETTINGS.lr_factors(range(STEPS))
        for step in range(len(self.losses), until):
            starts = self.batches.integers(last, size=(BATCH, 1))
            if fault == "shard repeated":
                starts = shard[step % SHARD]
            if fault == "ranks alike":
                starts = np.concatenate([starts[: BATCH // 2]] * 2)
            shifted = int(fault == "labels shifted" and self.batches.random() < 0.02)
            rows = data.view(-1)[torch.from_numpy(starts) + torch.arange(LENGTH + 2)]
            times = {"eta x2": 2.0, "eta x4": 4.0}.get(fault, 1.0)
            for group in self.optimizer.param_groups:
                group["lr"] = times * group["initial_lr"] * lr_factors[step]
                # torch removes lr x weight_decay of a weight: only eta is off.
                group["weight_decay"] = group["planned_decay"] / times
                if fault == "weight decay off":
                    group["weight_decay"] = 0.0
            logits = self.model(rows[:, :LENGTH])
            targets = rows[:, 1 + shifted : 1 + shifted + LENGTH]
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            if fault != "clipping lost":
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.losses.append(loss.item())
        return np.array(self.losses)


def train(out: Path) -> None:
    """Train what OUT lacks: a file of losses [STEPS] a run."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    data = language(1 << 22)

    def keep(name: str, losses: Array) -> None:
        np.save(out / f"{name}.npy", losses.astype(np.float32))
        print(f"{name}: {losses[-STEPS // 10 :].mean():.4f}", flush=True)

    def lacks(name: str) -> bool:
        return not (out / f"{name}.npy").exists()

    for width, seed in product(WIDTHS, range(LADDER_SEEDS)):
        if lacks(name := f"{width}-{seed}"):
            keep(name, Run(width, seed).train(data, STEPS))
    for seed, octaves in product(range(2), (-1, 1)):
        if lacks(name := f"{BASE}-{seed}-eta{octaves:+d}"):
            keep(name, Run(BASE, seed, ETA * 2.0**octaves).train(data, STEPS))
    for seed in range(TARGET_SEEDS):
        names = {
            f: f"{TARGET}-{seed}-{f.replace(' ', '_')}" for f in (FAULTS if seed < SICK else ())
        }
        names = {fault: name for fault, name in names.items() if lacks(name)}
        if not names and not lacks(f"{TARGET}-{seed}"):
            continue
        run = Run(TARGET, seed)
        run.train(data, THIRD)
        for fault, name in names.items():
            keep(name, copy.deepcopy(run).train(data, STEPS, fault))
        keep(f"{TARGET}-{seed}", run.train(data, STEPS))


# Following them.


def parameters(width: int) -> float:
    """Of the net."""
    with torch.device("meta"):
        return float(sum(p.numel() for p in build(width).parameters()))


def predicted(out: Path) -> Prediction:
    """What the ladder predicts of the target, as `sweeper predict --study` does."""
    runs = [(width, seed) for width in WIDTHS for seed in range(LADDER_SEEDS)]
    losses = [np.load(out / f"{width}-{seed}.npy").astype(float) for width, seed in runs]
    params = np.array([parameters(width) for width, _ in runs])
    tokens = np.full(len(runs), float(STEPS * BATCH * LENGTH))
    ends = np.array([each[-SETTINGS.window() :].mean() for each in losses])
    cell = np.array([WIDTHS.index(width) for width, _ in runs])
    names = [f"{width}-{seed}" for width, seed in runs]
    table = LossRuns(params, tokens, ends, 6 * params * tokens, cell, names)
    aim = parameters(TARGET)
    prediction = predict_runs(table, LossQuestion(params=aim, tokens=tokens[0], draws=400))
    pairs = [
        (curve(np.load(path).astype(float)), curve(losses[names.index(f"{BASE}-{seed}")]), octaves)
        for seed, octaves in product(range(2), (-1.0, 1.0))
        if (path := out / f"{BASE}-{seed}-eta{octaves:+.0f}.npy").exists()
    ]
    curves = [curve(each) for each in losses]
    known = Curves(
        np.log(params),
        np.log(tokens),
        cell,
        curves,
        [STEPS] * len(curves),
        ends,
        pairs,
        1 / math.sqrt(12),
    )
    course = TrainingCourse(
        steps=STEPS,
        warmup=SETTINGS.warmup,
        window=SETTINGS.objective_window,
        schedule="cosine",
        lr=SETTINGS.lr_factors(range(STEPS)),
    )
    return replace(prediction, band=fit_band(known, course, math.log(aim), math.log(tokens[0])))


@dataclass
class Followed:
    """A run to its end: the step of the alarm, None without; forecasts at parts of the run."""

    alarm: int | None
    threshold: int | None
    sigmas: int | None
    inside: list[bool]
    width: list[float]
    last: Seen


def followed(prediction: Prediction, losses: Array, alarm: float = 0.01) -> Followed:
    """Follow a run, with a plain threshold and a rule of three sigmas beside it.

    The threshold: the running mean of 20 steps lies 5 % above its lowest value so far. The rule: it
    lies three standard deviations of such means above that of the 40 steps before.
    """
    watch, found = Watch(prediction, alarm=alarm), Followed(None, None, None, [], [], None)
    end = float(losses[-SETTINGS.window() :].mean())
    for step, loss in enumerate(losses.tolist()):
        seen = watch.update(step, loss)
        if seen.off and found.alarm is None:
            found.alarm = step
        if step + 1 in (STEPS // 4, STEPS // 2, 3 * STEPS // 4):
            found.inside.append(seen.forecast.low <= end <= seen.forecast.high)
            found.width.append((seen.forecast.high - seen.forecast.low) / 2 / seen.forecast.value)
    found.last = watch.finish()
    means = np.convolve(losses, np.ones(20) / 20, "valid")
    start = round(SETTINGS.warmup * STEPS)
    above = np.flatnonzero(means[start:] > 1.05 * np.minimum.accumulate(means)[start:])
    found.threshold = int(above[0]) + start + 19 if len(above) else None
    for place in range(start + 60, STEPS):
        before = losses[place - 60 : place - 20]
        if losses[place - 20 : place].mean() - before.mean() > 3 * before.std() / 20**0.5:
            found.sigmas = place
            break
    return found


def resampled(healthy: Array, count: int) -> Iterator[Array]:
    """Runs made of those that were trained [runs, steps]: paths of two mixed, noise in blocks.

    Two paths with the weights cos and sin of any angle have the covariance of one.
    """
    random = np.random.default_rng(0)
    logs = np.log(healthy)
    kernel = np.ones(41) / np.convolve(np.ones(STEPS), np.ones(41), "same")[:, None]
    smooth = np.array([np.convolve(row, np.ones(41), "same") * kernel[:, 0] for row in logs])
    middle = smooth.mean(0)
    scale = math.sqrt(len(logs) / (len(logs) - 1))
    paths, noise = scale * (smooth - middle), scale * (logs - logs.mean(0) - (smooth - middle))
    for _ in range(count):
        one, other = random.choice(len(logs), 2, replace=False)
        angle = 2 * math.pi * random.random()
        blocks = random.integers(len(logs), size=STEPS // 20 + 1).repeat(20)[:STEPS]
        path = math.cos(angle) * paths[one] + math.sin(angle) * paths[other]
        yield np.exp(logs.mean(0) + path + noise[blocks, np.arange(STEPS)])


def made_up(count: int) -> list[Followed]:
    """Ladders and runs of curves that are known, each with a trend, a misfit, seeds of its own."""
    random, found = np.random.default_rng(1), []
    x = (np.arange(STEPS) + 0.5) / STEPS
    distance = np.abs(np.subtract.outer(x, x))
    smooth = np.linalg.cholesky(np.exp(-0.5 * (distance / 0.3) ** 2) + 1e-6 * np.eye(STEPS))
    path = np.linalg.cholesky(np.exp(-distance / 0.3) + 1e-9 * np.eye(STEPS))
    sizes = np.log([1e5, 2e5, 4e5, 8e5, 1.6e6])
    for _ in range(count):
        misfit, bend = 0.01 * random.random(), 0.02 * random.standard_normal()
        rows, ends = [], []
        for place, size in enumerate(sizes):
            off = misfit * smooth @ random.standard_normal(STEPS)
            off -= off[-SETTINGS.window() :].mean()
            for _ in range(LADDER_SEEDS if place < len(sizes) - 1 else 1):
                noise = 0.01 * path @ random.standard_normal(STEPS)
                noise += 0.02 * random.standard_normal(STEPS)
                shape = 0.5 * np.exp(-8 * x) + 0.3 * (1 - x) + bend * (size - sizes[0]) * (1 - x)
                level = math.log(1.5 + 30 / math.exp(0.3 * size))
                rows.append(np.exp(level + shape + off + noise))
                ends.append(rows[-1][-SETTINGS.window() :].mean())
        cell = np.arange(len(sizes) - 1).repeat(LADDER_SEEDS)
        params, tokens = np.exp(sizes[cell]), np.full(len(cell), 1e7)
        ends, names = np.array(ends[:-1]), [""] * len(cell)
        table = LossRuns(params, tokens, ends, 6 * params * tokens, cell, names)
        aim = LossQuestion(params=math.exp(sizes[-1]), tokens=1e7, draws=200)
        curves, lengths = [curve(row) for row in rows[:-1]], [STEPS] * len(cell)
        known = Curves(np.log(params), np.log(tokens), cell, curves, lengths, ends)
        lr = SETTINGS.lr_factors(range(STEPS))
        course = TrainingCourse(steps=STEPS, warmup=0.1, window=0.1, schedule="cosine", lr=lr)
        band = fit_band(known, course, sizes[-1], math.log(1e7))
        found.append(followed(replace(predict_runs(table, aim), band=band), rows[-1]))
    return found


def judge(out: Path, count: int) -> None:
    """Print the tables of `docs/follow.md`."""
    prediction = predicted(out)
    said, band = prediction.prediction, prediction.band
    print(f"predicted {said.loss:.4f} ({said.low:.4f} to {said.high:.4f}), {prediction.answer}")
    print(f"misfit {band.misfit:.4f}, white {band.white:.2f}")
    healthy = np.array([np.load(out / f"{TARGET}-{s}.npy") for s in range(TARGET_SEEDS)], float)
    trained = [followed(prediction, losses) for losses in healthy]
    rules = ("alarm", "threshold", "sigmas")
    groups = {
        "trained": lambda: trained,
        "resampled": lambda: [followed(prediction, x) for x in resampled(healthy, count)],
        "made up": lambda: made_up(count // 5),
    }
    for name, group in groups.items():
        runs = group()
        alarms = (str(sum(getattr(run, rule) is not None for run in runs)) for rule in rules)
        held = (f"{np.mean([run.inside[k] for run in runs]):.1%}" for k in range(3))
        widths = (f"{np.mean([run.width[k] for run in runs]):.2%}" for k in range(3))
        print(f"{name}: {len(runs)} healthy runs; alarms of follow, threshold, 3 sigma:", *alarms)
        print("  forecast held at 1/4, 1/2, 3/4:", *held, "half widths:", *widths, flush=True)
    for alarm in (0.05, 0.2):
        runs = [followed(prediction, x, alarm) for x in resampled(healthy, count // 4)]
        print(f"--alarm {alarm}: {np.mean([run.alarm is not None for run in runs]):.2%}")
    window = SETTINGS.window()
    for fault in FAULTS:
        names = [f"{TARGET}-{seed}-{fault.replace(' ', '_')}.npy" for seed in range(SICK)]
        sick = np.array([np.load(out / name) for name in names], float)
        runs = [followed(prediction, losses) for losses in sick]
        gap = (sick[:, -window:].mean(1) / healthy[:SICK, -window:].mean(1)).mean() - 1
        cells = [f"{gap:+.1%}"]
        for rule in rules:
            steps = [getattr(run, rule) for run in runs]
            after = [step - THIRD for step in steps if step is not None and step >= THIRD]
            delay = f", {np.median(after):.0f} steps" if after else ""
            cells.append(f"{len(after)} of {SICK}{delay}")
        print(f"| {fault} | {' | '.join(cells)} |")
    watch, start = Watch(prediction), time.process_time()
    for step, loss in enumerate(healthy[0].tolist()):
        watch.update(step, loss)
    print(f"{(time.process_time() - start) / STEPS * 1e3:.3f} ms a step of {STEPS}")
    watch, start = Watch(prediction, steps=20 * STEPS), time.process_time()
    for step, loss in enumerate(healthy[0].repeat(20).tolist()):
        watch.update(step, loss)
    print(f"{(time.process_time() - start) / STEPS / 20 * 1e3:.4f} ms a step of {20 * STEPS}")


def recipes(table: Path) -> None:
    """The first eight runs of every recipe are a band, the others follow it, whole and sick."""
    frame = pandas.read_csv(table)
    alarms = seen = count = 0
    for recipe, rows in frame.groupby("group"):
        runs = earlier_runs(rows, "")
        expected = expectation(runs[:RECIPE_BAND], str(recipe))
        for run, more in product(runs[RECIPE_BAND:], (0.0, RECIPE_FAULT)):
            watch = Watch(expected)
            sick = 1 + more * (run.steps >= watch.steps / 3)
            for step, loss in zip(run.steps, run.losses * sick, strict=True):
                watch.update(int(step), float(loss))
            off = watch.finish().off
            alarms, seen = (alarms, seen + off) if more else (alarms + off, seen)
        count += len(runs[RECIPE_BAND:])
        print(f"{recipe}: {len(runs)} runs; so far {alarms} alarms, {seen} seen, of {count}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["train", "judge", "recipes"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=1000, help="healthy runs to resample")
    arguments = parser.parse_args()
    if arguments.what == "recipes":
        if arguments.out.exists():
            recipes(arguments.out)
    elif arguments.what == "train":
        train(arguments.out)
    else:
        judge(arguments.out, arguments.count)


if __name__ == "__main__":
    main()
