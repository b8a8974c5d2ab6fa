"""Put the site's pages together, for the generator that mkdocs.yml configures.

    python scripts/docs/build.py build/docs && zensical build --strict

The pages are those of docs/, with generated text where one holds `<!-- generated: NAME -->`, and
CONTRIBUTING.md and CHANGELOG.md. Links work in the repository; here they are led
to where the site has their targets.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import reference

ROOT = Path(__file__).parents[2]
GENERATED: dict[str, Callable[[], str]] = {
    "commands": reference.commands,
    "groups": reference.groups,
    "sections": reference.sections,
}
"""What a page's mark stands for."""
_MARK = re.compile(r"<!-- generated: (\w+) -->")
_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_RULE, _WIDE = "───", "``` { .text .wide }"
"""What a printed table has below its heading, and the fence around one: its rows do not wrap."""
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)")


def pages() -> dict[str, str]:
    """The site's pages, by their place in the repository: theirs on the site."""
    return {
        **{f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))},
        "CONTRIBUTING.md": "contributing.md",
        "CHANGELOG.md": "changelog.md",
    }


def site_link(source: str, link: str, places: Mapping[str, str]) -> str:
    """A link of the page at `source` in the repository, as the site has it."""
    target = os.path.normpath(Path(source).parent / link)
    return os.path.relpath(site_place(target, places), Path(places[source]).parent)


def site_place(target: str, places: Mapping[str, str]) -> str:
    """Where the site has a file of the repository: what is no page and not in docs/, in source/."""
    if target in places:
        return places[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"source/{target}"


def page_text(source: str, places: Mapping[str, str]) -> str:
    """The page at `source` as the site has it."""
    text = (ROOT / source).read_text(encoding="utf-8")
    text = _MARK.sub(lambda mark: GENERATED[mark[1]](), text)
    text = _FENCE.sub(_wide, text)
    return _LINK.sub(lambda link: link[1] + site_link(source, link[2], places), text)


def _wide(fence: re.Match[str]) -> str:
    """A fenced block as it is, or marked where it has a printed table."""
    is_table = not fence[2] and _RULE in fence[3]
    return fence[0].replace("```", _WIDE, 1) if is_table else fence[0]


def linked_files(source: str, places: Mapping[str, str]) -> set[str]:
    """Files outside of docs/ that the page at `source` links to and that are no pages."""
    text = (ROOT / source).read_text(encoding="utf-8")
    links = {os.path.normpath(Path(source).parent / link) for _, link in _LINK.findall(text)}
    files = {link for link in links - places.keys() if not link.startswith("docs/")}
    return {link for link in files if (ROOT / link).is_file()}


def assemble(out: Path) -> None:
    """Write all pages, and what they show or link to, into the folder `out`."""
    places = pages()
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out, ignore=shutil.ignore_patterns("*.md", "*.in"))
    for source, place in places.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_text(page_text(source, places), encoding="utf-8")
        for file in linked_files(source, places):
            copy = out / site_place(file, places)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, copy)


def unreachable(places: Mapping[str, str]) -> set[str]:
    """Pages that the navigation of mkdocs.yml does not name, and names that are no pages."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    return set(re.findall(r"[\w/-]+\.md$", navigation, re.MULTILINE)) ^ set(places.values())


if __name__ == "__main__":
    if missing := unreachable(pages()):
        sys.exit(f"mkdocs.yml: the navigation and the pages differ in {', '.join(sorted(missing))}")
    assemble(Path(sys.argv[1]))
