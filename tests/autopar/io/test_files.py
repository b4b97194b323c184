"""Reads are bounded, writes are whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io import files
from autopar.io.files import read_bytes, write_text


def test_an_overwrite_keeps_the_mode_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old")
    file.chmod(0o640)
    write_text(file, "neu: é")
    assert file.read_bytes() == "neu: é".encode()
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match="No space left on device"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"the folder .*/absent does not exist; `mkdir -p"):
        write_text(tmp_path / "absent" / "plan.json", "x")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    for act in (lambda: write_text(tmp_path, "x"), lambda: read_bytes(tmp_path)):
        with pytest.raises(InvalidInputError, match="is a folder"):
            act()


def test_a_name_too_long_is_the_users_fault(tmp_path: Path) -> None:
    for act in (lambda path: write_text(path, "x"), read_bytes):
        with pytest.raises(InvalidInputError, match="File name too long"):
            act(tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_written_to_and_stays() -> None:
    write_text("/dev/null", "x")
    assert Path("/dev/null").is_char_device()


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    file.write_text("12345")
    assert read_bytes(file) == b"12345"
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 4)
    with pytest.raises(InvalidInputError, match="5 bytes, more than the 4"):
        read_bytes(file)
    with pytest.raises(InvalidInputError, match="no such file"):
        read_bytes(tmp_path / "absent")
