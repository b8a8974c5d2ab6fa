import math

import pandas  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import BadInput
from sweeper.evidence.runs.numbers import number_of
from sweeper.evidence.runs.read import read

NUMBERS = {
    "1,024": 1024,
    "50,000,000": 5e7,
    "-1,024.5": -1024.5,
    "2^-8": 2.0**-8,
    "2**3.5": 2**3.5,
    "0.20M": 2e5,
    "128k": 128e3,
    "1.3 B": 1.3e9,
    "3.0e-04": 3e-4,
    " 7 ": 7,
    "inf": math.inf,
    "2^99999": math.inf,
    "0.2517B": 251_700_000,
    "1e-3M": 1000,
    "1e999999k": math.inf,
    "1e-999999999k": 0,
    3: 3,
}
NONE = (
    *("1,02", "a1b", "lion", "1_000", "2^", "M", "run-a", "d512", "12,34", "1 024", "3 %"),
    *("7 nats", "1e9999999999k", [1], True, "6x10^-4", "3.1 \u00b1 0.01"),
)


@pytest.mark.parametrize("cell", NUMBERS)
def test_a_number_is_read_as_it_is_meant(cell: object) -> None:
    assert number_of(cell) == NUMBERS[cell]


@pytest.mark.parametrize("cell", NONE)
def test_what_is_no_number_is_none(cell: object) -> None:
    assert number_of(cell) is None


@pytest.mark.parametrize("cell", [None, math.nan, pandas.NA, "", " ", "-", "n/a"])
def test_an_empty_cell_is_nan(cell: object) -> None:
    number = number_of(cell)
    assert number is not None and math.isnan(number)


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_none(text: str) -> None:
    number = number_of(text)
    assert number is None or isinstance(number, float)


def test_all_faults_are_named_at_once_with_what_leaves_them_out() -> None:
    table = read({"n_embd": [1, "wide", 3, 4], "lr": [0.1, 0.2, "?", "??"]})
    with pytest.raises(BadInput) as caught:
        table.check_numbers(["n_embd", "lr"])
    message = str(caught.value)
    assert "'n_embd', row 2: 'wide'; " in message and "'lr', row 3: '?', row 4: '??', " in message
    condition = message[message.index("where='") + 7 : message.index("' leaves")]
    assert len(table.only(condition)) == 1
