import pytest

from sweeper.scaling.spec import layer_of, with_layer


@pytest.mark.parametrize(
    ("name", "layer", "starred"),
    [
        ("blocks.3.ffn.up", "3", "blocks.*.ffn.up"),
        ("encoder.layer.12.attention.0", "12", "encoder.layer.*.attention.0"),
        ("0.weight", "0", "*.weight"),
        ("head", None, "head"),
        ("conv1.weight2", None, "conv1.weight2"),
    ],
)
def test_the_first_part_that_is_a_number_is_the_layer(
    name: str, layer: str | None, starred: str
) -> None:
    assert layer_of(name) == layer
    assert with_layer(name, "*") == starred
