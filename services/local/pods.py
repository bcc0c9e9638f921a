"""``weft up --cluster kubernetes``: how learners in pods of another machine reach the services of this one.

Pods reach one port: that of the metrics service for learners, at the advertised host, with TLS. The services get the
rest as settings. `weft status` and `weft down` import this module, so it loads no settings library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.core.domain.errors import WeftError
from services.core.runtime.address import TLS, TlsFiles
from services.core.runtime.home import Home
from services.local.layout import last_port, listen_lasting

if TYPE_CHECKING:
    from services.local.settings import LocalSettings

LEARNERS: Final = "metrics-learners"
"""The name of the address, and of the certificate, for pods."""


def settings_of_cluster(flags: Mapping[str, str]) -> dict[str, str]:
    """The settings (``WEFT_*``) for the flags of ``weft up``: ``{kind, kubeconfig, context, advertise, registry}``.

    Raises WeftError for a kubeconfig that is not there.
    """
    if not flags.get("kind"):
        return {}
    variables = {"WEFT_CLUSTER": flags["kind"]}
    if flags["kind"] != "kubernetes":
        return variables
    kubeconfig = Path(flags.get("kubeconfig") or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not kubeconfig.is_file():
        raise WeftError(f"there is no kubeconfig {kubeconfig}; name one with --kubeconfig FILE")
    variables["WEFT_KUBERNETES_KUBECONFIG"] = str(kubeconfig.absolute())
    if flags.get("context"):
        variables["WEFT_KUBERNETES_CONTEXT"] = flags["context"]
    if flags.get("advertise"):
        variables["WEFT_ADVERTISE"] = flags["advertise"]
    if flags.get("registry") or not os.environ.get("WEFT_KUBERNETES_HELPER_IMAGE"):
        variables["WEFT_KUBERNETES_HELPER_IMAGE"] = image("helper", flags.get("registry", ""))
    if flags.get("registry"):  # never a name without a registry by default: nodes would look for it in a public one
        variables["WEFT_KUBERNETES_FRAMEWORK_REGISTRY"] = flags["registry"]
    return variables


def image(name: str, registry: str) -> str:
    """The name of an image of this version, e.g. ``registry.example/weft/helper:0.1.0``; ``registry`` may be empty."""
    from importlib.metadata import version  # noqa: PLC0415 - see the module's docstring

    path = f"weft/{name}:{version('weft-platform')}"
    return f"{registry.rstrip('/')}/{path}" if registry else path


def serves_pods(settings: LocalSettings) -> bool:
    """Whether learners run in pods."""
    return settings.cluster == "kubernetes"


def pods_address(settings: LocalSettings) -> str:
    """Chooses the address by which pods reach the metrics service. Raises WeftError without an advertised host."""
    host = settings.advertise
    if not host:
        command = settings.installation.command("up --cluster kubernetes --advertise HOST")
        raise WeftError(
            f"learners in pods need an address of this machine: `{command}`, where "
            "HOST is its name or address in the cluster's network"
        )
    wanted = settings.learners_port or last_port(settings.installation, LEARNERS)
    with listen_lasting(settings.learners_host, first=wanted) as holder:
        port = holder.getsockname()[1]
    if settings.learners_port and port != settings.learners_port:
        raise WeftError(f"port {settings.learners_port} is taken; give another with WEFT_LEARNERS_PORT")
    return f"{TLS}[{host}]:{port}" if ":" in host else f"{TLS}{host}:{port}"


def variables_for(service: str, home: Home, settings: LocalSettings) -> dict[str, str]:
    """The settings of a service that it needs for learners in pods; none without them."""
    if not serves_pods(settings):
        return {}
    files = TlsFiles.of(home / "tls", LEARNERS)
    address = home.addresses()[LEARNERS]
    if service == "metrics":
        port = address.rpartition(":")[2]
        host = f"[{settings.learners_host}]" if ":" in settings.learners_host else settings.learners_host
        return {
            "WEFT_METRICS_LEARNERS_LISTEN": f"{host}:{port}",
            "WEFT_METRICS_LEARNERS_CERTIFICATE_FILE": str(files.certificate),
            "WEFT_METRICS_LEARNERS_KEY_FILE": str(files.key),
        }
    return {"WEFT_KUBERNETES_METRICS_ADDRESS": address, "WEFT_TLS_AUTHORITY_FILE": str(files.authority)}
