"""Kernels and bytes of memory traffic of a compiled training step, counted without a GPU.

A step of a small model takes as long as its memory traffic. So what `BatchedRun(compile="on")`
would compile on a GPU (the mapped loss under autocast, its gradients, the optimizer's update) is
lowered for one here, and every kernel's bytes are added up: what it reads and writes at best, each
byte once. The counts are compared with a committed budget; exit status 1 where one is exceeded.

    python scripts/bench/traffic.py --sizes s0,s1
    python scripts/bench/traffic.py --kernels s1           # what takes how much
    python scripts/bench/traffic.py --write-budget         # after a change that is meant
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from batching import SIZES, trial
from findings import Findings
from lowering import Kernel, Lowered, lowering
from torch import Tensor

from sweeper.engine.optimizers.optimizer import StepInfo, UpdateHps
from sweeper.engine.prepare import PreparedSpec, prepare
from sweeper.engine.program import Program
from sweeper.models import loss

BATCHED = {"s0": 512, "s1": 336, "s2": 64, "s3": 16, "s4": 8}
"""Trials of a batch at each size."""
BUDGET = Path(__file__).with_suffix(".json")
TOLERANCE = 0.05
"""A count may exceed its budget by less than this fraction."""
PARTS = ("forward", "backward", "update", "loss")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Kernels of a step of batched trials, by part; "loss" is the operator of `models/loss.py`."""

    count: int
    kernels: dict[str, tuple[Kernel, ...]]

    def bytes(self, part: str) -> int:
        """Bytes of a part, per trial."""
        return round(sum(kernel.bytes for kernel in self.kernels[part]) / self.count)

    def record(self, part: str) -> dict[str, int]:
        """A part as the budget has it."""
        return {"bytes": self.bytes(part), "kernels": len(self.kernels[part])}


def count_step(size: str) -> Step:
    """The step of batched trials at a size, in bfloat16 over weights in float32, with AdamW."""
    prepared, count = prepare(trial(size, "bfloat16", 0).spec), BATCHED[size]
    program = Program(prepared, torch.device("cpu"))
    with lowering() as found:
        _gradients_and_update(program, prepared, size, count)
        graphs = list(found)
    forward, backward, update = (_of(graphs, part) for part in PARTS[:3])
    loss = _chunked_loss(size) * count if _is_chunked(size) else ()
    return Step(
        count=count, kernels=dict(zip(PARTS, (forward, backward, update, loss), strict=True))
    )


def _of(graphs: list[Lowered], part: str) -> tuple[Kernel, ...]:
    """The kernels of one of the three graphs, which are compiled in the order of PARTS."""
    assert [graph.backward for graph in graphs] == [False, True, False], "the graph broke"
    return graphs[PARTS.index(part)].kernels


def _gradients_and_update(program: Program, prepared: PreparedSpec, size: str, count: int) -> None:
    """What a step compiles, with fake tensors in the place of the trials' own."""
    _, _, _, seq_len, batch = SIZES[size]
    hps, specs = trial(size, "bfloat16", 0).hps, prepared.trained_specs
    for module in program.model.modules():
        for tensors in (module._buffers, module._parameters):
            for name, value in tensors.items():
                tensors[name] = None if value is None else _like(value)
    params = {spec.name: torch.empty(count, *spec.shape, requires_grad=True) for spec in specs}
    buffers = {name: torch.empty(count) for name in sorted(prepared.buffers(hps))}
    x, y = (torch.empty(count, batch, seq_len, dtype=torch.int64) for _ in range(2))
    _, grads = program.gradients("compiled mapped", params, buffers, x, y, list)
    optimizer, weights = prepared.optimizer, list(params.values())
    per_trial = [torch.empty(count, *[1] * len(spec.shape)) for spec in specs]
    update_hps = UpdateHps(
        kinds=[optimizer.kind(spec) for spec in specs],
        lr=per_trial,
        eps=[one.clone() for one in per_trial],
        weight_decay=[one.clone() for one in per_trial],
        settings={
            name: torch.empty(count, dtype=torch.float64) for name in optimizer.settings(hps)
        },
    )
    state = optimizer.init(weights, update_hps.kinds)
    biases = {name: value.clone() for name, value in update_hps.settings.items()}
    now = StepInfo(step=torch.empty(()), schedule=torch.empty(count), biases=biases)
    with torch.no_grad():
        program.update(compiled=True)(weights, grads, state, update_hps, now)


def _like(value: Tensor) -> Tensor:
    fake = torch.empty(value.shape, dtype=value.dtype)
    return torch.nn.Parameter(fake) if isinstance(value, torch.nn.Parameter) else fake


