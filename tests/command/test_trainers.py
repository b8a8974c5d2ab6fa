"""Trainers that nobody here wrote: transformers' Trainer, nanoGPT and nanoGPT-mup as published."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sweeper.command.command_runner import Command
from sweeper.config.compose import compose_tree
from sweeper.registry import build_plugin, groups
from sweeper.study.study import StudyRecord
from tests.cli.driver import Run, results
from tests.command.commands import SCRIPT

ROOT = Path(__file__).parents[2]
TRAINERS = ROOT.parent / "shared" / "trainers"
TEXT = ROOT.parent / "shared" / "data" / "tinyshakespeare.txt"
LINE = ("search=lr", "search.line={points: 2, extend: 0}", "search.fresh_seeds=0", "study=a")
pytestmark = pytest.mark.slow


@pytest.fixture
def nano(workplace: Path, request: pytest.FixtureRequest) -> Path:
    source = TRAINERS / request.param
    if not source.is_dir() or not TEXT.is_file():
        pytest.skip(f"{request.param} is not at hand")
    shutil.copytree(source, workplace, dirs_exist_ok=True)
    data = workplace / "data" / "shakespeare_char"
    data.mkdir(parents=True, exist_ok=True)
    text = TEXT.read_text()[:60_000]
    (data / "input.txt").write_text(text)
    return workplace


@pytest.mark.long
@pytest.mark.parametrize("nano", ["nanoGPT", "nanoGPT-mup"], indirect=True)
def test_nanogpt_as_published(sweeper: Run, nano: Path) -> None:
    prepare = nano / "data" / "shakespeare_char" / "prepare.py"
    subprocess.run([sys.executable, str(prepare)], check=True, capture_output=True)
    own = "--mup_enabled=True --mup_width_multiplier={width/base.width}"
    command = "train.py config/train_shakespeare_char.py --device=cpu --compile=False "
    command += "--dtype=float32 --dropout=0.0 --always_save_checkpoint=False "
    command += own if (nano / "csv_logging.py").exists() else ""
    sizes = ("model.width=32", "model.depth=1", "train.steps=3", "train.batch_size=2")
    argv = ["runner=nanogpt", *sizes, "train.seq_len=16", *LINE]
    argv += ["runner.arguments.n_head='{width//16}'", "runner.arguments.eval_iters='{1 + seed}'"]
    argv += ["parameterization=own", "model=own", "data=own"]
    listed = ",".join(f"'{word}'" for word in [sys.executable, *shlex.split(command)])
    answer = sweeper("search", *argv, f"runner.command=[{listed}]")
    assert answer.code == 0, answer
    assert len(results(nano / "runs/a")) == 2
    log = next(nano.glob("runs/a/trials/*/log.txt")).read_text()
    assert re.search(r"iter 3: loss", log) and "val loss" in log


@pytest.mark.long
def test_transformers_trainer(sweeper: Run, workplace: Path) -> None:
    pytest.importorskip("transformers", minversion="5.0")
    pytest.importorskip("accelerate")
    shutil.copy(ROOT / "scripts" / "examples" / "hf_trainer" / "train.py", workplace)
    more = "{width: '{width}', depth: 1, seq_len: '{seq_len}', use_cpu: true}"
    sizes = ("model.width=32", "train.steps=3", "train.batch_size=2", "train.seq_len=16")
    argv = ["runner=hf_trainer", *sizes, *LINE, f"+runner.arguments={more}"]
    argv += ["parameterization=own", "model=own", "data=own"]
    answer = sweeper("search", *argv, f"runner.command=['{sys.executable}',train.py]")
    assert answer.code == 0, answer
    assert len(results(workplace / "runs/a")) == 2


@pytest.mark.long
def test_two_ranks_train_by_a_plan_two_trials_at_a_time(sweeper: Run, workplace: Path) -> None:
    """FSDP2 on gloo under torchrun: the script loads the plan of its trial."""
    script = ROOT / "scripts" / "train_with_plan.py"
    shutil.copy(script, workplace)
    command = f"{sys.executable} train_with_plan.py --fsdp --plan={{plan}} --width={{width}} "
    command += "--depth={depth} --steps={steps} --batch-size={batch_size} --seq-len={seq_len}"
    listed = ",".join(f"'{word}'" for word in command.split())
    argv = ["runner=torchrun", "runner.tasks=2", f"runner.command=[{listed}]", *LINE]
    argv += ["model=own", "data=own", "parameterization=mup", "model.width=32", "model.depth=1"]
    argv += ["model._target_=train_with_plan.Plain", "launcher=local", "launcher.workers=2"]
    argv += ["train.steps=4", "train.batch_size=4", "train.seq_len=16"]
    argv += ["train.objective_window=0.5", "metric=step +(?P<step>\\d+) +loss (?P<loss>\\S+)"]
    sys.path.insert(0, str(workplace))
    try:
        answer = sweeper("search", *argv)
    finally:
        sys.path.remove(str(workplace))
        sys.modules.pop("train_with_plan", None)
    assert answer.code == 0, answer
    assert len(results(workplace / "runs/a")) == 2
    plans = list(workplace.glob("runs/a/trials/*/plan.json"))
    assert len(plans) == 2 and plans[0].read_text() != plans[1].read_text()


@pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed")
def test_torchtitan_takes_the_preset_s_flags_and_the_example_s_model(
    sweeper: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = """\
import sys
from torchtitan.config import ConfigManager
config = ConfigManager().parse_args(sys.argv[1:])
model, training = config.model_spec.model, config.training
print(model.dim, len(model.layers), training.steps, training.seq_len, training.local_batch_size)
print("step: 2 loss:", config.optimizer.param_groups[0].optimizer_kwargs["lr"])
"""
    (workplace / "parse.py").write_text(parse)
    example = ROOT / "scripts/examples/torchtitan"
    monkeypatch.setenv("PYTHONPATH", f"{example}:{os.environ.get('PYTHONPATH', '')}")
    command = f"'{sys.executable}',parse.py,'--module=proxy','--config=llama'"
    argv = ["runner=torchtitan", "runner.launch=plain", "runner.code=[parse.py]", *LINE]
    argv += ["parameterization=own", "model=own", "data=own", "model.width=32", "model.depth=3"]
    argv += ["train.steps=2", "train.seq_len=64", "train.batch_size=4"]
    answer = sweeper("search", *argv, f"runner.command=[{command}]")
    assert answer.code == 0, answer
    log = next(workplace.glob("runs/a/trials/*/log.txt")).read_text()
    assert "\n32 3 2 64 4\n" in log
    for result in StudyRecord.read(workplace / "runs/a").results():
        assert result.objective == result.trial.hps["eta"]


def test_presets_compose_and_take_known_placeholders() -> None:
    argv = ["parameterization=own", "model=own", "data=own", "model.width=64"]
    presets = [name for name in groups()["runner"] if name not in ("engine", "command")]
    assert len(presets) >= 6
    for name in presets:
        word = f"runner.command=['python','{SCRIPT}','--x={{eta}}']"
        runner = build_plugin(compose_tree([f"runner={name}", word, *argv])["runner"])
        assert isinstance(runner, Command)
        runner.check_use(("eta",), scaled_by_user=True)
