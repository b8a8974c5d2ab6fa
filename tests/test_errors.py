"""Messages whose keywords and calls each mouth spells in its own way."""

from __future__ import annotations

import pickle

from sweeper.errors import (
    PYTHON,
    SHELL,
    BadInput,
    Call,
    ConfigError,
    Keyword,
    MissingValue,
    SweeperError,
    near_misses,
    spelled,
    suggest,
)


def test_a_keyword_is_a_flag_on_a_command_line_and_an_argument_in_python() -> None:
    text = ("give ", Keyword("to_width", 64), " and ", Keyword("validate"), ", or no ")
    text = (*text, Keyword("where", ...))
    assert spelled(text, SHELL) == "give --to-width 64 and --validate, or no --where"
    assert spelled(text, PYTHON) == "give to_width=64 and validate=True, or no where"


def test_a_call_is_quoted_for_a_shell() -> None:
    call = Call("search", Keyword("study", "a b"), "train.steps=3", command=["python", "t.py"])
    assert SHELL.call(call) == "sweeper search --study 'a b' train.steps=3 -- python t.py"


def test_errors_are_spelt_by_who_shows_them_and_survive_a_pickle() -> None:
    error = ConfigError(Keyword("to_width"), 3, ("at least 4, or ", Keyword("out", "x")))
    assert error.spelled(SHELL) == "--to-width=3 is refused: at least 4, or --out x"
    assert str(error) == "to_width=3 is refused: at least 4, or out='x'"
    assert (error.key, error.value, error.allowed) == ("to_width", 3, "at least 4, or out='x'")
    for each in (error, MissingValue("model.width", ": name one"), BadInput("a ", Keyword("b"))):
        copy = pickle.loads(pickle.dumps(each))
        assert type(copy) is type(each) and str(copy) == str(each)
        assert copy.spelled(SHELL) == each.spelled(SHELL)
    missing = MissingValue("model.width", ": name one")
    assert str(missing) == "model.width: it needs a value: name one"
    assert str(ConfigError("a", 1, "2").below("train")) == "train.a=1 is refused: 2"
    assert str(SweeperError("plain")) == "plain"


class Shown:
    def __repr__(self) -> str:
        return "Net(\n  (0): Linear(in_features=4)\n)"


def test_of_a_value_that_takes_lines_the_kind_is_told_alone() -> None:
    error = ConfigError("model", Shown(), "a class or a function")
    assert str(error) == "model=Shown(...) is refused: a class or a function"
    assert error.spelled(SHELL) == str(error)
    assert str(ConfigError("a", "two\nlines", "b")) == "a='two\\nlines' is refused: b"


def test_near_misses_are_named_and_choices_once() -> None:
    assert near_misses("widht", ["width", "lr"]) == "; did you mean width?"
    assert near_misses("foo", ["width", "lr"]) == ""
    assert suggest("foo", ["width", "lr"]) == "known: lr, width"
