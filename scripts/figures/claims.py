"""Write docs/claims.md from the records that the figures left in docs/figures/.

python scripts/figures/claims.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
# In the order of the sources: the u-muP paper's figures first.
ORDER = (
    "lr_transfer",
    "hp_search",
    "rms",
    "fp8",
    "coupling",
    "exponents",
    "effective_theory",
    "spectral",
    "depth",
)


def main() -> None:
    """All claims in one table, and a section with its picture for each figure."""
    records = [json.loads((DOCS / "figures" / f"{name}.json").read_text()) for name in ORDER]
    template = (DOCS / "figures" / "claims.md.in").read_text()
    count = sum(len(record["claims"]) for record in records)
    text = template.replace("{tally}", tally(records)).replace("{count}", str(count))
    text = text.replace("{figures}", "\n".join(section(record) for record in records))
    (DOCS / "claims.md").write_text(text)


def tally(records: list[Mapping[str, Any]]) -> str:
    """How many claims of each figure were borne out, were not, and were left open."""
    rows = ["| figure | borne out | not borne out | cannot say |", "|---|---|---|---|"]
    for record in records:
        answers = [claim["answer"] for claim in record["claims"]]
        cells = [answers.count(key) for key in ("borne out", "not borne out", "cannot say")]
        name = record["figure"]
        rows.append(f"| [`{name}`](#{name}) | {' | '.join(str(cell or '') for cell in cells)} |")
    return "\n".join(rows)


def section(record: Mapping[str, Any]) -> str:
    """A figure: what it trained, the table of its claims, the picture."""
    name = record["figure"]
    lines = [f"## {name}", "", f"`{record['command']}`; {record['size']}.", ""]
    lines += ["| claim | source | measured | at this size |", "|---|---|---|---|"]
    for claim in record["claims"]:
        cells = (claim[key].replace("|", "\\|") for key in ("claim", "source", "measured"))
        lines.append(f"| {' | '.join(cells)} | **{claim['answer']}** |")
    return "\n".join([*lines, "", f"![{name}](figures/{name}.png)", ""])


if __name__ == "__main__":
    main()
