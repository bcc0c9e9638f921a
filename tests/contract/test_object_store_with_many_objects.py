"""A folder of objects with as many files in one folder as a careless learner stores."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Final

import pytest

from services.core.adapters.folder.objects import STAGING, FolderObjectStore

MANY: Final = 20_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    FolderObjectStore.make(tmp_path)
    return tmp_path


@pytest.fixture
def many_objects(root: Path) -> list[str]:
    """The keys of objects in one folder, sorted."""
    folder = root / "t" / "many"
    folder.mkdir(parents=True)
    for number in range(MANY):
        (folder / f"{number:06}").touch()
    return [f"t/many/{number:06}" for number in range(MANY)]


async def test_a_page_of_a_folder_with_many_objects_takes_the_memory_of_a_page(
    root: Path, many_objects: list[str]
) -> None:
    store = FolderObjectStore(root)
    await store.list("t/", limit=10)  # what the first call of all imports is not counted
    tracemalloc.start()
    try:
        page = await store.list("t/", after=many_objects[MANY // 2], limit=10)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [entry.key for entry in page] == many_objects[MANY // 2 + 1 : MANY // 2 + 11]
    assert most < 10 * MANY  # bytes: all names alone are 60 for each


async def test_pages_of_a_folder_with_many_objects_form_the_sorted_list(root: Path, many_objects: list[str]) -> None:
    store, collected = FolderObjectStore(root), list[str]()
    while page := await store.list("t/", after=collected[-1] if collected else None, limit=3000):
        collected += [entry.key for entry in page]
    assert collected == many_objects


async def test_a_folder_with_many_objects_is_deleted_whole(root: Path, many_objects: list[str]) -> None:
    assert await FolderObjectStore(root).delete_prefix("t/many/") == len(many_objects)
    assert [str(path.relative_to(root)) for path in root.rglob("*")] == [STAGING]
