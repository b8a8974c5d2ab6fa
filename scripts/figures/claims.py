"""Write docs/papers.md from the records that the figures left in docs/figures/.

python scripts/figures/claims.py [FOLDER]

With a FOLDER, such as runs/figures, the record and the picture of every figure that is there are
copied to docs/figures/ first. The page's words are in docs/figures/papers.md.in.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import arguments

DOCS = Path(__file__).parents[2] / "docs"
# In the order of the sources: the u-muP paper's figures first.
ORDER = (
    "lr_transfer",
    "hp_search",
    "embedding",
    "residual",
    "rms",
    "fp8",
    "coupling",
    "exponents",
    "gammas",
    "effective_theory",
    "encoder_decoder",
    "spectral",
    "muon",
    "hyperball",
    "depth",
    "schedules",
)
TRAINING = "Below: the largest width in training, a line a seed, smoothed, at the η transferred."
CAPTIONS = {
    "lr_transfer": "Panels of a row have one axis of losses; a title has the verdict.",
    "hp_search": "Below: the least loss after so many runs (of the random search expected over "
    "their order; dotted: the independent search's phases end), and fresh seeds.",
    "embedding": "Right: the optimum's shift; without the rule half a unit less per doubling.",
    "residual": "Left: the loss, each at its best η, less muP's. "
    "Right: the best η's shift since the fewest steps.",
    "rms": "Above: the RMS at initialization (hollow) and at the end; the band is E4M3's normal "
    "range. Below: one thing is made larger.",
    "fp8": "Points that diverged are left out. Below: in training, each cast at its best η. "
    "Grey: no cast; red: as printed; blue, dashed: later version.",
    "coupling": "Left: the transfer errors and their mean. Maps: the loss above the pair's least "
    "(darkest: 0.3 nats or more; grey diverged), each row's best a circle, each column's a cross: "
    "without coupling circles stand in a column, crosses in a row.",
    "exponents": "Rings: the parameterization that should train alike. Right: the difference; "
    "grey line: none.",
    "gammas": "Below, right: the optimum's shift.",
    "effective_theory": TRAINING,
    "encoder_decoder": TRAINING,
    "spectral": "A title has Muon's rule and the verdict over width.",
    "muon": "Last: by how much the best rate moves per doubling of the width, in log2.",
    "hyperball": "Fourth row: one rate over width, the others held. Below: the optimum's shift; "
    "over steps it is what the law leaves.",
    "depth": "Below, right: the optimum's shift.",
    "schedules": "A title has the schedule and the verdict over width.",
}
"""What a picture's marks are that the page does not explain for all of them."""
SHORTER = (
    (r", at most \S+ on the ladder|(?<=nats) here", ""),
    (
        r"; [a-z ]+ (\d+): (?:the base's optimum|training at the base's optimum)"
        r" (?:(?:costs|loses) (at least)|may (?:cost (up to)|lose)) ([\d.]+) nats",
        lambda match: f"; at {match[1]} {match[2] or 'up to'} {match[4]} nats",
    ),
    (r"(; keeping η costs \S+ \[(\S+), (\S+)\][^;]+); at \d+ (at least \2|up to \3) nats", r"\1"),
    (r"; width (\d+): the shift may be (\S+) to (\S+) in log2", r"; at \1 maybe \2 to \3"),
    (r"; width (\d+): the optimum shifts by at least (\S+) in log2", r"; at \1 at least \2"),
    (r"widths (\d+), [\d, ]+, (\d+)", r"widths \1 to \2"),
)
"""In a record's words: what the page says once for all rows."""
OWN = ("own question", "own candidate")
"""Sources that are no paper's: what was asked here."""
ALIKE = 3
"""So many words that a claim shares with the one above it are not repeated."""
OF_A_KIND = 0.75
"""A claim that is told in less than this part of its words shares the row of the one above."""
LONGEST = 355
"""Characters that a row may have: about those of the longest single claim."""
AXIS = re.compile(r" η (?:stays over|moves with|falls with) (width|depth|batch size|steps)")
"""The ladder of a claim on the best η, whose sizes are told without its name."""
PLACE = re.compile(r" at (?:width |depth )?\d+(?:, paired by seed|, seed by seed)?$|, widths .*$")
"""Where something was measured: not repeated where it is that of the claim above."""
QUOTED = re.compile(r"\{(\w+): (reproduced|not reproduced|cannot say): ([^}]+)\}")
"""In the page's words: a claim, by how it begins, with the answer that the words rest on."""


def main() -> None:
    """All claims in one table, and a section with its picture for each figure."""
    words = arguments(sys.argv[1:], str(__doc__))
    if len(words) > 1:
        sys.exit("Error: one folder at most; --help says what is taken")
    for folder in words:
        collect(Path(folder))
    (DOCS / "papers.md").write_text(page())


def page() -> str:
    """The page of the records that are there."""
    records = [json.loads((DOCS / "figures" / f"{name}.json").read_text()) for name in ORDER]
    template = (DOCS / "figures" / "papers.md.in").read_text()
    text = quote(template, records).replace("{tally}", tally(records))
    return text.replace("{figures}", "\n".join(section(record) for record in records))


