"""Documents as a real study leaves them, made up: a search, a validation, a plan, a folder."""

import json
import math
import random
from pathlib import Path
from typing import Any

from sweeper.decide.validation import Validation
from sweeper.records import from_json, to_json
from sweeper.study.searched import Searched
from sweeper.trial import Result, Trial
from tests.specs import spec_of

SPACE = {
    "eta": {"low": -1.0, "high": 3.0, "default": 1.0},
    "alpha_attn": {"low": -2.0, "high": 2.0, "default": 0.0},
}
for alpha in ("ffn_act", "residual", "residual_attn_ratio", "loss_softmax"):
    SPACE[f"alpha_{alpha}"] = {"low": -3.0, "high": 3.0, "default": 0.0}
TRAINED = {"batch_size": 16, "steps": 200}
BEST = {name: axis["default"] for name, axis in SPACE.items()}
BEST |= {"eta": 1.5, "alpha_residual": -0.5, "alpha_loss_softmax": 0.25}


def estimate(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def loss_at(eta: float, optimum: float, floor: float) -> float:
    """A basin: shallow to the left of the optimum, steep to its right, and then a cliff."""
    x = eta - optimum
    return math.inf if x > 2.4 else floor + (0.055 * x * x if x < 0 else 0.06 * x * x + 0.12 * x**4)


def curve(
    width: int, depth: int, optimum: float, seeds: int = 2, *, diverged: bool = False
) -> dict[str, Any]:
    noise = random.Random(width * 100 + depth)
    floor = 2.2 + 4.6 * width**-0.33 + 0.1 / depth
    losses = {}
    for step in range(-4, 5):
        eta = 1.5 + step / 2
        loss = math.inf if diverged else loss_at(eta, optimum, floor)
        losses[str(eta)] = [loss + noise.gauss(0, 0.006) for _ in range(seeds)]
    return {"size": {"width": width, "depth": depth, **TRAINED}, "losses": losses}


REASONS = {
    "base": "",
    "holds": "shift and loss gap are within the thresholds",
    "fails": "the optimum shifts by at least 1.21 in log2",
    "cannot say yet": "the shift may be -0.35 to +1.12 in log2",
}


def size_verdict(found: dict[str, Any], optimum: float, base: float, answer: str) -> dict[str, Any]:
    losses = [sum(of_seeds) / len(of_seeds) for of_seeds in found["losses"].values()]
    loss, at_transferred, reason = min(losses), losses[len(losses) // 2], REASONS[answer]
    regret = {k: max(0.0, v) for k, v in estimate(at_transferred - loss, 0.004).items()}
    numbers = {
        "optimum_log2": estimate(optimum, 0.11),
        "shift_log2": estimate(optimum - base, 0.14 if optimum != base else 0.0),
        "loss": estimate(loss, 0.005),
        "regret": regret,
        "loss_gap": {key: value / 2 for key, value in regret.items()},
    }
    if not math.isfinite(loss):
        unknown = {"value": math.nan, "low": -math.inf, "high": math.inf}
        numbers = dict.fromkeys(numbers, unknown)
        reason = "every run diverged"
    rest = {"at_end": False, "is_base": optimum == base, "answer": answer, "reason": reason}
    return {"size": found["size"], **numbers, **rest}


def validation(answer: str = "holds", *, depth: bool = False, seeds: int = 2) -> dict[str, Any]:
    """Curves at four widths (and three depths) with their verdicts."""
    last = {"holds": 1.44, "cannot say yet": 1.9, "fails": 0.1}[answer]
    widths = {32: 1.52, 64: 1.61, 128: 1.38, 256: last}
    curves = [curve(w, 2, optimum, seeds) for w, optimum in widths.items()]
    answers = ["base", "holds", "holds", answer]
    sizes = [
        size_verdict(c, widths[c["size"]["width"]], 1.52, a)
        for c, a in zip(curves, answers, strict=True)
    ]
    todo = "train about 5 seeds a point: transfer.seeds=5" if answer == "cannot say yet" else ""
    axes = [{"axis": "width", "answer": answer, "sizes": sizes, "todo": todo}]
    if depth:
        depths = {4: 1.41, 8: 1.22}
        curves += [curve(32, d, optimum, seeds) for d, optimum in depths.items()]
        sizes = [sizes[0]] + [
            size_verdict(c, depths[c["size"]["depth"]], 1.52, "holds") for c in curves[4:]
        ]
        axes.append({"axis": "depth", "answer": "holds", "sizes": sizes, "todo": ""})
    return {"planned_log2": 1.5, "axes": axes, "curves": curves}


def diverged_validation() -> dict[str, Any]:
    curves = [curve(w, 2, 1.5, diverged=True) for w in (32, 64)]
    sizes = [size_verdict(c, 1.5, 1.5, "fails") for c in curves]
    axes = [{"axis": "width", "answer": "fails", "sizes": sizes, "todo": ""}]
    return {"planned_log2": 1.5, "axes": axes, "curves": curves}


def validated(record: dict[str, Any]) -> Validation:
    return from_json(Validation, to_json(record))


def searched(record: dict[str, Any]) -> Searched:
    return Searched.read(to_json(record))


def line(name: str, optimum: float, depth: float) -> dict[str, Any]:
    low, high = SPACE[name]["low"], SPACE[name]["high"]
    noise = random.Random(name)
    values = [low + i for i in range(int(high - low) + 1)] + [optimum - 0.25, optimum + 0.25]
    points = []
    for value in sorted({*values, optimum}):
        x = value - optimum
        loss = 3.41 + depth * x * x + (0 if value == optimum else noise.uniform(0.001, 0.01))
        points.append([value, math.inf if x > 2.5 and name == "eta" else loss])
    return {
        "name": name,
        "points_log2": points,
        "optimum_log2": optimum,
        "objective": 3.41,
        "extended": 0,
    }


def search(**changes: Any) -> dict[str, Any]:
    depths = [0.09, 0.02, 0.012, 0.05, 0.006, 0.03]
    lines = [line(name, BEST[name], d) for name, d in zip(SPACE, depths, strict=True)]
    costs = [9.1, 6.2, 4.4, 3.9, 3.62, 3.62, 3.53, 3.53, 3.53]
    costs += [3.53 - 0.09 * (1 - math.exp(-i / 14)) for i in range(45)] + [3.412] * 6
    combination = {
        "combined_log2": BEST,
        "single_log2": {**BEST, "alpha_residual": 0.0},
        "combined_objectives": [3.412, 3.405, 3.419],
        "single_objectives": [3.431, 3.422, 3.44],
        "difference": -0.019,
        "error": 0.0012,
        "finding": "combining helped (loss -0.0190 nats, standard error 0.0012)",
    }
    retune = {
        "line": line("eta", BEST["eta"], 0.05),
        "before_log2": BEST["eta"] - 1,
        "gain": 0.04,
        "low": 0.026,
        "high": 0.054,
        "seeds": 5,
        "finding": "retuning eta after combining moved it",
    }
    return {
        "study": "demo",
        "parameterization": "umup",
        "search": "independent",
        "finished": True,
        "base": {"width": 32, "depth": 2},
        "space_log2": SPACE,
        "best": {name: 2.0**value for name, value in BEST.items()},
        "best_log2": BEST,
        "objective": 3.412,
        "error": 0.0041,
        "seeds": 3,
        "fresh_seeds": 3,
        "selected_objective": 3.401,
        "runs": 60,
        "lines": lines,
        "combination": combination,
        "retune": retune,
        "notes": ["eta: the optimum lay at the end of 2^-1..2^3; the grid was extended by 1"],
        "phase_ends": {"eta": 9, "lines": 54, "combine": 60},
        "provenance": {
            "sweeper": "0.1.0",
            "python": "3.11.9",
            "torch": "2.7.1",
            "machine": "node17, Linux x86_64",
            "git": None,
            "command": "sweeper search +experiment=demo study=demo",
            "date": "2025-11-20T06:15:00+00:00",
        },
    } | changes


def parameter(name: str, role: str, shape: list[int], base: list[int], lr: float) -> dict[str, Any]:
    numbers = {"init_std": 1.0, "multiplier": 32**-0.5, "backward_multiplier": 32**-0.5}
    at_base = numbers | {"lr": lr, "eps": 1e-8, "weight_decay": 2.0**-13}
    scale = (shape[-1] / base[-1]) ** -0.5
    target = at_base | {"multiplier": 32**-0.5 * scale, "lr": lr * scale, "eps": 1e-8 * scale}
    return {
        "name": name,
        "role": role,
        "init": "normal",
        "shape": shape,
        "base_shape": base,
        "fan_in": shape[-1],
        "fan_out": shape[0],
        "target": target,
        "base": at_base,
    }


def plan(width: int = 256) -> dict[str, Any]:
    """The plan of a two-layer model at `width`."""
    parameters = [parameter("embedding.weight", "embedding", [512, width], [512, 32], 0.5)]
    for layer in range(2):
        block = f"blocks.{layer}"
        for part in ("attention.q", "attention.k", "attention.v", "attention.out"):
            shape, base = [width, width], [32, 32]
            parameters.append(parameter(f"{block}.{part}.weight", "hidden", shape, base, 0.12))
    parameters.append(parameter("head.weight", "readout", [512, width], [512, 32], 2.83))
    return {
        "base": {"width": 32, "depth": 2},
        "target": {"width": width, "depth": 2},
        "parameterization": "umup",
        "hps": {name: 2.0**value for name, value in BEST.items()},
        "parameters": parameters,
        "operations": {
            "blocks.0.attention": {"scale": 1.23, "logits": 0.125},
            "loss": {"scale": 1},
        },
        "source": {
            "study": "demo",
            "runs": 60,
            "seeds": 3,
            "data": {"name": "stdlib"},
            "command": "sweeper transfer --study demo --to-width 256",
        },
        "version": 2,
    }


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(document)))


def result(number: int) -> Result:
    trial = Trial(
        spec=spec_of({"model": {"width": 32, "depth": 2}}), log2_hps={"eta": 0.0}, seed=number
    )
    if number % 6 == 5:
        return Result(trial=trial, status="diverged", objective=math.inf)
    return Result(trial=trial, status="complete", objective=3.0)


def study(
    folder: Path, searched: dict[str, Any] | None = None, **validations: dict[str, Any] | None
) -> Path:
    """A study's folder with its configuration, what was `searched`, and a plan a target.

    `validations` by the target's width, as in w256=validation(); None: a plan alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("study: {name: demo}\nmodel: {width: 32, depth: 2}\n")
    if searched is not None:
        write(folder / "search.json", searched)
    for name, validated in validations.items():
        target = folder / "transfer" / f"{name}-d2"
        write(target / "plan.json", plan(int(name[1:])))
        if validated is not None:
            write(target / "validation.json", validated)
    (folder / "results").mkdir(exist_ok=True)
    lines = [json.dumps(to_json(result(number))) for number in range(12)]
    (folder / "results/000001.jsonl").write_text("\n".join([*lines, '{"status": "comp', ""]))
    return folder
