"""A search and a transfer as a notebook calls them, with a class that no file holds."""

import asyncio
import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib
import pytest
from matplotlib import pyplot
from rich.console import Console

import sweeper
from sweeper.api.bar import Kept, NotebookBar
from sweeper.api.interrupt import whole_imports
from sweeper.api.shown import Answer
from sweeper.errors import BadInput
from sweeper.launch.code import edited_modules, main_code, user_modules
from sweeper.records import import_target
from sweeper.report.next import next_of
from sweeper.study.study import StudyRecord
from tests.cli.driver import call, make_workplace
from tests.layout import without_drawing, without_figures
from tests.refusals import raises_config_error
from tests.report import test_checks

CELL = """
import torch
from torch import nn
import torch.nn.functional as F

def act(x):
    return F.gelu(x)

class Net(nn.Module):
    def __init__(self, width, depth, classes):
        super().__init__()
        self.tokens = nn.Embedding(classes, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, inputs, targets):
        x = act(self.hidden(self.tokens(inputs)))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
"""
SETTINGS: dict[str, Any] = {
    "study": "nb",
    "width": 16,
    "depth": 1,
    "steps": 4,
    "batch_size": 2,
    "seq_len": 16,
    "heldout_batches": 1,
    "parameterization": "mup",
    "data": {"name": "text", "path": "text.txt"},
    "runner": {"device": "cpu", "batched_trials": 1},
    "search": {"name": "lr", "line": {"points": 3, "extend": 0}, "fresh_seeds": 0},
    "transfer": {"widths": [16, 32], "check": False},
}


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Any:
    space = vars(sys.modules["__main__"])
    before = dict(space)
    exec(compile(CELL, "<cell>", "exec"), space)
    yield space
    for name in space.keys() - before.keys():
        del space[name]
    space.update(before)


@pytest.fixture
def undrawn() -> Iterator[None]:
    """For calls that write pages at which nobody looks."""
    with without_drawing(), without_figures():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    matplotlib.use("agg")
    folder = make_workplace(tmp_path_factory.mktemp("notebook"))
    space = vars(sys.modules["__main__"])
    exec(compile(CELL, "<cell>", "exec"), space)

    async def notebook() -> None:
        study = sweeper.search(space["Net"], **SETTINGS)
        assert isinstance(study, sweeper.Study) and len(study.results()) == 3
        done = sweeper.transfer(study, 64, validate=True, seeds=2, step=1.0, span=1.0, extend=0)
        assert done.answer in ("holds", "fails", "cannot say yet")
        # The study at hand knows what was trained meanwhile.
        assert len(study.verdicts) == 1 and len(study) > 3

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        with without_drawing(), without_figures():
            asyncio.run(notebook())
        yield folder
    for name in ("Net", "act"):
        del space[name]


def test_a_study_is_its_numbers_its_table_and_its_plots(made: Path) -> None:
    study = sweeper.open_study("nb")
    assert set(study.best) >= {"eta"} and study.loss < 10
    assert study.plan.target.width == 64
    there = sweeper.status("nb")
    assert study.document == there.document and study.answer == there.answer != ""
    assert study.text == there.text
    records = study.records()
    assert len(records) == len(study) and {"log2_eta", "loss", "phase"} <= records[0].keys()
    frame = pytest.importorskip("pandas") and study.to_dataframe()
    assert list(frame["loss"]) == [result.objective for result in study.results()]
    figure: Any = study.plot_ladder().figure
    # pyplot's own: these are what a notebook shows at the end of a cell.
    assert figure.number in pyplot.get_fignums()
    pyplot.close("all")
    with pytest.raises(AttributeError, match="its page contours"):
        study.plot_pairs()


def test_a_check_is_drawn_where_there_is_one(made: Path) -> None:
    study = sweeper.open_study("nb")
    with pytest.raises(BadInput, match="a coordinate check over width"):
        study.plot_check()
    test_checks.add(study.folder)
    study.reload()
    titles = {ax.get_title("left").partition("\n")[0] for ax in study.plot_check()}
    assert {"embed", "head"} <= titles
    pyplot.close("all")
    shutil.rmtree(study.folder / "check")


