import hashlib
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from sweeper.data import text
from sweeper.data.corpus import TokenCorpus
from sweeper.data.text import (
    NotUtf8,
    Stdlib,
    Text,
    decoded_blocks,
    encode_bpe,
    text_chunks,
    train_bpe,
)
from sweeper.errors import BadInput
from tests.data.conftest import Refused

PROSE = "The naïve café — 東京 🚀\r\n\tdef f(x):\n        return x + 1000\n" * 40


def prepare(path: Path, **options: Any) -> TokenCorpus:
    return Text(path=str(path), **options).prepare(path.parent / "cache")


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "prose.txt"
    path.write_bytes(PROSE.encode())
    return path


def test_bytes_are_the_tokens(prose: Path) -> None:
    corpus = prepare(prose)
    assert corpus.classes == 256 and corpus.tokens.dtype == np.uint8
    assert corpus.tokens.tobytes() == PROSE.encode()
    assert corpus.path == prose.parent / "cache" / f"{corpus.digest}.npy"
    assert np.array_equal(np.load(corpus.path), corpus.tokens)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe([PROSE], 400)


@given(st.text(min_size=1, max_size=200))
def test_any_text_survives_a_bpe_trained_on_another(bpe: Tokenizer, prose: str) -> None:
    assert bpe.decode(encode_bpe(bpe, prose).tolist()) == prose


def test_text_without_spaces_is_trained_in_short_words() -> None:
    genome = "".join(np.random.default_rng(0).choice(list("ACGT"), 20_000))
    bpe = train_bpe([genome], 300)
    assert bpe.get_vocab_size() == 300
    pieces = [word for word, _ in bpe.pre_tokenizer.pre_tokenize_str(genome)]
    assert "".join(pieces) == genome and max(map(len, pieces)) == 64


def test_a_bpe_is_trained_on_a_sample_of_long_text(
    prose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(text, "BPE_SAMPLE_BYTES", 1000)
    seen: list[str] = []

    def spy(sample: Any, size: int) -> Tokenizer:
        seen.extend(sample)
        return train_bpe(seen, size)

    monkeypatch.setattr(text, "train_bpe", spy)
    corpus = prepare(prose, tokenizer="bpe", vocab_size=300)
    assert 5 <= len(seen) <= 10 and seen[0] == PROSE[:100]
    assert 256 < corpus.classes <= 300 and corpus.tokens.dtype == np.uint16
    assert len(corpus.tokens) < len(PROSE.encode()) and corpus.tokens.max() < corpus.classes
    bpe = Tokenizer.from_file(str(corpus.path.with_suffix(".tokenizer.json")))
    assert bpe.decode(corpus.tokens.tolist()) == PROSE


@pytest.mark.parametrize("options", [{}, {"tokenizer": "bpe", "vocab_size": 300}])
def test_the_cache_is_used_again(
    prose: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    first = prepare(prose, **options)
    files = sorted(first.path.parent.iterdir())
    before = [file.stat().st_mtime_ns for file in files]
    monkeypatch.setattr(text, "train_bpe", None)
    monkeypatch.setattr(text, "encode_bytes", None)
    renamed = prose.rename(prose.with_name("renamed.txt"))
    assert prepare(renamed, **options, heldout=0.2).identity() == first.identity() | {
        "heldout_fraction": 0.2
    }
    assert sorted(first.path.parent.iterdir()) == files
    assert [file.stat().st_mtime_ns for file in files] == before


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".npy", lambda content: content[:-3]),
        (".json", lambda content: content[:5]),
        (".json", lambda content: content.replace(b"classes", b"clases")),
        (".json", lambda content: content.replace(b"300", b"301")),
        *[(suffix, None) for suffix in (".npy", ".json", ".tokenizer.json")],
    ],
)
def test_a_damaged_cache_is_built_anew(prose: Path, suffix: str, damage: Any) -> None:
    options: dict[str, Any] = {"tokenizer": "bpe", "vocab_size": 300}
    first = prepare(prose, **options)
    whole = {file: file.read_bytes() for file in first.path.parent.iterdir()}
    damaged = first.path.with_suffix(suffix)
    assert len(whole) == 3 and damaged in whole
    if damage:
        damaged.write_bytes(damage(whole[damaged]))
    else:
        damaged.unlink()
    assert prepare(prose, **options) == first
    assert {file: file.read_bytes() for file in first.path.parent.iterdir()} == whole


def test_the_digest_tells_content_and_tokenizers_apart(prose: Path) -> None:
    kinds = ({}, *({"tokenizer": "bpe", "vocab_size": size} for size in (300, 301)))
    digests = {prepare(prose, **options).digest for options in kinds}
    prose.write_text("another text")
    assert len(digests | {prepare(prose).digest}) == 4


