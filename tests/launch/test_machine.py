"""Modules in the folder worked in: for a user's own model and its siblings, never for a library."""

import os
import subprocess
import sys
from pathlib import Path

from sweeper.launch.slurm_jobs import BOOT
from tests.cli.driver import TINY, make_workplace

DECOYS = ("numexpr", "bottleneck", "pyarrow", "torch_xla", "signal", "submitit", "sitecustomize")
"""What pandas and torch try to import, and what is there already."""
TABLE = "eta,width,loss\n" + "".join(f"{e},{w},{2 + e}\n" for w in (32, 64) for e in (1, 2, 4, 8))
MODEL = """
import pandas
from torch import nn

class Net(nn.Module):
    def __init__(self, width, depth, classes):
        super().__init__()
        self.embedding, self.out = nn.Embedding(classes, width), nn.Linear(width, classes)

    def forward(self, tokens, targets):
        from own_loss import loss
        return loss(self.out(self.embedding(tokens)).flatten(0, 1), targets.flatten())
"""


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    for name in DECOYS:
        (folder / f"{name}.py").write_text(f"open('../ran', 'a').write('{name} ')")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    argv = [sys.executable, *words]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert not (folder.parent / "ran").exists(), (folder.parent / "ran").read_text()
    return done


def test_no_file_beside_a_table_runs(tmp_path: Path) -> None:
    place = make_workplace(tmp_path / "place")
    (place / "table.csv").write_text(TABLE)
    assert "128" in python(place, "-m", "sweeper", "judge", "table.csv", "--to-width=128").stdout
    on_a_node = python(place, "-c", BOOT.format(folder="there-is-none"))
    assert "FileNotFoundError" in on_a_node.stderr


def test_workers_find_a_model_and_what_it_imports_late(tmp_path: Path) -> None:
    place = make_workplace(tmp_path / "place")
    (place / "own_net.py").write_text(MODEL)
    (place / "own_loss.py").write_text("from torch.nn.functional import cross_entropy as loss")
    own = ["model._target_=own_net.Net", "parameterization=mup", "launcher.workers=2"]
    words = [word for word in TINY if word != "model.head_size=8"]
    done = python(place, "-m", "sweeper", "search", "study=own", *words, *own)
    assert done.returncode == 0, done.stderr
