"""The examples are valid jobs that the platform accepts."""

from pathlib import Path

import pytest
import yaml

from services.core.domain.spec import parse_spec
from services.core.domain.unsupported import unsupported
from services.core.frameworks import find

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/weft.yaml"))


def test_the_documented_examples_exist() -> None:
    assert {"hello", "numpy", "digits", "digits-pytorch"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_example_is_a_valid_job_named_after_its_folder(name: str) -> None:
    spec = parse_spec(yaml.safe_load((EXAMPLES / name / "weft.yaml").read_text(encoding="utf-8")))

    assert spec.name == name
    assert unsupported(spec) == ()
    assert (EXAMPLES / name / "README.md").exists()


@pytest.mark.parametrize("name", NAMES)
def test_each_example_s_framework_is_in_the_library(name: str) -> None:
    spec = parse_spec(yaml.safe_load((EXAMPLES / name / "weft.yaml").read_text(encoding="utf-8")))

    assert spec.framework is None or find(spec.framework.name, spec.framework.version) is not None


@pytest.mark.parametrize("name", NAMES)
def test_each_example_fits_a_machine_with_two_cores(name: str) -> None:
    spec = parse_spec(yaml.safe_load((EXAMPLES / name / "weft.yaml").read_text(encoding="utf-8")))

    cpus = sum(spec.role_resources(role).cpus * spec.roles[role].count for role in spec.roles)
    assert cpus <= 2