def test_a_glob_joins_files_in_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a/c/1.txt", "a/x.md", "0.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = prepare(tmp_path / "**" / "*.txt")
    assert corpus.tokens.tobytes() == b"0.txt\na/c/1.txt\nb/2.txt"


def test_home_and_names_that_look_like_globs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a[1].txt").write_text("hello")
    assert Text(path="~/a[1].txt").prepare(tmp_path / "c").tokens.tobytes() == b"hello"


@given(st.lists(st.text(max_size=30), max_size=4), st.integers(1, 9), st.integers(1, 9))
def test_pieces_depend_on_the_text_alone(
    folder: Path, parts: list[str], block: int, piece: int
) -> None:
    paths = [folder / f"{index}.txt" for index in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part.encode())
    whole = "\n".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", block)
        patch.setattr(text, "CHUNK_CHARACTERS", piece)
        chunks = list(text_chunks(paths))
    assert chunks == [whole[start : start + piece] for start in range(0, len(whole), piece)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


def refusal(path: Path, content: bytes, block: int) -> str:
    """What `decoded_blocks` says of `content`, read in blocks of `block` bytes."""
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", block)
        try:
            assert "".join(decoded_blocks(path)) == content.decode()
        except NotUtf8 as error:
            return str(error)
    return ""


@given(
    st.lists(
        st.one_of(
            st.text(max_size=4).map(str.encode),
            st.sampled_from([b"\xe2\x82", b"\xf0\x9f\x9a", b"\xff", b"\xed\xa0\x80", b"\xc0\x80"]),
        ),
        max_size=6,
    ).map(b"".join),
    st.integers(1, 7),
)
def test_bytes_that_are_not_utf8_are_found_wherever_blocks_end(
    folder: Path, content: bytes, block: int
) -> None:
    expected = ""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        expected = f"bad.txt is not UTF-8: {error.reason} at byte {error.start};"
    sentence = refusal(folder / "bad.txt", content, block)
    assert expected in sentence and bool(expected) == bool(sentence)


@pytest.mark.parametrize("name", ["*.txt", ".", "none.txt"])
def test_what_is_no_text_file(name: str, tmp_path: Path, refused: Refused) -> None:
    with refused():
        prepare(tmp_path / name)


def test_empty_text(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "a.txt").touch()
    with refused():
        prepare(tmp_path / "a.txt")
    (tmp_path / "b.txt").touch()
    with refused():
        prepare(tmp_path / "*.txt")
    (tmp_path / "b.txt").write_text("b")
    assert prepare(tmp_path / "*.txt").tokens.tobytes() == b"\nb"


def test_a_file_that_fails_while_read(prose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadInput, match=r"prose\.txt cannot be read"):
        list(decoded_blocks(prose))


def test_text_that_changes_while_it_is_read(
    prose: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    def grow(*_: Any) -> Any:
        with prose.open("a") as file:
            file.write("more")
        return text.encode_bytes, 256

    monkeypatch.setattr(Text, "_encoder", grow)
    with refused():
        prepare(prose)
    assert not list((prose.parent / "cache").iterdir())


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "lib"
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root / name))
    return root / "stdlib"


def write(root: Path, name: str, content: bytes = b"") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content or name.encode())


def test_this_python_has_a_corpus(tmp_path: Path) -> None:
    corpus = Stdlib().prepare(tmp_path)
    assert len(corpus.tokens) > 5_000_000 and corpus.classes == 256
    corpus.check(64, 256)
    assert Stdlib().prepare(tmp_path) == corpus


def test_packages_are_mixed() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root).as_posix() for path in Stdlib().files()]
    assert names == sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    assert len({name[0] for name in names[-50:]}) > 10


def test_only_the_library_proper(fake: Path) -> None:
    proper = {"a.py", "pkg/b.py", "testing.py", "pkg/test.py"}
    others = ["site-packages/x.py", "dist-packages/x.py", "test/x.py", "lib2to3/tests/data/x.py"]
    others += ["idlelib/idle_test/x.py", "pkg/__pycache__/x.py", "config-3.11/x.py"]
    for name in (*proper, *others, "_sysconfigdata__linux.py", "pkg/notes.txt"):
        write(fake, name)
    names = {path.relative_to(fake).as_posix() for path in Stdlib().files()}
    assert names == proper


def test_files_that_are_not_utf8_are_left_out(fake: Path, tmp_path: Path) -> None:
    write(fake, "latin.py", "# é".encode("latin-1"))
    write(fake, "good.py", "# é".encode())
    assert Stdlib().prepare(tmp_path / "cache").tokens.tobytes() == "# é".encode()


def test_a_python_without_sources(fake: Path, refused: Refused) -> None:
    with refused():
        Stdlib().files()
