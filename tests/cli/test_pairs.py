import json

import pytest

from tests.cli.driver import SIZES, Run

WORDS = ["search", "data=text", "data.path=text.txt", *SIZES, "study=a", "search=pairs"]
FEW = ["search.pairs=[[eta,alpha_attn]]", "search.points=2", "search.eta=null"]


@pytest.mark.usefixtures("drawn")
def test_a_search_over_a_pair_leaves_its_table_on_screen_and_page(sweeper: Run, workplace) -> None:
    answer = sweeper(*WORDS, *FEW)
    assert answer.code == 0, answer.err
    assert "Pairs, the most strongly coupled first" in answer.out
    folder = workplace / "runs/a"
    (grid,) = json.loads((folder / "search.json").read_text())["pairs"]
    assert grid["names"] == ["eta", "alpha_attn"] and len(grid["losses"]) == 2
    assert "Pairs, the most strongly coupled first" in (folder / "report.html").read_text()