def collect(folder: Path, into: Path = DOCS / "figures") -> None:
    """Copy the record and the picture of every finished figure of `folder`."""
    finished = [name for name in ORDER if (folder / name / "claims.json").exists()]
    if not finished:
        sys.exit(f"Error: no figure's claims.json in {folder}; run one of scripts/figures/ first")
    for name in finished:
        shutil.copyfile(folder / name / "claims.json", into / f"{name}.json")
        shutil.copyfile(folder / name / f"{name}.png", into / f"{name}.png")
    print(f"Copied: {', '.join(finished)}")


def quote(template: str, records: Sequence[Mapping[str, Any]]) -> str:
    """What was measured in place of every claim that is named, if its answer is still the same."""
    own = {record["figure"]: record["claims"] for record in records}

    def measured(match: re.Match[str]) -> str:
        figure, answer, words = match[1], match[2], " ".join(match[3].split())
        claims = [claim for claim in own[figure] if claim["claim"].startswith(words)]
        if [claim["answer"] for claim in claims] != [answer]:
            now = [f"{claim['claim']}: {claim['answer']}" for claim in claims]
            sys.exit(f"Error: papers.md.in takes {figure}: {words}: for {answer}; it is now {now}")
        parts = brief(claims[0]).split(";")
        through = next((i for i, part in enumerate(parts) if "[" in part), len(parts))
        return ";".join(parts[: through + 1])

    return QUOTED.sub(measured, template)


def tally(records: Sequence[Mapping[str, Any]]) -> str:
    """How many claims of the papers were reproduced, not, or left open; our own apart."""
    keys = ("reproduced", "not reproduced", "cannot say")
    parts = []
    for own, what in ((False, "claims"), (True, "questions of our own beside them")):
        rows = [claim for record in records for claim in record["claims"]]
        answers = [row["answer"] for row in rows if (row["source"] in OWN) is own]
        counts = ", ".join(f"{answers.count(key)} {key}" for key in keys)
        parts += [f"{len(answers)} {what}: {counts}"] * bool(answers or not own)
    return ". ".join(parts)


def brief(claim: Mapping[str, Any]) -> str:
    """What was measured, without what the page says once."""
    text = str(claim["measured"])
    for pattern, shorter in SHORTER:
        text = re.sub(pattern, shorter, text)
    return text


def unlike(above: str, text: str) -> str:
    """`text` without the words at its ends that the claim above has too: "…" in their place.

    A common end begins after a colon where it has one, so that it is a part of the sentence.
    """
    old, new = above.split(), text.split()
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    if first == len(old) == len(new):
        return "…"
    first = first if first >= ALIKE else 0
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    end = new[len(new) - last :]
    last -= max((i + 1 for i, word in enumerate(end) if word.endswith(":")), default=0)
    last = last if last >= ALIKE else 0
    kept = new[first : len(new) - last]
    return " ".join(["…"] * bool(first) + kept + ["…"] * bool(last))


def section(record: Mapping[str, Any]) -> str:
    """A figure: the table of its claims under what it trained, the picture and what is in it."""
    name = record["figure"]
    lines = [f"### {name}", f"| `{record['command']}` | {record['size']} |", "|---|---|"]
    lines += rows(record["claims"])
    picture = f"figures/{name}.png"
    link = f"[![{name}]({picture})]({picture})"  # too small to read on a narrow screen
    words = [CAPTIONS.get(name, ""), record.get("about", "")]
    return "\n".join([*lines, "", f"{link}<br>{' '.join(words).strip()}", ""])


def rows(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row a kind of claims, which differ in some words, while the row is not too long."""
    kinds: list[list[Mapping[str, Any]]] = []
    for claim in claims:
        text = claim["claim"]
        fits = [kind for kind in kinds if len(_row([*kind, claim], "")) <= LONGEST]
        nearest = min(fits, key=lambda kind: len(unlike(kind[-1]["claim"], text)), default=[])
        if nearest and len(unlike(nearest[-1]["claim"], text)) < OF_A_KIND * len(text):
            nearest.append(claim)
        else:
            kinds.append([claim])
    source = ""
    for kind in kinds:
        yield _row(kind, source)
        source = kind[-1]["source"]


def _row(kind: Sequence[Mapping[str, Any]], source: str) -> str:
    """The first claim in words, its answer, and below it what the others differ in.

    `source` is that of the claim above, which is not told again; nor is where all were measured.
    """
    above, before, place = "", "", ""
    cells = ["", ""]
    for claim in kind:
        subject = unlike(above, claim["claim"]).removesuffix(": …")
        subject += "" if claim["source"] == source else f" ({claim['source']})"
        measured = in_a_row(claim)
        match = PLACE.search(measured)
        here = match[0] if match else ""
        result = measured.removesuffix(here) if here == place else measured
        result = "the same" if measured == before else result
        if above:
            cells[1] += f"<br>{subject}: "
        else:
            cells[0] = subject
        cells[1] += f"**{claim['answer']}**: {result}"
        above, source, before, place = claim["claim"], claim["source"], measured, here
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def in_a_row(claim: Mapping[str, Any]) -> str:
    """What was measured, without what the claim beside it and the page say."""
    text = brief(claim).replace(" nats", "")
    if over := AXIS.search(claim["claim"]):
        text = text.replace(f" at {over[1]} ", " at ").removeprefix("shift ")
    return text


if __name__ == "__main__":
    main()
