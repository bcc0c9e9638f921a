"""The operator's decisions in tests of the Kubernetes adapter: small helpers, images that the test bed has."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from services.core.adapters.kubernetes.options import KubernetesOptions
from tests.testbed.kubernetes.images import STAND_IN_IMAGE, TINY_IMAGE

OPTIONS: Final = KubernetesOptions(
    helper_image=STAND_IN_IMAGE,
    learner_image=TINY_IMAGE,
    entry_script=files("services.core.adapters.kubernetes").joinpath("entry.sh").read_text(),
    addresses={"metrics": "tls:192.0.2.1:7001"},
    helper_cpus=0.05,  # a limit, too: with less its shell is stopped for most of the time
    helper_memory=2**25,
    lcm_account="platform/weft-lcm",
    guardian_account="platform/weft-guardian",
)
