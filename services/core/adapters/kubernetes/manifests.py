"""What an operator gives to the cluster before Weft runs in it: service accounts, rights and admission policies.

The sources are plain YAML, ``manifest_files/*.yaml``, with ``${name}`` for an installation's choices. The Helm chart
fills copies of the same files (scripts/chart_files.py), so nothing here renders structure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import yaml

from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.errors import InvalidRequest

RIGHTS: Final = "rights.yaml"
POLICIES: Final = "policies.yaml"
GUARDIAN_JOBS: Final = "guardian_jobs.yaml"
"""Only where each job has a Guardian in a Kubernetes Job of its own."""
_PLACEHOLDER: Final = re.compile(r"\$\{(\w+)\}")
_SAFE: Final = re.compile(r"[A-Za-z0-9._:/@ \[\]\",-]*")
"""Values are text within YAML and within strings of CEL. None needs quotes or backslashes of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The service accounts of an installation, all in one namespace."""

    namespace: str
    lcm: str
    guardian: str
    services: str
    """Of the services that do not use the cluster."""

    @classmethod
    def of(cls, installation: str, namespace: str, *, one_account: bool = False) -> Accounts:
        """The names of an installation's accounts. ``one_account``: one for lcm and guardian, ``-up``."""
        names = ("up", "up") if one_account else ("lcm", "guardian")
        lcm, guardian = (f"{installation}-{name}" for name in names)
        return cls(namespace=namespace, lcm=lcm, guardian=guardian, services=f"{installation}-services")


def values(options: KubernetesOptions, accounts: Accounts) -> dict[str, str]:
    """The text for each placeholder. Raises InvalidRequest for a setting with characters that no name has."""
    filled = {
        "namespace": accounts.namespace,
        "lcm_account": accounts.lcm,
        "guardian_account": accounts.guardian,
        "services_account": accounts.services,
        "guardian_namespace": options.guardian_namespace,
        "installation": options.installation,
        "prefix": options.namespace_prefix,
        "helper": _repository(options.helper_image),
        "images": json.dumps(_images(options)),
        "pull_secrets": json.dumps(sorted(set(options.pull_secrets))),
        "runtime_class": options.runtime_class,
        "schedulers": json.dumps(sorted({options.scheduler or "default-scheduler", *options.schedulers.values()})),
        "kueue": "true" if options.gang is GangMethod.KUEUE else "false",
        "priority_classes": json.dumps(sorted(set(options.priority_classes.values()))),
        "gpu_resource": options.gpu_resource,
        "resources": json.dumps(["cpu", "memory", options.gpu_resource, *sorted(set(options.devices))]),
        "scratch": str(options.scratch),
        "uid_first": str(options.uid_first),
        "uid_last": str(options.uid_first + options.uid_count - 1),
    }
    for name, value in filled.items():
        if not _SAFE.fullmatch(value):
            raise InvalidRequest(f"{name} has characters that cannot be in an admission policy: {value!r}")
    return filled


def _images(options: KubernetesOptions) -> list[str]:
    """What learners' images begin with; empty: any image."""
    if not options.images:
        return []
    return sorted({*options.images, options.learner_image, *options.library_images.prefixes()})


def _repository(image: str) -> str:
    """The name of an image without tag and digest."""
    folder, slash, last = image.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"


def text(name: str, filled: Mapping[str, str]) -> str:
    """The YAML of ``RIGHTS``, ``POLICIES`` or ``GUARDIAN_JOBS`` with these values."""
    source = files("services.core.adapters.kubernetes").joinpath("manifest_files", name).read_text()
    return _PLACEHOLDER.sub(lambda match: filled[match.group(1)], source)


def manifests(options: KubernetesOptions, accounts: Accounts) -> str:
    """All of it, as the YAML that ``kubectl apply -f -`` reads."""
    filled = values(options, accounts)
    names = (RIGHTS, POLICIES, GUARDIAN_JOBS) if options.guardian_namespace else (RIGHTS, POLICIES)
    return "---\n".join(text(name, filled) for name in names)


def documents(options: KubernetesOptions, accounts: Accounts) -> list[dict[str, Any]]:
    """The objects of ``manifests``."""
    return [document for document in yaml.safe_load_all(manifests(options, accounts)) if document]


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One thing that a role permits. ``group``: of the API, empty for the core. ``name``: empty for all objects."""

    verb: str
    group: str
    resource: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}"


def rights(role: str, installation: str) -> list[Right]:
    """What the ClusterRole ``<installation>-<role>`` of ``RIGHTS`` permits. Raises KeyError for an unknown role."""
    options = KubernetesOptions(
        helper_image="-", learner_image="-", entry_script="", addresses={}, installation=installation
    )
    roles = {
        document["metadata"]["name"]: document["rules"]
        for document in documents(options, Accounts.of(installation, "default"))
        if document["kind"] == "ClusterRole"
    }
    return [
        Right(verb, group, resource, name)
        for rule in roles[f"{installation}-{role}"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    ]
