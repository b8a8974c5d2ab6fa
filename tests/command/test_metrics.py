"""Losses from every source, as far as it is written when it is read."""

import csv
import json
import math
import signal
import tracemalloc
from pathlib import Path

import pytest

from sweeper.command.metrics import describe_source, kinds, metric_of
from sweeper.command.reading import Lines, MetricSource
from sweeper.errors import SweeperError
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.study.wandb_files import read_whole

ROOT = Path(__file__).parents[2]
LINE = r"step (?P<step>\d+): loss (?P<loss>\S+)"


def read(source: MetricSource, *, ended: bool = False) -> list[tuple[int | None, float]]:
    return [(reading.step, reading.loss) for reading in source.read(ended=ended)]


def test_a_pattern_finds_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    source = metric_of(LINE).open(tmp_path, log)
    assert read(source) == []
    log.write_text("begin\nstep 1: loss 2.5, ok\rstep 2: loss nan\nstep 3: lo")
    (first, second) = read(source)
    assert first == (1, 2.5)
    assert second[0] == 2 and math.isnan(second[1])
    with log.open("a") as file:
        file.write("ss 1.5")
    assert read(source) == []
    assert read(source, ended=True) == [(3, 1.5)]


def test_a_log_of_any_length_is_read_in_little_memory(tmp_path: Path) -> None:
    """A sparse file of zeros, one line of 64 MB, and many lines behind it."""
    log = tmp_path / "log.txt"
    with log.open("wb") as file:
        file.truncate(1 << 26)
        file.seek(0, 2)
        file.write(b"\nstep 1: loss 2\n" + b"y\n" * 50_000 + b"step 2: loss 1.5\n")
    source = metric_of(LINE).open(tmp_path, log)
    tracemalloc.start()
    try:
        assert read(source, ended=True) == [(1, 2.0), (2, 1.5)]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 50e6


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        (b"step 1: loss \x1b[32m2.5\x1b[0m", 2.5),
        (b"\x1b[1mstep 1\x1b[0m: loss \x1b[38;2;1;2;3m2.5", 2.5),
        (b"\xff\xfe caf\xe9 step 1: loss 2.5 \x00", 2.5),
        (b"step 1: loss 1,234.5", 1234.5),
        (b"step 1: loss NaN", math.nan),
        (b"step 1: loss 1e400", math.inf),
        (b"step 1: loss -1e400", -math.inf),
    ],
)
def test_odd_output_is_read_as_a_person_reads_it(tmp_path: Path, line: bytes, loss: float) -> None:
    (tmp_path / "log").write_bytes(line + b"\n")
    ((step, value),) = read(metric_of(LINE).open(tmp_path, tmp_path / "log"))
    assert step == 1 and (value == loss or (math.isnan(loss) and math.isnan(value)))


def test_of_a_number_with_commas_no_part_is_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("loss=1,234.5, lr=1\nloss=2,0.001\nloss=-3,456,789.0e1\n")
    source = metric_of(r"loss=(?P<loss>[-\d.]+)").open(tmp_path, tmp_path / "log")
    assert read(source) == [(None, 1234.5), (None, 2.0), (None, -34567890.0)]


@pytest.mark.parametrize("step", ["1e30", "9" * 5000, "1e400", "nan", "-3"])
def test_a_step_that_none_can_be_is_no_reading(tmp_path: Path, step: str) -> None:
    (tmp_path / "log").write_text(f"step {step}: loss 1\nstep 3: loss 2\n")
    pattern = r"step (?P<step>\S+): loss (?P<loss>\S+)"
    assert read(metric_of(pattern).open(tmp_path, tmp_path / "log")) == [(3, 2.0)]


def test_a_table_with_a_quote_that_never_ends(tmp_path: Path) -> None:
    rows = '"' + "x" * 300_000 + "\n" + "1,2.5\n" * 3
    (tmp_path / "m.csv").write_text(f"step,loss\n{rows}")
    source = metric_of("csv:m.csv:loss").open(tmp_path, tmp_path / "log")
    assert read(source, ended=True)[-1] == (1, 2.5)


