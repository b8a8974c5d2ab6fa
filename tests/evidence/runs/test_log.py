import gzip
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sweeper.errors import BadInput, ConfigError
from sweeper.evidence.runs import table
from sweeper.evidence.runs.log import RunLog, rotated
from sweeper.evidence.runs.table import UNPACKED
from tests.refusals import raises_config_error

PATTERN = r"step (?P<step>\d+).*?loss (?P<loss>\S+)"


def read(metric: str, place: Path, **kinds: Any) -> list[tuple[int, float]]:
    return [(p.step, p.loss) for p in RunLog(metric=metric, place=place, **kinds).read(ended=True)]


def test_a_growing_log_is_read_from_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("step 1 loss 3.0\nhello\nstep 2 loss 2.")
    log = RunLog(metric=PATTERN, place=path)
    assert [p.step for p in log.read()] == [1]
    with path.open("a") as file:
        file.write("5\nstep 3 loss nan\n")
    assert next((p.step, p.loss) for p in log.read()) == (2, 2.5)


def test_what_rotation_put_aside_comes_first(tmp_path: Path) -> None:
    for place, name in enumerate(("run.log.10", "run.log.2", "run.log.1", "run.log")):
        (tmp_path / name).write_text(f"step {place} loss 3\n")
    (tmp_path / "run.log.gz").write_text("")
    assert [step for step, _ in read(PATTERN, tmp_path / "run.log")] == [0, 1, 2, 3]
    assert rotated(tmp_path / "run.log")[0].name == "run.log.10"
    rows = tmp_path / "x.jsonl.1"
    rows.write_text('{"step": 0, "loss": 1}\n')
    (tmp_path / "x.jsonl").write_text('{"step": 1, "loss": 1}\n')
    assert read("jsonl:x.jsonl:loss", tmp_path) == [(0, 1.0), (1, 1.0)]


def test_packed_logs_are_read_as_they_were(tmp_path: Path) -> None:
    place = tmp_path / "run.log"
    for step, name in enumerate(("run.log.2.gz", "run.log.1.gz")):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write(f"step {step} loss 3\n")
    place.write_text("step 2 loss 3\n")
    assert read(PATTERN, place) == [(0, 3.0), (1, 3.0), (2, 3.0)]
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.write('{"step": 5, "loss": 1}\n')
    assert read("jsonl:x.jsonl:loss", tmp_path) == [(5, 1.0)]
    assert read("jsonl:x.jsonl.gz:loss", tmp_path) == [(5, 1.0)]
    (folder := tmp_path / "done").mkdir()
    packed = Path(shutil.copy(tmp_path / "run.log.1.gz", folder / "run.log.gz"))
    assert read(PATTERN, folder) == read(PATTERN, packed) == [(1, 3.0)]
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="that can be unpacked"):
        read(PATTERN, packed)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_a_packed_bomb_is_told_before_it_fills_the_disk(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "LARGEST", 10_000)
    (tmp_path / "run.log").write_text("step 9 loss 3\n")
    with UNPACKED[ending](tmp_path / f"run.log.1{ending}", "wb") as file:
        file.write(b"step 1 loss 3\n" * 1000)
    with pytest.raises(ConfigError, match="it holds more than"):
        read(PATTERN, tmp_path / "run.log")


def test_a_part_that_cannot_be_unpacked_is_no_part_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("step 9 loss 3\n")
    (tmp_path / "run.log.1.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(ConfigError, match="unpacked"):
        read(PATTERN, tmp_path / "run.log")


def test_one_log_in_a_folder_is_found_and_of_several_none(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("step 1 loss 3\n")
    assert read(PATTERN, tmp_path) == [(1, 3.0)]
    (tmp_path / "other.out").write_text("")
    with raises_config_error("run"):
        read(PATTERN, tmp_path)


def test_training_and_evaluation_losses_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    lines = [f"step {s}: train loss {3 - s / 10}, val loss {3.1 - s / 10}" for s in range(5)]
    path.write_text("\n".join(lines))
    assert read(PATTERN, path)[0] == (0, 3.0)
    path.write_text("\n".join(f"step {s} train loss 3\nstep {s} val loss 4" for s in range(5)))
    with raises_config_error("metric") as caught:
        read(PATTERN, path)
    assert "val" in caught.value.allowed


def test_a_learning_rate_comes_beside_its_loss(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("step 1 loss 3 lr 0.1\nstep 2 loss 2 lr 0.2\n")
    log = RunLog(metric=PATTERN, place=path, lr=r"step (?P<step>\d+).*lr (?P<lr>\S+)")
    assert [p.lr for p in log.read(ended=True)] == [0.1, 0.2]


def test_losses_without_steps_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("loss 3\n")
    with raises_config_error("metric"):
        read(r"loss (?P<loss>\S+)", tmp_path)


def test_a_log_without_a_loss_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1, "train": 3}\n')
    log = RunLog(metric="jsonl:log.jsonl:loss", place=tmp_path)
    assert not list(log.read(ended=True))
    with pytest.raises(BadInput, match="train"):
        log.check_found()
    (tmp_path / "run.log").write_text("".join(f"step {n} nats 3\n" for n in range(12)))
    log = RunLog(metric=PATTERN, place=tmp_path / "run.log")
    assert not list(log.read(ended=True))
    with pytest.raises(BadInput, match=r"the last lines of run.log: 'step 2 nats 3', .*11 nats 3'"):
        log.check_found()


def test_a_run_on_a_server_of_wandb_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"_step": step, "train/loss": 3.0 - step} for step in range(2)]
    asked: list[int] = []

    class Api:
        def run(self, path: str) -> Any:
            if path != "me/big/abc":
                raise ValueError(f"could not find run {path}")

            def scan_history(keys: list[str], min_step: int) -> list[dict[str, Any]]:
                asked.append(min_step)
                return [row for row in rows if row["_step"] >= min_step]

            return SimpleNamespace(scan_history=scan_history)

    fake = ModuleType("wandb")
    fake.__dict__.update(Api=Api, errors=SimpleNamespace(Error=OSError), __spec__=object())
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = RunLog(metric="wandb:me/big/abc:train/loss", place=tmp_path)
    assert [(p.step, p.loss) for p in log.read()] == [(0, 3.0), (1, 2.0)]
    rows.append({"_step": 2, "train/loss": 1.0})
    assert [(p.step, p.loss) for p in log.read()] == [(2, 1.0)]
    assert asked == [0, 2]
    with pytest.raises(ConfigError):
        list(RunLog(metric="wandb:me/big/other:loss", place=tmp_path).read())
