"""The sentences of the command line, as kept texts: help, bad input, how every verb ends."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.driver import TINY, Run, measured
from tests.command_lines import VERBS
from tests.golden import FOLDER, Golden

SMALL = " ".join(shlex.quote(word) for word in TINY)

BAD_INPUT = """
nope
--bogus status
--root
--json
--trust status a
--root empty status --root b
search --nope
search model.wdth=32
search model.head_size=3
search search.seeds=0
search data=text data.path=absent.txt
search launcher=local launcher.workers=0
search law=jont
search transfer.step=0
search transfer.widths=[a]
search check.share=2
search parameterization.space.eta.low=9
search parameterization.space.etta=1
search study=a --study b
search --root a root=b
search 'model.width=[32'
search width 32
search python train.py --lr={eta}
search -- python train.py
search --detach data=text data.path=text.txt
search root=/proc/nope TINY
search TINY train.seq_len=4000
search data=text data.path=text.txt search=pairs search.pairs=some
search data=text data.path=text.txt search=pairs search.pairs=[[eta,alpha_atn]]
search --dry-run TINY transfer=null
search --json TINY optimizer.eps=-1
search --dry-run TINY train.batch_size=-1
search --json TINY +model.foo=1
search --json --dry-run TINY '~model._target_'
search --dry-run TINY model._target_=os.path.join
search --json --dry-run TINY root=text.txt/runs
search --json TINY "data.path='nope/*.txt'"
search --dry-run TINY data.path=/tmp
search TINY --config-dir text.txt
transfer
transfer --to-width 0
transfer --to-width x
transfer --to-width 64 --strict
transfer --to-width 64 --dry-run
transfer --to-width 64 --root empty
transfer --to-width 64 --root text.txt
transfer --to-width 64 --root '~no-such-user'
transfer --to-width 64 root=null
transfer --to-width 64 --study nope
transfer --to-width 64 study=b
transfer --to-width 8 --study a
transfer --to-width 44 --study a
transfer --to-width 8000000000000000000 --study a
transfer --to-width 64 transfer.hyperparameter=alpha
transfer --to-width 64 transfer.hyperparameter=alpha_attn transfer.correct=true
transfer --to-width 64 --study a parameterization=mup
transfer --to-width 64 --study a study.name=b
transfer --to-width 64 --study a model=llama experiment=demo
transfer --to-width 64 train.steps=5
transfer --to-width 64 --study a --to-tokens 100
transfer --to-width 64 --study a --to-tokens 1.5
transfer --to-width 64 --to-tokens 1e30 law=joint
transfer --to-width 64 --to-tokens 31 law=joint
transfer --to-width 64 --to-batch 9 law=joint
transfer --to-width 64 --to-batch 4 law=horizon
transfer --to-width 64 --to-tokens 256 law=batch
transfer --to-width 64 --to-tokens 256 law=decay
transfer --to-width 64 --to-tokens 256 law=fit
transfer --to-width 64 --validate law=fit
transfer --to-width 64 law=fit transfer.hyperparameter=alpha_attn
transfer --to-width 64 law=nope
transfer --to-width 64 law=joint law.tokens=9
transfer --to-width 64 law._target_=math.sqrt
transfer --to-width 64 law._target_=collections.Counter
transfer --to-width 64 --study a --to-batch 0
transfer --to-width 64 --study a transfer.correct=true
transfer --to-width 64 --study a --validate transfer.widths=[]
transfer --to-width 32 --study a --validate transfer.widths=[16]
transfer --to-width 32 --study a --validate transfer.batches=[100000000]
transfer --to-width 32 --study a --validate 'transfer.sizes=[{batch_size: 100000000}]'
transfer --to-width 32 --study a --validate 'transfer.sizes=[{width: 33}]'
transfer --to-width 32 --study a --settle
transfer --to-width 32 --study a --validate --budget 20
transfer --to-width 32 --study a --validate --settle --budget nanh
transfer --to-width 32 --study a --validate --settle --budget 9999999999
transfer --to-width 32 --study a --validate --settle --budget 3
transfer --to-width 32 --study a --validate --detach
transfer --to-width 64 --study a law=fit
explain
explain --to-width 100 --study a
explain --to-width 64 '~model'
explain --to-width 64 model._target_=builtins.dict
explain --to-width 64 --config-dir nope
explain --to-width 64 --root empty --study a
explain --to-width 64 parameterization=own
check --strict --scales
check transfer.widths=[] transfer.depths=[]
check check.device=moon
check --study a transfer.widths=[20]
check --study a check.batch=99999999
check --root /dev/null/there TINY
check --study nope
check --study a --root empty
export --study a
export --to nope --study a
export --to pytorch --study a
export --to pytorch --plan absent.json
export --to pytorch --study a --accept nope
export --to hf --study a family=nope
export --to pytorch x=1
export --to hf
export --to pytorch --study nope
export --to pytorch --plan x --study a
export --to sweeper.export.exporter.Exporter
export --to pytorch root=empty
compare a
compare a --baseline b --baseline c
compare a a
compare a nope
report a nope
report a --study b
report --watch
report --json --root empty
status nope
status --watch --root empty
status --root text.txt
status --root ''
status root=empty
judge ''
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
    lines = sweeper(*verb.split(), "--help").out.splitlines()
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    golden.check(f"cli/help{'-' * bool(verb)}{verb}", text)


def test_bad_input(sweeper: Run, study: Path, golden: Golden) -> None:
    """Each is one message and exit code 2, and nothing is written."""
    before = {path: path.stat().st_mtime_ns for path in study.rglob("*")}
    answers = {line: sweeper(*shlex.split(line.replace("TINY", SMALL))) for line in BAD_INPUT}
    for line, answer in answers.items():
        assert answer.code == 2 and not answer.out, line
        assert answer.err.startswith("Error: ") and answer.err.count("\n") == 1, line
    text = [f"$ sweeper {line}\n{answer.err}" for line, answer in answers.items()]
    assert {path: path.stat().st_mtime_ns for path in study.rglob("*")} == before
    golden.check("cli/bad-input", "\n".join(text))


def test_how_every_verb_ends(sweeper: Run, study: Path, golden: Golden) -> None:
    """The last lines; measured numbers are another machine's, and stand as #."""
    said = []
    for line in ENDS:
        answer = sweeper(*shlex.split(line))
        printed = answer.err if "--json" in line else answer.out or answer.err
        text = "\n".join(printed.splitlines()[-3:])
        said.append(f"$ sweeper {line}\n(exit code {answer.code})\n{measured(text)}\n")
    golden.check("cli/ends", "\n".join(said))


def test_every_next_command_fits_into_a_line() -> None:
    """The study knows the rest; what tries out a model that has no study repeats its settings."""
    lines = [
        line.partition(": ")[2]
        for path in FOLDER.rglob("*.txt")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("Next, ")
    ]
    assert len(lines) > 20
    assert [line for line in lines if len(line) > 100] == []