IN_A_NOTEBOOK = """
import rich.console, rich.jupyter
def refused(*_): raise AssertionError("rich shows text below the cell")
rich.console._is_jupyter, rich.jupyter.display = (lambda: True), refused
import matplotlib.backends.backend_agg as backend
import matplotlib, sweeper
def interactive():  # as a notebook's backend does when it is loaded
    matplotlib.interactive(True)
    return backend
study = sweeper.open_study("nb")
from sweeper.table import Column, Table
texts = [repr(study), study._repr_html_(), str(sweeper.transfer(study, 64))]
texts += [str(Table("Sizes", [Column("width")])), sweeper.search(Net, **SETTINGS, dry_run=True)]
assert all(text and "\\x1b" not in repr(text) for text in texts), texts
from matplotlib import pyplot
load, pyplot.switch_backend = pyplot.switch_backend, lambda name: (load(name), interactive())
study.plot_ladder()
assert matplotlib.is_interactive(), "later plots of the notebook would not be shown"
"""


@pytest.mark.long
def test_a_notebook_shows_the_card_alone_and_every_plot(made: Path) -> None:
    # A process of its own, which loads what it finds as a kernel does.
    done = subprocess.run(
        [sys.executable, "-c", f"{CELL}{IN_A_NOTEBOOK}".replace("**SETTINGS", f"**{SETTINGS}")],
        # In colour, as a kernel.
        env={**os.environ, "FORCE_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_it_is_shown_as_text_and_as_a_card(made: Path) -> None:
    study = sweeper.open_study(made / "runs/nb")
    text, card = repr(study), study._repr_html_()
    assert "Study nb" in text and "Next, " in text and "sweeper.transfer('nb'" in text
    assert "<svg" in card and "Training loss" in card
    done = sweeper.Transfer.read(study.folder / "transfer/w64-d1")
    assert "Plan for width 64" in repr(done) and "over width" in repr(done.verdicts[0])
    assert done.answer in repr(done) and "<table" in done._repr_html_()
    assert "<svg" in done.verdicts[0]._repr_html_() and done.study.name == "nb"
    verdict = study.verdicts[0]._repr_html_()
    head = verdict[verdict.index("<thead>") : verdict.index("</thead>")]
    assert "<th>answer" in head and "<th>optimum" in head
    # One page holds many cells: no two drawings share an id.
    ids = [part.partition('"')[0] for part in card.split('<clipPath id="')[1:]]
    assert not any(f'"{name}"' in done._repr_html_() for name in ids)
    plan = done.plan
    assert "hidden.weight" in plan._repr_html_() and repr(plan).startswith("TransferPlan(width 64")


@pytest.mark.usefixtures("undrawn")
def test_notes_told_before_the_work_stay_with_the_study(made: Path) -> None:
    study = sweeper.search(vars(sys.modules["__main__"])["Net"], **SETTINGS)
    assert isinstance(study, sweeper.Study)
    # This model has no attention: the bar that told of it is gone.
    [note] = [note for note in study.notices if "alpha_attn" in note]
    assert note in repr(study) and "Note: " not in note


def test_a_cell_s_model_has_next_calls_and_no_next_command(made: Path) -> None:
    folder = made / "runs" / "nb"
    command = next_of(folder, shell=False)
    assert command is None or command.call.verb != "check"
    shell = next_of(folder)
    assert shell is None or shell.call.verb not in ("search", "transfer", "check")


@pytest.mark.usefixtures("undrawn")
def test_what_is_finished_is_not_trained_again_and_other_code_is_another_trial(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = vars(sys.modules["__main__"])
    before = len(StudyRecord.read(made / "runs/nb").results())
    assert len(sweeper.search(space["Net"], **SETTINGS)) == before
    dry = sweeper.search(space["Net"], **SETTINGS, dry_run=True)
    assert isinstance(dry, Answer) and dry.document["finished"] == 3 and "trials" in repr(dry)
    assert "Next, to train them: the same without dry_run=True." in repr(dry)
    # The command line of another process has no such class, and says where it is.
    answer = call(capsys, "transfer", "--study", "nb", "--to-width", "64")
    assert answer.code == 0
    exec(compile(CELL.replace("gelu", "silu"), "<cell>", "exec"), space)
    try:
        with pytest.raises(BadInput, match=r"__main__.act changed"):
            sweeper.transfer("nb", 64)
    finally:
        exec(compile(CELL, "<cell>", "exec"), space)


def test_threads_take_turns(made: Path) -> None:
    space, texts, failures = vars(sys.modules["__main__"]), dict[str, str](), list[Exception]()

    def dry(name: str) -> None:
        try:
            for _ in range(2):
                settings = {**SETTINGS, "study": name}
                asked = sweeper.search(space["Net"], **settings, dry_run=True)
                texts[name] = asked.document["study"]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=dry, args=(f"thread{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and all(name == text for name, text in texts.items())


def test_a_name_that_is_none_says_what_it_may_be(made: Path) -> None:
    for wrong in ("mb", made / "runs/mb"):
        with pytest.raises(BadInput, match="did you mean nb"):
            sweeper.open_study(wrong)
    with pytest.raises(BadInput, match="settle=True trains the ladders of validate=True"):
        sweeper.transfer("nb", 64, settle=True)
    with raises_config_error("seeds"):
        sweeper.transfer("nb", 64, validate=True, seeds=0)
    with raises_config_error("launcher") as refused:
        sweeper.transfer("nb", 64, validate=True, detach=True)
    assert "detach=True needs" in str(refused.value) and "--" not in str(refused.value)
    with raises_config_error("transfer.width") as caught:
        sweeper.transfer("nb", 64, transfer={"width": [16]})
    assert "transfer.widths" in caught.value.allowed


def test_workers_cannot_have_what_a_cell_defines(
    cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_workplace(tmp_path / "w"))
    with raises_config_error("launcher", "local") as caught:
        sweeper.search(cell["Net"], **SETTINGS, launcher="local")
    assert "%%writefile" in caught.value.allowed
    assert not (tmp_path / "w/runs").exists()


def test_the_code_of_a_cell_is_what_it_does(cell: Any) -> None:
    first = main_code("__main__.Net")
    assert set(first) == {"__main__.Net", "__main__.act"}
    exec(compile("\n# a comment\n\n" + CELL, "<other cell>", "exec"), cell)
    assert main_code("__main__.Net") == first
    exec(compile(CELL.replace("gelu", "relu"), "<cell>", "exec"), cell)
    changed = main_code("__main__.Net")
    assert changed["__main__.Net"] == first["__main__.Net"] and changed != first
    exec(compile(CELL.replace("(width, width)", "(width, width, False)"), "<c>", "exec"), cell)
    assert main_code("__main__.Net")["__main__.Net"] != first["__main__.Net"]
    assert main_code("tests.toy_models.Residual") == {}


def test_an_edited_module_is_refused_until_it_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "nb_edited.py"
    path.write_text("x = 1\n")
    module = importlib.import_module("nb_edited")
    before = user_modules("nb_edited")
    assert edited_modules() == []
    path.write_text("x = 1 + 1\n")
    assert edited_modules() == ["nb_edited"]
    importlib.invalidate_caches()
    importlib.reload(module)
    assert edited_modules() == [] and user_modules("nb_edited") != before
    path.unlink()
    sys.modules.pop("nb_edited")
    assert edited_modules() == []


def test_a_notebook_s_bar_is_one_place_that_is_drawn_over() -> None:
    drawn: list[str] = []

    class Place:
        def update(self, html: str) -> None:
            drawn.append(html)

    class Display:
        HTML = staticmethod(str)

        @staticmethod
        def display(html: str, display_id: bool) -> Place:
            drawn.append(f"first {html}")
            return Place()

    with patch("sweeper.api.bar.import_module", lambda _: Display):
        bar = NotebookBar()
    bar(0.25, "search: <eta>", "1/4 trials")
    Console(file=bar).print("Note: told")  # type: ignore[arg-type]
    bar(1.0, "search: <eta>", "4/4 trials")
    assert [html.startswith("first") for html in drawn] == [True, False, False]
    assert "width:25.0%" in drawn[0] and "&lt;eta&gt;" in drawn[0]
    assert "Note: told" in drawn[2] and "width:100.0%" in drawn[2]
    bar.close()
    assert drawn[3] == ""
    assert Kept.for_call().bar is None  # no notebook here


def test_a_class_of_another_process_is_said_to_be_there() -> None:
    with raises_config_error("_target_", "__main__.Gone") as caught:
        import_target("__main__.Gone")
    assert "notebook" in caught.value.allowed


@pytest.mark.parametrize("rest", [60, 0], ids=["work follows", "nothing follows"])
def test_an_import_comes_to_its_end_and_no_ctrl_c_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: int
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    raised = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / "nb_half.py").write_text(f"{raised}whole = True\n")
    importlib.invalidate_caches()
    before, began = signal.getsignal(signal.SIGINT), time.monotonic()

    def work() -> None:
        with whole_imports():
            importlib.import_module("nb_half")
            if rest:
                time.sleep(rest)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert sys.modules.pop("nb_half").whole and time.monotonic() - began < 30
    assert signal.getsignal(signal.SIGINT) is before