def _is_chunked(size: str) -> bool:
    return SIZES[size][2] >= loss.MIN_CHUNKED_CLASSES


def _chunked_loss(size: str) -> tuple[Kernel, ...]:
    """What `sweeper::chunked_cross_entropy` launches for one trial, written from its code.

    No logits are: a trial's x and W in bfloat16 stay in the L2 of a GPU while they are read again.
    """
    width, _, classes, seq_len, batch = SIZES[size]
    assert width <= loss.MAX_KERNEL_WIDTH, "no kernels for this width: count the chunks"
    tokens, x, matrix = batch * seq_len, batch * seq_len * width, classes * width
    steps = (  # bytes an entry: 4 in float32, 2 in bfloat16
        ("weight in bfloat16", 6 * matrix),
        ("x in bfloat16", 6 * x),
        ("by tokens", 2 * (x + matrix) + 16 * tokens + 4 * x),
        ("by classes", 2 * (x + matrix) + 12 * tokens + 4 * matrix),
        ("targets' rows of W", 2 * (x + x) + 8 * tokens),
        ("dx: without them", (4 + 2 + 4) * x),
        ("dx: times the factor", 8 * x),
        ("mean", 4 * tokens),
    )
    return tuple(Kernel(name=f"loss {name}", buffers={"all": size}) for name, size in steps)


def findings(steps: dict[str, Step], budget: dict[str, Any]) -> Findings:
    """The table, and how each size compares with its budget."""
    rows, record = [], dict[str, Any](torch=torch.__version__.partition("+")[0])
    for size, step in steps.items():
        parts = {part: step.record(part) for part in PARTS}
        total = {key: sum(part[key] for part in parts.values()) for key in ("bytes", "kernels")}
        record[size] = {**total, "trials": step.count, **parts}
        allowed = budget.get(size, {}).get("bytes")
        against = f"{100 * (total['bytes'] / allowed - 1):+.1f} %" if allowed else ""
        shown = [str(parts[part]["kernels"]) for part in PARTS[:3]]
        shown += [f"{parts[part]['bytes'] / 1e6:,.1f}" for part in PARTS]
        rows.append([size, str(step.count), *shown, f"{total['bytes'] / 1e6:,.1f}", against])
    columns = ["size", "K", *(f"kernels {part}" for part in PARTS[:3])]
    columns += [*(f"{part}, MB" for part in PARTS), "total, MB", "against the budget"]
    notes = [
        f"Per trial and step, torch {torch.__version__}; kernels are those of a step of them all."
    ]
    return Findings(title="memory traffic", columns=columns, rows=rows, notes=notes, record=record)


def exceeded(record: dict[str, Any], budget: dict[str, Any]) -> list[str]:
    """A sentence for every size that moves more than its budget allows."""
    sentences = []
    for size in BATCHED.keys() & record.keys() & budget.keys():
        now, allowed = record[size]["bytes"], budget[size]["bytes"]
        if now >= (1 + TOLERANCE) * allowed:
            more = f"{now / 1e6:.1f} MB per trial and step, {100 * (now / allowed - 1):.1f} % above"
            sentences.append(f"{size} moves {more} its budget of {allowed / 1e6:.1f} MB")
    return sorted(sentences)


def list_kernels(step: Step) -> None:
    """Print every kernel, the largest first, with its buffers."""
    kernels = [(part, kernel) for part in PARTS for kernel in step.kernels[part]]
    for part, kernel in sorted(kernels, key=lambda pair: -pair[1].bytes):
        share = kernel.bytes if part == "loss" else kernel.bytes / step.count
        print(f"{share / 1e6:10.4f} MB {part:8} {kernel.name}")
        for name, size in sorted(kernel.buffers.items(), key=lambda pair: -pair[1]):
            print(f"{' ' * 16}{size / step.count / 1e6:10.4f} MB {name}")


def main() -> None:
    """Count, tell, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=",".join(BATCHED), help="of %(default)s")
    parser.add_argument("--kernels", choices=BATCHED, help="list the kernels of this size instead")
    parser.add_argument("--budget", type=Path, default=BUDGET)
    parser.add_argument("--write-budget", action="store_true", help="from what is counted now")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if options.kernels:
        list_kernels(count_step(options.kernels))
        return
    budget = json.loads(options.budget.read_text()) if options.budget.exists() else {}
    found = findings({size: count_step(size) for size in options.sizes.split(",")}, budget)
    found.tell(options.out, options.markdown)
    if options.write_budget:
        options.budget.write_text(json.dumps({**budget, **found.record}, indent=1) + "\n")
        return
    if sentences := exceeded(dict(found.record), budget):
        sys.exit("\n".join(sentences))


if __name__ == "__main__":
    main()
