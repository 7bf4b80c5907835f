"""Each file in ``bad`` has one fault, named by the file; the message beside it is what its author reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattline.config import ConfigError, load

BAD = Path(__file__).parent / "bad"
FILES = sorted(BAD.glob("*.yml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_bad_file_is_refused_with_its_message(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f"{BAD}/{file.with_suffix('.txt').read_text().rstrip()}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_error_names_the_file_and_a_line_that_exists(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.line is not None
    assert 1 <= caught.value.line <= len(file.read_bytes().splitlines())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_error_never_tells_a_secret(file: Path) -> None:
    assert "hunter2" not in file.with_suffix(".txt").read_text()


def test_every_message_has_its_file() -> None:
    assert {file.stem for file in BAD.glob("*.txt")} == {file.stem for file in FILES}


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yml: cannot be read: no such file or directory$"):
        load(tmp_path / "nowhere.yml")


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r": cannot be read: is a directory$"):
        load(tmp_path)


def test_a_huge_file_is_an_error_and_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "huge.yml"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(ConfigError, match="is larger than 1000000 bytes"):
        load(file)


def test_deep_nesting_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "deep.yml"
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"deep\.yml: is nested too deeply$"):
        load(file)
