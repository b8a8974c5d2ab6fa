import pytest

import sweeper.cli.app  # noqa: F401  (it declares the verbs)
from sweeper.cli.commands import VERBS, page

PANELS = {
    "Options": [("--eta <float>", "The rate; --help says more.  [required]"), ("-h", "Help.")]
}


@pytest.fixture(autouse=True)
def _screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "48")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_page_is_as_wide_as_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert page(
        "Usage: x",
        "What it\nis.\n\nMore of\nit, such as:\nsweeper x\nsweeper -h",
        PANELS,
        "The end.",
    ) == (
        " Usage: x\n"
        "\n"
        " What it is.\n"
        "\n"
        " More of it, such as:\n"
        " sweeper x\n"
        " sweeper -h\n"
        "\n"
        "╭─ Options ────────────────────────────────────╮\n"
        "│ --eta <float>  The rate; --help says more.   │\n"
        "│                [required]                    │\n"
        "│ -h             Help.                         │\n"
        "╰──────────────────────────────────────────────╯\n"
        "\n"
        " The end."
    )
    monkeypatch.setenv("COLUMNS", "36")
    assert "│ --eta <float>                    │\n│   The rate; --help says more.    │" in page(
        "Usage: x", "", PANELS, ""
    )


def test_names_and_types_are_coloured_where_colours_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    text = page("Usage: x", "", PANELS | {"Verbs": [("run", "Runs.")]}, "")
    assert "\033[1;36m--eta\033[0m \033[33m<float>\033[0m  The rate; \033[1;36m--help" in text
    assert "│ \033[1;36mrun\033[0m  Runs." in text
    monkeypatch.setenv("TERM", "dumb")
    assert "\033" not in page("Usage: x", "", PANELS, "")


def test_a_stream_that_knows_ascii_alone_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr("sys.stdout", Ascii())
    assert page("Usage: x", "", PANELS, "").isascii()


def test_a_verb_s_first_context_may_be_without_a_parent() -> None:
    """As where a documentation's command is only parsed: it decides the words that ask for help."""
    command = VERBS.declared["status"].command()
    command.make_context("status", [])
    assert "-h, --help" in command.get_help(command.make_context("status", []))
