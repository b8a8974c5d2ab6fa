"""Numbers beside the loss, in lines as trainers print them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweeper.command.logged import logged


@pytest.mark.parametrize(
    ("line", "found"),
    [
        # torchtitan, nanochat, nanoGPT, transformers, and JSON lines.
        (
            "[titan] 2025-10-01 12:00:00,123 - root - INFO - step: {step}  loss:  3.7320  "
            "grad_norm:  1.{step}  memory:  1.18GiB(1.24%)  tps: 5,12{step}",
            {"grad_norm", "tps"},
        ),
        (
            "step 0000{step}/21400 (0.05%) | loss: 3.732000 | grad norm: 1.{step} | lrm: 1.00 | "
            "dt: 123.45ms | tok/sec: 1,000,00{step} | mfu: 45.00",
            {"grad norm", "tok/sec"},
        ),
        ("iter {step}: loss 2.3011, lr 3e-0{step}, mfu 4.00%", {"lr"}),
        ('{{"step": {step}, "loss": 2.0, "lr": 0.00{step}, "note": "x"}}', {"lr"}),
        ("loss 2.3, no step {step}", set()),
    ],
)  # fmt: skip
def test_what_is_printed_with_a_step_is_a_curve(line: str, found: set[str], tmp_path: Path) -> None:
    lines = [line.format(step=step) for step in range(1, 7)]
    (tmp_path / "log.txt").write_text("\n".join(["a first line: 5", *lines]))
    curves = logged(tmp_path)
    assert set(curves) == found
    assert all([step for step, _ in curve] == [*range(1, 7)] for curve in curves.values())


@pytest.mark.parametrize("last", ["", "\n4,,nan,7\n5,x"])
def test_metric_files_have_curves_too(last: str, tmp_path: Path) -> None:
    """A table of Lightning's with empty cells and half a last row; a state of the Trainer's."""
    rows = [f"{step},{step / 8},,{3 - step / 8}\n{step},,0.{step}," for step in range(1, 7)]
    place = tmp_path / "lightning_logs/version_0"
    place.mkdir(parents=True)
    (place / "metrics.csv").write_text("\n".join(["step,lr,grad norm,train_loss", *rows]) + last)
    history = [{"step": n, "loss": 3.0, "learning_rate": n / 9, "big": 10**400} for n in range(6)]
    for count in (3, 6):
        state = tmp_path / f"checkpoint-{count}/trainer_state.json"
        state.parent.mkdir()
        state.write_text(json.dumps({"log_history": history[:count]}))
    (tmp_path / "trainer_state.json").write_text('{"log_history"')
    found = logged(tmp_path)
    assert {name: len(curve) for name, curve in found.items()} == {
        "lr": 6,
        "grad norm": 6,
        "learning_rate": 6,
    }
    assert found["grad norm"][0] == (1.0, 0.1)


def test_a_run_without_a_log_has_none(tmp_path: Path) -> None:
    assert logged(tmp_path / "nowhere") == {}


def test_a_line_that_is_nested_beyond_measure_has_no_numbers(tmp_path: Path) -> None:
    lines = ['{"a": ' * 100_000, *(f'{{"step": {step}, "lr": 0.{step}}}' for step in range(1, 6))]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    assert {*logged(tmp_path)} == {"lr"}
