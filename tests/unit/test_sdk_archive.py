"""The code archive: the same bytes for the same files, no ignored files, no files from outside the folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from weft import InvalidArchive
from weft._archive import list_code, make_archive
from weft._choosing import part_file
from weft._download_record import DownloadRecord
from weft._unpack import unpack


def folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def paths(root: Path) -> list[str]:
    return [file.path for file in list_code(root).files]


def download(root: Path, files: dict[str, str]) -> Path:
    """Results, as `weft download` leaves them."""
    record = DownloadRecord(root)
    for name, text in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_file(target, name)
        part.write_text(text)
        record.place(part, target, name)
    return root


def download_code(root: Path, files: dict[str, str]) -> Path:
    """The code of a job, as `weft download --code` leaves it."""
    root.mkdir()
    record, archive = DownloadRecord(root), root / "code.zip"
    part = part_file(archive, "code")
    with zipfile.ZipFile(part, "w") as zipped:
        for name, text in files.items():
            zipped.writestr(name, text)
    record.place(part, archive, "code")
    unpack(archive, root, record, etag="code", force=False)
    return root


def test_same_files_give_the_same_archive_bytes(tmp_path: Path) -> None:
    files = {"train.py": "print(1)", "pkg/a.py": "a", "pkg/b.txt": "b" * 1000}
    first_folder, second_folder = (
        folder(tmp_path / "one", files),
        folder(tmp_path / "two", dict(reversed(files.items()))),
    )
    os.utime(second_folder / "train.py", (1, 1))
    (second_folder / "pkg" / "b.txt").chmod(0o600)
    with make_archive(first_folder) as first, make_archive(second_folder) as second:
        assert first.digest == second.digest
        assert first.path.read_bytes() == second.path.read_bytes()


def test_a_change_of_name_content_or_executability_changes_the_digest(tmp_path: Path) -> None:
    digests = set()
    for number, (name, text, mode) in enumerate(
        [("a", "x", 0o644), ("b", "x", 0o644), ("a", "y", 0o644), ("a", "x", 0o755)]
    ):
        root = folder(tmp_path / str(number), {name: text})
        (root / name).chmod(mode)
        with make_archive(root) as archive:
            digests.add(archive.digest)
    assert len(digests) == 4


def test_the_archive_holds_the_files_with_plain_names_and_executability(tmp_path: Path) -> None:
    root = folder(tmp_path, {"run.sh": "#!/bin/sh", "src/größe.py": "x = 1"})
    (root / "run.sh").chmod(0o755)
    with make_archive(root) as archive, zipfile.ZipFile(archive.path) as zipped:
        assert zipped.namelist() == ["run.sh", "src/größe.py"]
        assert zipped.read("src/größe.py") == b"x = 1"
        assert [entry.external_attr >> 16 & 0o777 for entry in zipped.infolist()] == [0o755, 0o644]
        assert {entry.date_time for entry in zipped.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_temporary_zip_is_removed(tmp_path: Path) -> None:
    with make_archive(folder(tmp_path, {"a": "x"})) as archive:
        assert archive.path.exists()
    assert not archive.path.exists()


def test_files_made_by_tools_are_left_out(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        {
            "train.py": "",
            ".git/HEAD": "",
            "a/__pycache__/x.cpython-311.pyc": "",
            ".venv/bin/python": "",
            "node_modules/x/index.js": "",
            "env/pyvenv.cfg": "",
            "env/lib/big.py": "",
            "old.pyc": "",
            ".weftignore": "",
        },
    )
    assert paths(root) == ["train.py"]


@pytest.mark.parametrize(
    ("git", "weft", "kept"),
    [
        ("", "", ["a.txt", "data/deep/x.csv", "data/x.csv", "train.py"]),
        ("*.csv\n", "", ["a.txt", "train.py"]),
        ("data/\n", "", ["a.txt", "train.py"]),
        ("/a.txt\n", "", ["data/deep/x.csv", "data/x.csv", "train.py"]),
        ("*\n!train.py\n", "", ["train.py"]),
        ("data/*\n!data/x.csv\n", "", ["a.txt", "data/x.csv", "train.py"]),
        ("# comment\n\ndata/**/x.csv\n", "", ["a.txt", "train.py"]),
        ("*.csv\n", "!data/x.csv\n", ["a.txt", "data/x.csv", "train.py"]),
        ("data/\n", "!data/x.csv\n", ["a.txt", "data/x.csv", "train.py"]),
        ("", "data/\n", ["a.txt", "train.py"]),
        ("!data/x.csv\n", "data/\n", ["a.txt", "train.py"]),
        ("", "*.txt\n!a.txt\n", ["a.txt", "data/deep/x.csv", "data/x.csv", "train.py"]),
    ],
)
def test_weftignore_wins_over_gitignore(tmp_path: Path, git: str, weft: str, kept: list[str]) -> None:
    root = folder(tmp_path, {"train.py": "", "a.txt": "", "data/x.csv": "", "data/deep/x.csv": ""})
    (root / ".gitignore").write_text(git)
    (root / ".weftignore").write_text(weft)
    assert [path for path in paths(root) if path != ".gitignore"] == kept


def test_an_ignore_file_holds_for_its_own_folder_and_below_and_the_deeper_wins(tmp_path: Path) -> None:
    root = folder(
        tmp_path, {"x.log": "", "a/x.log": "", "a/b/x.log": "", "a/b/keep.log": "", "c/x.tmp": "", "x.tmp": ""}
    )
    (root / ".gitignore").write_text("*.log\n")
    (root / "a" / "b" / ".gitignore").write_text("!keep.log\n")
    (root / "c" / ".weftignore").write_text("*.tmp\n")
    assert [path for path in paths(root) if "gitignore" not in path] == ["a/b/keep.log", "x.tmp"]


def test_link_target_inside_the_folder_is_stored(tmp_path: Path) -> None:
    root = folder(tmp_path, {"real/a.py": "text"})
    (root / "file.py").symlink_to("real/a.py")
    (root / "linked").symlink_to("real")
    with make_archive(root) as archive, zipfile.ZipFile(archive.path) as zipped:
        assert zipped.namelist() == ["file.py", "linked/a.py", "real/a.py"]
        assert zipped.read("linked/a.py") == b"text"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/etc/passwd", "leaves the code folder"),
        ("../outside", "leaves the code folder"),
        ("../../..", "leaves the code folder"),
        ("nowhere", "points to nothing"),
        (".", "leads back|leaves the code folder"),
        ("../code", "leads back|leaves the code folder"),
    ],
)
def test_link_out_of_the_folder_or_to_nothing_is_refused(tmp_path: Path, target: str, says: str) -> None:
    (tmp_path / "outside").mkdir()
    root = folder(tmp_path / "code", {"a.py": ""})
    (root / "link").symlink_to(target)
    with pytest.raises(InvalidArchive, match=says) as refused:
        list_code(root)
    assert "link" in refused.value.message
    (root / ".weftignore").write_text("link\n")
    assert paths(root) == ["a.py"]


def test_links_in_a_ring_are_refused(tmp_path: Path) -> None:
    root = folder(tmp_path, {"a/x": "", "b/y": ""})
    (root / "a" / "to_b").symlink_to("../b")
    (root / "b" / "to_a").symlink_to("../a")
    with pytest.raises(InvalidArchive, match="leads back"):
        list_code(root)


def test_special_files_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path, {"a.py": ""})
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        listing = list_code(root)
    assert ([file.path for file in listing.files], listing.skipped) == (["a.py"], ("pipe", "sock"))


@pytest.mark.parametrize("missing", ["nothing", "empty"])
def test_missing_code_is_one_clear_error(tmp_path: Path, missing: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArchive, match=missing):
        make_archive(tmp_path / missing)


def test_given_zip_is_sent_unchanged_and_kept(tmp_path: Path) -> None:
    given = tmp_path / "code.zip"
    with zipfile.ZipFile(given, "w") as zipped:
        zipped.writestr("train.py", "print(1)")
    with make_archive(given) as archive:
        assert (archive.path, [file.path for file in archive.listing.files]) == (given, ["train.py"])
    assert given.exists()
    given.write_text("no zip")
    with pytest.raises(InvalidArchive, match="neither a folder nor a zip"):
        make_archive(given)


def test_the_largest_files_are_named_first(tmp_path: Path) -> None:
    root = folder(tmp_path, {f"f{number}": "x" * number for number in range(9)})
    assert [file.path for file in list_code(root).largest()] == ["f8", "f7", "f6", "f5", "f4"]
    assert list_code(root).size == 36


def test_a_link_to_itself_is_refused_or_ignored(tmp_path: Path) -> None:
    root = folder(tmp_path, {"a.py": ""})
    (root / "loop").symlink_to("loop")
    with pytest.raises(InvalidArchive, match="loop"):
        list_code(root)


def test_results_that_were_downloaded_are_left_out_and_named(tmp_path: Path) -> None:
    download(folder(tmp_path, {"train.py": ""}), {"model.bin": "x", "worker-0/best.pt": "x"})
    assert (paths(tmp_path), list_code(tmp_path).private) == (["train.py"], ("model.bin", "worker-0/best.pt"))


@pytest.mark.parametrize(
    ("pattern", "sent"),
    [
        ("!data/keep.csv", []),  # of another file
        ("!model.bin", ["model.bin"]),
        ("!worker-0/", ["worker-0/best.pt", "worker-0/last.pt"]),
        ("!*.pt\nlast.pt", ["worker-0/best.pt"]),
    ],
)
def test_a_pattern_sends_only_those_downloads_that_it_names(tmp_path: Path, pattern: str, sent: list[str]) -> None:
    """Any pattern with "!" sent all results that had ever been downloaded into the folder."""
    root = folder(tmp_path, {"train.py": "", "data/keep.csv": "", ".gitignore": "data/\n!*.bin\n"})
    download(root, {"model.bin": "x", "worker-0/best.pt": "x", "worker-0/last.pt": "x"})
    (root / ".weftignore").write_text(pattern)
    own = {".gitignore", "data/keep.csv", "train.py"}
    assert [path for path in paths(root) if path not in own] == sent


def test_a_download_that_was_changed_is_sent(tmp_path: Path) -> None:
    root = download(tmp_path, {"config.json": "{}", "model.bin": "x"})
    (root / "config.json").write_text('{"lr": 0.1}')
    assert paths(root) == ["config.json"]


def test_code_that_was_downloaded_is_sent_changed_or_not(tmp_path: Path) -> None:
    """The edited copy of another job's code could not be submitted: it had no file to upload."""
    root = download_code(tmp_path / "x", {"train.py": "print(1)", "weft.yaml": "name: mine", "pkg/a.py": ""})
    download(root, {"model.bin": "x"})
    (root / "train.py").write_text("print(22)")
    assert (paths(root), list_code(root).private) == (["pkg/a.py", "train.py", "weft.yaml"], ("model.bin",))