def test_a_pattern_that_backtracks_without_end_is_told(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.command.metrics.pattern.SEARCH_SECONDS", 0.3)
    log = tmp_path / "log"
    log.write_text("a" * 60 + "!\n")
    with pytest.raises(SweeperError, match="repetition") as caught:
        read(metric_of(r"(a+)+b(?P<loss>\d)").open(tmp_path, log))
    golden.says(str(caught.value))
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_a_file_that_is_begun_anew_is_read_anew(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "log")
    lines.path.write_text("one\ntwo\n")
    assert list(lines.read()) == ["one", "two"]
    lines.path.write_text("three\n")
    assert list(lines.read()) == ["three"]


def test_rows_of_json_and_of_a_table(tmp_path: Path) -> None:
    rows = [{"iter": 0, "loss": 2.5}, {"iter": 1, "val": 3}, {"iter": 2, "loss": "nan"}]
    (tmp_path / "m.jsonl").write_text("no json\n" + "\n".join(map(json.dumps, rows)) + "\n[1]\n")
    source = metric_of("jsonl:m.jsonl:loss").open(tmp_path, tmp_path / "log")
    (first, second) = read(source, ended=True)
    assert first == (0, 2.5) and second[0] == 2 and math.isnan(second[1])

    table = metric_of("csv:m.csv:train/loss").open(tmp_path, tmp_path / "log")
    with (tmp_path / "m.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["step", "train/loss"], [1, 2.5], [2, ""], [3, 1.5]])
    assert read(table, ended=True) == [(1, 2.5), (3, 1.5)]


def test_tensorboard_s_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    source = metric_of("tensorboard:train/loss").open(tmp_path, tmp_path / "log")
    assert read(source) == []
    with SummaryWriter(tmp_path / "runs") as writer:
        writer.add_scalar("train/loss", 2.5, 10)
        writer.add_scalar("train/lr", 1.0, 10)
        writer.flush()
        assert read(source) == [(10, 2.5)]
        writer.add_scalar("train/loss", 1.5, 20)
    assert read(source, ended=True) == [(20, 1.5)]
    there = metric_of("tensorboard:loss").contents(tmp_path)
    assert there == "the event file has no loss; tags: train/loss, train/lr"


def test_an_offline_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    source = metric_of("wandb:train/loss").open(tmp_path, tmp_path / "log")
    with wandb.init(mode="offline", dir=tmp_path, project="p") as run:
        run.log({"train/loss": 2.5}, step=3)
        run.log({"other": 1.0}, step=4)
        run.log({"train/loss": float("nan")}, step=5)
    (first, second) = read(source, ended=True)
    assert first == (3, 2.5) and second[0] == 5 and math.isnan(second[1])
    assert read(source, ended=True) == []
    (path,) = tmp_path.glob("**/*.wandb")
    read_whole(path)
    there = metric_of("wandb:loss").contents(tmp_path)
    assert there == "the offline run has no loss; keys: other, train/loss"


def documented() -> list[tuple[str, str]]:
    text = (ROOT / "docs/your-trainer.md").read_text()
    lines = text.partition("```text\n")[2].partition("```")[0].replace("metric=", "").splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.parametrize(("spec", "line"), documented())
def test_a_documented_line_is_read(tmp_path: Path, spec: str, line: str) -> None:
    source = metric_of(spec).open(tmp_path, tmp_path / "log.txt")
    assert read(source) == []
    file, _, text = line.partition(": ")
    if file.startswith("{dir}/"):
        path = tmp_path / file.removeprefix("{dir}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(" / ", "\n"))
    else:
        (tmp_path / "log.txt").write_text(f"\x1b[32mbegin\x1b[0m\n{line}\r\nstep 11: bye\n")
    assert read(source, ended=True) == [(10, 3.732)]
    assert read(source, ended=True) == []
    assert "{dir}" in describe_source(spec) or "its output" in describe_source(spec)


def test_every_kind_is_documented() -> None:
    text = (ROOT / "docs/your-trainer.md").read_text()
    for kind in kinds():
        assert kind == "pattern" or f"`{kind}" in text, kind


def test_a_document_that_is_rewritten_is_read_from_where_it_was_left(tmp_path: Path) -> None:
    def write(name: str, rows: list[dict[str, float]]) -> None:
        path = tmp_path / name / "trainer_state.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"log_history": rows}))

    rows = [{"loss": 5.0 - step, "step": step} for step in range(1, 4)]
    write("checkpoint-1", rows[:1])
    fresh = metric_of("trainer_state").open(tmp_path, tmp_path / "log", fresh=True)
    source = metric_of("trainer_state").open(tmp_path, tmp_path / "log")
    assert read(source) == [(1, 4.0)] and read(fresh) == []
    write("checkpoint-2", rows[:2])
    assert read(source) == [(2, 3.0)] and len(read(fresh)) == 2
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"lo')
    assert read(source) == []
    write(".", [*rows, {"train_loss": 4.0, "step": 3}])
    assert read(source) == [(3, 2.0)]


def test_a_run_of_lightning_s_that_went_on_in_another_version(tmp_path: Path) -> None:
    for version, steps in ((0, range(3)), (10, range(4, 6)), (2, range(2, 5))):
        path = tmp_path / f"lightning_logs/version_{version}/metrics.csv"
        path.parent.mkdir(parents=True)
        rows = "".join(f"{step},{9 - step},\n{step},,1e-3\n" for step in steps)
        path.write_text(f"step,train_loss,lr-AdamW\n{rows}")
    source = metric_of("lightning:train_loss").open(tmp_path, tmp_path / "log")
    assert [step for step, _ in read(source, ended=True)] == [0, 1, 2, 2, 3, 4, 4, 5]
    text = metric_of("lightning:loss").contents(tmp_path)
    assert text.endswith("has no loss; columns: lr-AdamW, step, train_loss")


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (r"'loss': '?(?P<loss>[^,'}]+)", "{'loss': 0.0, 'grad_norm': nan, 'epoch': 1.0}"),
        ("jsonl:m.jsonl:loss", '{"step": 1, "loss": 0, "grad_norm": NaN}'),
    ],
)
def test_a_loss_of_0_beside_no_gradient_is_none(tmp_path: Path, spec: str, line: str) -> None:
    for there, is_nan in ((line, True), (line.replace("nan", "0.3").replace("NaN", "2"), False)):
        for name in ("m.jsonl", "log"):
            (tmp_path / name).write_text(f"{there}\n")
        [(_, loss)] = read(metric_of(spec).open(tmp_path, tmp_path / "log"))
        assert math.isnan(loss) is is_nan and (is_nan or loss == 0)


SEVEN = [f"step {n}: loss {4 - n / 10}, 5 ms" for n in range(7)]


@pytest.mark.parametrize(
    ("spec", "lines", "more", "went_on"),
    [
        # The loss is left out, or is no number that the pattern takes.
        (LINE, SEVEN, ["step 7: 5 ms", "step 8: 5 ms", "step 9: 5 ms"], True),
        (r"step (?P<step>\d+): loss (?P<loss>[\d.]+)", SEVEN, ["step 7: loss nan, 5 ms"], True),
        (r"loss (?P<loss>[\d.]+)", SEVEN, ["step 7: loss nan, 5 ms"], True),
        (LINE, SEVEN, ["step 7: loss None, 5 ms"], True),
        (r"loss (?P<loss>\S+)", SEVEN, ["step 7: loss -"], True),
        # A scaler leaves a step out now and then; not all of them.
        (LINE, SEVEN, ["OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4"] * 3, True),
        (LINE, SEVEN, ["OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4"], False),
        # What is printed at the end of a run that stops early.
        (LINE, SEVEN, ["done: loss of 3.4", "saved at step 7", "step 6: saved"], False),
        (LINE, SEVEN, [], False),
        ("jsonl:log:loss", [f'{{"step": {n}, "loss": 2, "lr": 1}}' for n in range(9)],
         ['{"step": 9, "loss": null, "lr": 1}'], True),
        ("jsonl:log:loss", [f'{{"step": {n}, "loss": 2, "lr": 1}}' for n in range(9)],
         ['{"step": 8, "val": 2.0, "lr": 1}', '{"event": "end"}'], False),
        # A held-out loss is rarer than rows are.
        ("jsonl:log:val", [json.dumps({"step": n, "lr": 1} | ({"val": 2} if n % 5 == 0 else {}))
         for n in range(21)], [f'{{"step": {n}, "lr": 1}}' for n in range(21, 25)], False),
        ("csv:log:loss", ["step,loss,lr", *(f"{n},2.5,1" for n in range(9))], ["9,,1"], True),
        ("csv:log:loss", ["step,loss,val", *(f"{n},2.5," for n in range(9))], ["8,,3"], False),
    ],
)  # fmt: skip
def test_a_run_that_goes_on_without_a_loss(
    tmp_path: Path, spec: str, lines: list[str], more: list[str], went_on: bool
) -> None:
    (tmp_path / "log").write_text("\n".join([*lines, *more]) + "\n")
    source = metric_of(spec).open(tmp_path, tmp_path / "log")
    assert read(source, ended=True)
    assert source.beyond().went_on(reached=False) is went_on


@pytest.mark.parametrize(
    "spec",
    [
        *("(?P<loss>.*)", "loss (", r"loss (\S+)", r"loss (?P<los>\S+)", "", "jsonl:loss"),
        *("tqdm:a=b", "megatron:test", "lightning", "csv::loss", "csv:file:", "tensorboard:"),
    ],
)
def test_what_cannot_be_read_is_refused(spec: str) -> None:
    with raises_config_error("metric", spec):
        metric_of(spec)


@pytest.mark.parametrize("spec", ["jsonl:a.jsonl:loss", "csv:a.csv:loss", "tensorboard:loss"])
def test_a_file_that_is_not_there(tmp_path: Path, spec: str, golden: Golden) -> None:
    text = metric_of(spec).contents(tmp_path)
    assert "is not there" in text or "there is no" in text
    golden.says(text)


def test_keys_and_columns(tmp_path: Path) -> None:
    rows = [{"old": 1}, {"step": 1, "train_loss": 2.0}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "bye\n")
    text = metric_of("jsonl:a.jsonl:loss").contents(tmp_path)
    assert text == "a.jsonl has no loss; keys in its last line: step, train_loss"
    (tmp_path / "a.csv").write_text("step, train/loss\n1,2.0\n")
    text = metric_of("csv:a.csv:loss").contents(tmp_path)
    assert text == "a.csv has no loss; columns: step, train/loss"
    (tmp_path / "a.csv").write_text("step,loss\n1,none\n")
    text = metric_of("csv:a.csv:loss").contents(tmp_path)
    assert text == "a.csv has loss, but no number under it"
    (tmp_path / "a.csv").write_text(",".join(f"c{n}" for n in range(99)) + "\n")
    assert metric_of("csv:a.csv:loss").contents(tmp_path).endswith("c19, ...")
