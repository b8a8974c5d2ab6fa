"""Placeholders: what they come to, and what is refused."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.command.template import Template
from sweeper.errors import ConfigError
from tests.refusals import raises_config_error

VALUES = {"eta": 0.5, "one": 1.0, "width": 256, "name": "adam", "base": {"width": 64, "depth": 2}}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--lr={eta}", "--lr=0.5"),
        ("--lr={one}", "--lr=1.0"),  # nanoGPT's configurator dies of --learning_rate=1
        ("{width//64}", "4"),
        ("{width/base.width}", "4.0"),
        ("{int(width/base.width)}", "4"),
        ("{-width + 2*3 ** 2 % 5}", "-253"),
        ("{max(width, 512)}x{round(eta)}", "512x0"),
        ("{{literal}} {{{width}}}", "{literal} {256}"),
        ("no braces", "no braces"),
        ("{ name }", "adam"),
    ],
)
def test_what_a_word_comes_to(word: str, expected: str) -> None:
    assert Template.parse(word).text(VALUES) == expected


def test_a_placeholder_alone_keeps_its_type() -> None:
    assert Template.parse("{width}").value(VALUES) == 256
    assert Template.parse("{width}k").value(VALUES) == "256k"


@pytest.mark.parametrize(
    "word",
    [
        *("{", "}", "{}", "{eta", '{"a": 1}', "{eta.real}", "{__import__('os')}", "{eta!r}"),
        *("{(lambda: 1)()}", "{eta if eta else 1}", "{[1, 2]}", "{open('x')}", "{True}"),
        *("{base.width.real}", "{'text'}", "{max(*width)}", "{a" + "-" * 20_000 + "1}"),
    ],
)
def test_what_is_no_arithmetic_is_refused_as_it_is_read(word: str) -> None:
    with raises_config_error("command", word):
        Template.parse(word)


WITHOUT_VALUE = ["{width/0}", "{2**100}", "{name*3}", "{int(name)}", "{1e999}"]
WITHOUT_VALUE += ["{(0-1)**0.5}", "{(width**64)**64}"]
WITHOUT_VALUE += ["{((width**64)**64)**64}", "{round(5, -999999)}"]


@pytest.mark.parametrize("word", WITHOUT_VALUE)
def test_an_expression_without_a_value_is_refused(word: str) -> None:
    with raises_config_error("command", word):
        Template.parse(word).text(VALUES)


@pytest.mark.parametrize(
    ("word", "refused"),
    [
        ("{width//512}", True),
        ("{2*(width//512)}", True),
        ("{max(1, width//512)}", False),
        ("{int(width/512)}", False),
        ("{steps//10}", False),  # no warm-up is one
    ],
)
def test_a_width_too_small_for_one_part_is_refused(word: str, refused: bool) -> None:
    with raises_config_error("command", word) if refused else nullcontext():
        Template.parse(word).text({**VALUES, "steps": 3})


def test_names_are_told_and_unknown_ones_refused() -> None:
    template = Template.parse("{width/base.width} {min(eta, 1)}")
    assert template.names == {"width", "base.width", "eta"}
    with raises_config_error("command", "{eta}"):
        template.check({"width", "base.width", "eta_1"})


@given(st.text(max_size=20))
def test_any_word_is_read_or_refused(word: str) -> None:
    try:
        template = Template.parse(word)
    except ConfigError:
        return
    if "{" not in word:
        assert template.text(VALUES) == word.replace("}}", "}")
