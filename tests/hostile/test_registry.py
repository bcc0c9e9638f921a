"""The registry of tricks, and the page that is made from it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.hostile.combinations import ALL
from tests.hostile.tricks import registry

ROOT = Path(__file__).parents[2]


def test_the_page_of_tricks_is_that_of_the_registry() -> None:
    check = subprocess.run([sys.executable, ROOT / "scripts" / "hostile.py", "--check"], check=False)
    assert check.returncode == 0, "run `python scripts/hostile.py`"


def test_there_are_sixty_tricks_each_with_a_name_and_a_sentence_of_its_own() -> None:
    names = Counter((trick.theme, trick.name) for trick in registry.TRICKS)
    assert len(names) == len(registry.TRICKS) >= 60
    sentences = Counter(trick.does for trick in registry.TRICKS)
    assert max(sentences.values()) == 1
    assert all(sentence.endswith(".") and "|" not in sentence for sentence in sentences)


def test_each_trick_is_played_in_some_isolation_and_has_a_reason_for_each_other_one() -> None:
    isolations = {combination.isolation for combination in ALL}
    for trick in registry.TRICKS:
        assert set(trick.pointless) < isolations, trick
        assert all(reason.endswith(".") and "|" not in reason for reason in trick.pointless.values()), trick
