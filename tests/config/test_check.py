"""``--config.check`` says right only when what the configuration names can be used, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from wattline.cli import main
from wattline.config import load

TEXT = """state_file: state/wattline.json
deployments:
  - engines:
      - url: https://a:1
        bearer_token_file: token
        ca_file: ca.pem
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration that is right, with all its files."""
    (tmp_path / "state").mkdir()
    (tmp_path / "token").write_text("secret\n")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "wattline.yml").write_text(TEXT)
    return tmp_path / "wattline.yml"


def check(file: Path, *flags: str) -> int:
    return main(["serve", "--config.check", "--config.file", str(file), *flags])


def test_what_is_right_is_said_in_numbers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(file) == 0
    assert capsys.readouterr().out == f"{file}: right, 1 deployment with 1 engine\n"
    file.write_text("deployments: []\n")
    assert check(file) == 0
    assert capsys.readouterr().out == f"{file}: right, 0 deployments with 0 engines\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "token",
            None,
            "5: deployments[0].engines[0].bearer_token_file: cannot be read: no such file or dir",
        ),
        ("token", "two words", "5: deployments[0].engines[0].bearer_token_file: expected one word of printable"),
        ("token", "", "5: deployments[0].engines[0].bearer_token_file: expected one word of printable"),
        ("ca.pem", None, "6: deployments[0].engines[0].ca_file: cannot be read: no such file or directory: {}"),
        ("ca.pem", "none", "6: deployments[0].engines[0].ca_file: expected certificates in {}, found none"),
        ("state", None, "1: state_file: cannot be written: {} is no folder"),
        ("state", "a file", "1: state_file: cannot be written: {} is no folder"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_line(
    file: Path, name: str, content: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = file.parent / name
    named.rmdir() if named.is_dir() else named.unlink()
    if content is not None:
        named.write_text(content)
    assert check(file) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"wattline: {file}:{says.format(named)}")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert "two words" not in said.err, "it may be a token"
    # Who serves starts all the same: a token may come later.
    assert load(file).state_file == str(file.parent / "state/wattline.json")


def test_a_state_folder_that_nobody_may_write_to_is_told(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may write everywhere, so the answer of the system is made up."""
    monkeypatch.setattr("wattline.config.os.access", lambda *_: False)
    assert check(file) == 2
    assert capsys.readouterr().err == (
        f"wattline: {file}:1: state_file: cannot be written: permission denied in {file.parent / 'state'}\n"
    )


def test_the_certificates_of_the_web_configuration_are_opened(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web = tmp_path / "web.yml"
    web.write_text("tls_server_config:\n  cert_file: no.pem\n  key_file: no.key\n")
    assert check(file, "--web.config.file", str(web)) == 2
    assert capsys.readouterr().err.startswith(f"wattline: {web}:2: tls_server_config.cert_file: ")
