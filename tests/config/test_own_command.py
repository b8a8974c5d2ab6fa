import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from sweeper.config.command_line import (
    literal_metric,
    quoted,
    split_user_command,
    with_user_command,
)
from sweeper.config.compose import compose_tree, override_value, parse_overrides, to_yaml

BASE = ["runner=command", "parameterization=own", "model=own", "data=own", "model.width=8"]
TEXTS = st.text(st.sampled_from("ab ${}\\'\"[],:=\n?"), max_size=12).filter(lambda t: t != "???")


def test_words_behind_two_dashes_become_settings() -> None:
    words = with_user_command(
        ["search", "study=a", "--dry-run", "--", "python", "train.py", "--lr={eta}"]
    )
    assert words[:3] == ["search", "study=a", "--dry-run"]
    assert "runner=command" in words and "parameterization=own" in words
    assert "runner.command=['python','train.py','--lr={eta}']" in words
    command = ["python", "train.py", "--lr={eta}"]
    arguments = ["search", "study=a", "--dry-run"]
    assert split_user_command(words, {"command": command}) == (arguments, command)
    elsewhere = with_user_command([*arguments, "runner.cwd=/elsewhere", "--", *command])
    kept = [*arguments, "runner.cwd=/elsewhere"]
    assert split_user_command(elsewhere, {"command": command}) == (kept, command)


def test_what_the_user_chose_stays() -> None:
    words = with_user_command(["search", "runner=nanogpt", "parameterization=mup", "--", "x"])
    assert "runner=command" not in words and "parameterization=own" not in words


@pytest.mark.parametrize("words", [["search", "a=b"], ["status", "--", "x"], ["--", "search"]])
def test_other_lines_are_left_alone(words: list[str]) -> None:
    assert with_user_command(words) == words and split_user_command(words, {}) == (words, [])


@given(TEXTS)
def test_any_text_reaches_the_command_and_comes_back_from_the_file(text: str) -> None:
    (override,) = parse_overrides([f"runner.command=[{quoted(text)}]"])
    assert override_value("command", override.value()) == [text]
    again = OmegaConf.to_container(OmegaConf.create(to_yaml({"command": [text]})), resolve=True)
    assert again["command"] == [text]  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (r"metric=loss (?P<loss>\S+)", r"loss (?P<loss>\S+)"),
        ("metric=null", None),
        ("runner.metric='quoted: x'", "quoted: x"),
    ],
)
def test_a_metric_is_taken_literally(word: str, value: str | None) -> None:
    assert compose_tree([*BASE, literal_metric(word)])["runner"]["metric"] == value


@pytest.mark.parametrize(
    ("prefix", "text"), [("", "{width//16}"), ("+", "{dir}/x"), ("++", "--{eta}")]
)
def test_an_argument_with_placeholders_is_taken_literally(prefix: str, text: str) -> None:
    tree = compose_tree([*BASE, f"{prefix}runner.arguments.n={text}"])
    assert tree["runner"]["arguments"] == {"n": text}