def test_code_that_was_downloaded_into_a_folder_of_the_code_is_left_out(tmp_path: Path) -> None:
    root = folder(tmp_path, {"train.py": ""})
    download_code(root / "other", {"train.py": "print(1)"})
    assert (paths(root), list_code(root).private) == (["train.py"], ("other/train.py",))
    (root / ".weftignore").write_text("!other/*.py\n")
    assert paths(root) == ["other/train.py", "train.py"]


def test_a_folder_with_nothing_but_downloads_says_why_it_has_no_code(tmp_path: Path) -> None:
    root = download(tmp_path, dict.fromkeys(("a", "b", "c", "d", "e"), "x"))
    with pytest.raises(InvalidArchive) as refused:
        list_code(root)
    assert "`weft download` wrote a, b, c and 2 more, and downloads are left out" in refused.value.message
    assert "`!NAME` in .weftignore sends one" in refused.value.message


def test_a_download_record_with_names_that_no_file_can_have_is_read(tmp_path: Path) -> None:
    root = folder(tmp_path, {"train.py": ""})
    lines = [
        f'{{"path": "{name}", "etag": "1", "size": 1, "mtime_ns": 1}}\n' for name in ("\\u0000", "\\ud800", "n" * 999)
    ]
    (root / ".weft-download").write_text("".join(lines))
    assert paths(root) == ["train.py"]


FULL = """
import resource, sys
from pathlib import Path
from weft import InvalidArchive
from weft._archive import make_archive
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    make_archive(Path(sys.argv[1]))
except InvalidArchive as refused:
    print(refused.message)
"""


def test_an_archive_that_cannot_be_written_says_where_and_why(tmp_path: Path) -> None:
    """The first file that found no room was blamed: "a.bin cannot be read"."""
    code, place = tmp_path / "code", tmp_path / "place"
    code.mkdir()
    place.mkdir()
    (code / "a.bin").write_bytes(os.urandom(100_000))
    command = [sys.executable, "-c", FULL, str(code)]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(place)}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"the archive of {code} cannot be written to {place} (File too large); make room")
    assert list(place.iterdir()) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    root = folder(tmp_path, {"a.py": "", "b.py": ""})
    listing = list_code(root)
    (root / "b.py").unlink()
    (root / "b.py").mkdir()
    with pytest.raises(InvalidArchive, match=r"^b\.py cannot be read \(Is a directory\)"):
        make_archive(root, listing)
