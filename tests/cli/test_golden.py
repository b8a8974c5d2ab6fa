"""The sentences of the command line, as kept texts: help, bad input, how every verb ends."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.driver import TINY, Run
from tests.command_lines import VERBS
from tests.golden import Golden

SMALL = " ".join(shlex.quote(word) for word in TINY)

BAD_INPUT = """
nope
search --nope
search parameterization=foo
search parametrization=umup
search modle.width=32
search model.wdth=32
search model.width=null
search model.width=-1
search model.width=1.5
search model.width=9999999
search model=null
search model.head_size=3
search train.stepz=3
search train.steps=0
search train.precision=half
search train.warmup=2
search search.line.stp=1
search search.seeds=0
search search.line.points=0
search optimizer=nope
search optimizer.betas=3
search data=nope
search data=text data.path=absent.txt
search data.heldout=2
search launcher=nope
search launcher=local launcher.workers=0
search logger=nope
search law=jont
search fp8=nope
search transfer.seeds=0
search transfer.step=0
search transfer.widths=[a]
search transfer.max_regret=1
search check.seeds=0
search check.share=2
search parameterization.space.eta.low=9
search parameterization.space.etta=1
search parameterization.space.eta=3
search study=a/b
search study=a --study b
search root=
search study.storage=nope
search hydra.run.dir=x
search +model=llama
search ~model.width
search model.width=32,64
search 'model.width=[32'
search model.width
search width 32
search python train.py --lr={eta}
search -- python train.py
search experiment=nope
search --detach data=text data.path=text.txt
transfer
transfer --to-width 0
transfer --to-width x
transfer --to-width 64 --strict
transfer --to-width 64 --dry-run
transfer --to-width 64 --root empty
transfer --to-width 64 --study nope
transfer --to-width 8 --study a
transfer --to-width 64 --to-depth 0 --study a
transfer --to-width 44 --study a
transfer --to-width 64 --study a parameterization=mup
transfer --to-width 64 --study a study.name=b
transfer --to-width 64 --study a model=llama experiment=demo
transfer --to-width 64 --study a transfer.seedz=1
transfer --to-width 64 --study a --to-tokens 100
transfer --to-width 64 --study a --to-tokens 1.5
transfer --to-width 64 --study a --to-batch 0
transfer --to-width 64 --study a transfer.correct=true
transfer --to-width 64 --study a --validate transfer.widths=[]
transfer --to-width 64 --study a law=fit
diagnose --study a --over nope
diagnose --study a --only nope
diagnose --study a transfer.widths=[16]
explain
explain --to-width 64 --from x
explain --from absent.json
explain --from text.txt
explain --to-width 64 parameterization=own
check --strict --scales
check transfer.widths=[] transfer.depths=[]
check check.steps=0
export --to nope --study a
export --to pytorch --study a
export --to pytorch --study a --plan x
export --to pytorch --plan absent.json
export --to pytorch --study a --accept nope
export --to hf --study a family=nope
compare a
compare a a
compare a nope
report a nope
report a --picture x.svg
report a a --picture x.png
status nope
status a b
cancel nope
doctor --root ''
""".strip().splitlines()

ENDS = [
    f"search {SMALL} study=a",
    f"search {SMALL} study=a --dry-run",
    f"search {SMALL} study=a --json",
    "status a",
    "report a",
    "transfer --to-width 64 --study a",
    "status a",
    "transfer --to-width 32 --study a --validate --dry-run transfer.seeds=2",
    "export --study a --to pytorch",
    "export --study a --to hf",
    "explain --study a --to-width 64",
    "explain --to-width 64 parameterization=mup model.depth=1",
    "check --study a --scales check.scale_steps=1",
    "cancel a",
]


@pytest.mark.parametrize("verb", ["", *VERBS.commands])
def test_help(sweeper: Run, golden: Golden, verb: str) -> None:
    golden.check(f"cli/help{'-' * bool(verb)}{verb}", sweeper(*verb.split(), "--help").out)


def test_bad_input(sweeper: Run, study: Path, golden: Golden) -> None:
    """Each is one message and exit code 2, and nothing is written."""
    before = {path: path.stat().st_mtime_ns for path in study.rglob("*")}
    answers = {line: sweeper(*shlex.split(line)) for line in BAD_INPUT}
    assert not [line for line, answer in answers.items() if answer.code != 2 or answer.out]
    said = [f"$ sweeper {line}\n{answer.err}" for line, answer in answers.items()]
    assert {path: path.stat().st_mtime_ns for path in study.rglob("*")} == before
    golden.check("cli/bad-input", "\n".join(said))


def test_how_every_verb_ends(sweeper: Run, study: Path, golden: Golden) -> None:
    """The last lines; measured numbers are another machine's, and stand as #."""
    said = []
    for line in ENDS:
        answer = sweeper(*shlex.split(line))
        printed = answer.err if "--json" in line else answer.out or answer.err
        text = "\n".join(printed.splitlines()[-3:])
        said.append(f"$ sweeper {line}\n(exit code {answer.code})\n{measured(text)}\n")
    golden.check("cli/ends", "\n".join(said))


def measured(text: str) -> str:
    """The text with # for every number with a point, and for times."""
    text = re.sub(r"-?\d+\.\d+(e[+-]?\d+)?", "#", text)
    return re.sub(r"\b\d+(\.\d+)? (s|ms|min|h)\b", "# s", text)
