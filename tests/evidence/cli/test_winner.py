from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

from tests.cli.driver import Run
from tests.evidence.compare.test_decision import table

TO = ("--to-params", "1.2e9", "--to-tokens", "2.4e10")


@pytest.fixture
def runs(workplace: Path) -> str:
    rows = table({"new": [0.05, 0.045, 0.04], "same": [0.001, -0.001, 0.0]})
    pandas.DataFrame(rows).to_csv(workplace / "runs.csv", index=False)
    return "runs.csv"


@pytest.mark.parametrize(
    ("baseline", "where", "code"),
    [
        ("base", "change != 'same'", 0),
        ("base", "change != 'new'", 4),
        ("new", "change != 'same'", 3),
    ],
)
def test_strict_decides_by_its_exit_code_and_one_line(
    runs: str, baseline: str, where: str, code: int, sweeper: Run, workplace: Path
) -> None:
    flags = ("--by", "change", "--baseline", baseline, *TO, "--where", where)
    ended = sweeper("compare", runs, *flags, "--strict", "--json")
    assert ended.code == code and ended.out.count("\n") == 1
    document = json.loads(ended.out)
    assert document["answer"] == {0: "better", 3: "worse", 4: "cannot say"}[code]
    assert document["target"]["counts"] == {"params": 1.2e9, "tokens": 2.4e10}
    assert not (workplace / "runs/comparisons").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--by", "change", "--baseline", "base", "--settle"), "--by is of runs that are there"),
        (("--by", "change", "--baseline", "base", "--fixed=E=9"), "below the lowest loss"),
        (("--by", "change", "--baseline", "base", "--fixed=E=nan"), "below the lowest loss"),
        (("--by", "change", "--baseline", "base", "--fixed=gamma=50"), "at least 0.001, at most 1"),
    ],
)
def test_bad_input_is_one_message(
    flags: tuple[str, ...], message: str, runs: str, sweeper: Run, workplace: Path
) -> None:
    ended = sweeper("compare", runs, *flags)
    assert ended.code == 2 and message in ended.err and "Traceback" not in ended.err
    assert not (workplace / "runs").exists()


def test_what_holds_of_many_is_one_note_on_screen_page_and_in_the_document(
    sweeper: Run, workplace: Path
) -> None:
    nan = float("nan")
    rows = table({"new": [0.05] * 3, **{f"v{i}": [0.01, nan, nan] for i in range(5)}})
    rows[-1]["loss"] = float("inf")
    pandas.DataFrame(rows).to_csv(workplace / "many.csv", index=False)
    ended = sweeper("compare", "many.csv", "--by", "change", "--baseline", "base", "--json")
    document = json.loads(ended.out)
    notes = [each for each in document["found"] if "not run at" in each]
    assert len(notes) == 1 and all(f"v{i}" in notes[0] for i in range(4))
    page = (workplace / "runs/comparisons/many/winner.html").read_text()
    for each in (*notes, next(s for s in document["found"] if "NaN or infinite" in s)):
        assert each in page and " ".join(each.split()) in " ".join(ended.err.split())
