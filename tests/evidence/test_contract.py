"""What is said of published tables, kept as the code gave it: see `tests/test_contract.py`."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.driver import call
from tests.test_contract import Holds, plain

DATA = Path(__file__).parents[3] / "shared/data"
TABLES = {
    "nanochat": "judge grids/nanochat_pr644.csv --where 'weight_decay == 0.1'",
    "cliff": "judge cases/cliff_to_5.csv --to-width 4096",
    "three seeds": "judge cases/cliff_to_6.8_3seeds.csv --to-width 4096",
    "grid": "judge cases/tables/grid.csv --to-width 4096",
    "comes apart": "judge cases/tables/base_best_comes_apart.csv",
    "steplaw over width": "judge steplaw/dense_lr_bs_loss.csv --columns"
    " 'width=h,eta=lr,loss=smooth loss' --where 'D == 20000000000 and bs == 128'"
    " --ignore 'N,numl,numh,ffnh,ti,exp_name,loss,D/N'",
    "speedruns": "compare decisions/speedruns.csv --by recipe --baseline adamw_llama_scaling"
    " --columns loss=c4_en_bpb --to-params 1.2e9 --to-tokens 2.4e10",
    "gates": "compare decisions/gates.csv --by change --baseline baseline"
    " --where 'baseline == \"v16\"' --columns 'flops=budget_flops,loss=macro_loss'"
    " --to-width 2048",
    "seeds": "compare curves/runs.csv --by group --baseline g00 --columns loss=val_loss"
    ' --where \'group in ["g00", "g01", "g02"]\'',
    "large differences": "compare cases/tables/compare_large_differences.csv --by data"
    " --baseline a --to-params 1e9 --to-tokens 2e10",
    "marin": "predict scaling/marin_comma_isoflops.csv --to-params 1e9 --to-tokens 1e11",
    "chinchilla": "predict scaling/chinchilla_scalefit_isoflops.csv --to-params 7e9"
    " --to-tokens 1.4e11 --flops 1e22",
    "four sizes": "predict cases/tables/four_sizes_wide.csv --to-params 1e9 --to-tokens 1e10",
    "shapes": "predict scaling/shapes_cooled.csv --to-params 3e9 --to-tokens 3e11"
    " --ignore 'width,depth,step'",
}
"""Questions about published tables, and some that show one thing each."""


@pytest.mark.parametrize("name", TABLES)
def test_what_is_said_of_a_table_stays(
    name: str, holds: Holds, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    verb, source, *words = shlex.split(TABLES[name])
    if not (DATA / source).is_file():
        pytest.skip("needs the published table")
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, verb, str(DATA / source), *words, "--json")
    said = {"code": answer.code, "document": plain(json.loads(answer.out or "{}"))}
    # Posterior draws differ from one processor to the next: ends of intervals moved by 2 %.
    holds(f"{verb}-{name.replace(' ', '-')}", said, exact=5e-2, near=1e-2)
