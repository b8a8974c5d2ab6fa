"""`sweeper export`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sweeper.export.lacks import NAMES
from sweeper.files import read_json
from tests.cli.driver import Run, assert_refused, measured
from tests.golden import Golden

TRANSFER = ("transfer", "--to-width", "32", "--study", "a")


@pytest.fixture
def planned(ladder_study: Path) -> Path:
    """The folder of a plan for width 32."""
    return ladder_study / "transfer/w32-d1"


def test_it_writes_beside_the_plan_what_is_accepted(planned: Path, sweeper: Run) -> None:
    argv = ["export", "--to", "torchtitan", "--study", "a", "--json"]
    first = sweeper(*argv, "--strict")
    lacks = first.document["cannot_express"]
    assert lacks and first.code == 3
    accepts = [word for lack in lacks for word in ("--accept", lack["name"])]
    answer = sweeper(*argv, *accepts, "--strict")
    assert answer.code == 0, answer
    files = [Path(path) for path in answer.document["files"]]
    assert {path.parent for path in files} == {Path("runs/a/transfer/w32-d1/export/torchtitan")}
    assert all("the study a" in path.read_text() for path in files)
    assert all(lack["accepted"] for lack in answer.document["cannot_express"])


def test_what_cannot_be_expressed_exits_with_3_and_writes_nothing(
    planned: Path, sweeper: Run, tmp_path: Path, golden: Golden
) -> None:
    before = sorted(tmp_path.rglob("*"))
    answer = sweeper("export", "--to", "megatron", "--strict")
    assert answer.code == 3 and answer.err == ""
    golden.says(measured(answer.out))
    assert sorted(tmp_path.rglob("*")) == before
    # All but one are not enough.
    accepts = answer.out.partition("adding ")[2].partition(":")[0].split()
    assert sweeper("export", "--to", "megatron", "--strict", *accepts[2:]).code == 3


def test_what_the_file_leaves_to_its_reader_is_said_with_the_edit(
    planned: Path, sweeper: Run
) -> None:
    """muP's attention is 1/d, and no list of groups can say it: a line of the model does."""
    answer = sweeper("export", "--to", "pytorch", "--study", "a")
    assert answer.code == 0
    edit = "F.scaled_dot_product_attention(q, k, v, scale=0.125)"
    assert f"The edit: {edit}" in answer.out and "--accept attention" in answer.out
    file = planned / "export/pytorch/plan_pytorch.py"
    assert "(LEFT TO YOU)" in (text := " ".join(file.read_text().split())) and edit in text
    accepts = answer.out.partition("say so: ")[2].partition(".")[0].split()
    accepted = sweeper("export", "--to", "pytorch", "--study", "a", *accepts)
    assert accepted.code == 0 and "leaves to you" not in accepted.out
    assert "(accepted)" in " ".join(file.read_text().split())


def test_out_and_plan_choose_the_places(planned: Path, sweeper: Run, tmp_path: Path) -> None:
    plan = shutil.copy(planned / "plan.json", tmp_path / "mine.json")
    argv = ["export", "--to", "pytorch", "--plan", str(plan), "--out", "there"]
    refused = sweeper(*argv, "--strict")
    accepts = [w for n in NAMES if f"--accept {n}" in refused.out for w in ("--accept", n)]
    assert not Path("there").exists()
    assert sweeper(*argv, *accepts).code == 0
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["plan_pytorch.py"]


def test_a_plan_and_its_exports_in_a_shared_study_are_the_groups(study: Path, sweeper: Run) -> None:
    study.chmod(0o2770)
    before = os.umask(0o022)
    try:
        assert sweeper(*TRANSFER).code == 0
        assert sweeper("export", "--to", "pytorch", "--study", "a").code == 0
    finally:
        os.umask(before)
    made = [study / "transfer", *(study / "transfer").rglob("*")]
    modes = {path.name: path.stat().st_mode & 0o7777 for path in made}
    wanted = {path.name: 0o2770 if path.is_dir() else 0o660 for path in made}
    assert len(made) >= 6 and modes == wanted


def test_nobody_s_own_file_is_replaced(
    planned: Path, sweeper: Run, tmp_path: Path, golden: Golden
) -> None:
    accepts = [word for name in NAMES for word in ("--accept", name)]
    argv = ["export", "--to", "pytorch", *accepts, "--out", "there"]
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "plan_pytorch.py"
    file.write_text("mine")
    answer = sweeper(*argv)
    assert_refused(answer, golden)
    assert file.read_text() == "mine"
    file.unlink()
    assert sweeper(*argv).code == 0 == sweeper(*argv).code, "an export is replaced by the next"


def test_a_place_that_takes_no_files_is_bad_input(
    planned: Path, sweeper: Run, tmp_path: Path, golden: Golden
) -> None:
    """Exit code 1 is for work that failed, and a temporary file's name helps nobody."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "there" / "plan_pytorch.py").mkdir(parents=True)
    accepts = [word for name in NAMES for word in ("--accept", name)]
    for out in ("file", "there"):
        answer = sweeper("export", "--to", "pytorch", *accepts, "--out", out)
        assert_refused(answer, golden)
        assert ".tmp" not in answer.err
    assert (tmp_path / "file").read_text() == "mine"


def test_one_of_several_plans_is_chosen_by_its_file(
    planned: Path, sweeper: Run, golden: Golden
) -> None:
    assert sweeper("transfer", "--to-width", "64", "--study", "a").code == 0
    answer = sweeper("export", "--to", "pytorch")
    assert_refused(answer, golden)
    plan = "runs/a/transfer/w64-d1/plan.json"
    assert f"--plan {plan}" in answer.err
    assert sweeper("export", "--to", "pytorch", "--plan", plan).code == 0


def changed(folder: Path, **fields: Any) -> None:
    path = folder / "plan.json"
    path.write_text(json.dumps({**read_json(path), **fields}))


def test_plans_that_say_too_little_are_refused(planned: Path, sweeper: Run, golden: Golden) -> None:
    changed(planned, factors=None)
    assert_refused(sweeper("export", "--to", "pytorch"), golden)
    parameters = read_json(planned / "plan.json")["parameters"]
    changed(planned, parameters=[{**each, "frozen": True} for each in parameters])
    assert_refused(sweeper("export", "--to", "pytorch"), golden)
    changed(planned, parameters=[], parameterization="own")
    assert_refused(sweeper("export", "--to", "pytorch"), golden)
