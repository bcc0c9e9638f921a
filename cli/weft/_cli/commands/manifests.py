"""manifests: what a Kubernetes cluster gets from its operator before Weft runs in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, command

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "manifests": {"items": ("list of object", "Objects for `kubectl apply`.")},
}


@command("manifests")
@click.option("--namespace", metavar="NAME", default="weft", show_default=True, help="Of the service accounts.")
@click.option("--one-account", is_flag=True, help="One account for lcm and guardian: for `weft up` elsewhere.")
@click.option("--registry", metavar="HOST/PATH", help="Registry from which the cluster pulls Weft's images.")
def manifests_command(call: Call, namespace: str, one_account: bool, registry: str | None) -> None:
    """Print what a Kubernetes cluster needs: accounts, rights, admission policies.

    For `kubectl apply -f -`, by an administrator of the cluster. The settings WEFT_KUBERNETES_... must be those of the
    platform. Nothing is sent anywhere.
    """
    from weft._cli.local import platform, translated
    from weft._cli.output import emit

    with translated():
        text: str = platform().manifests(namespace=namespace, one_account=one_account, registry=registry or "")
    import yaml

    emit(call, {"items": [item for item in yaml.safe_load_all(text) if item]}, people=lambda _wide: text.rstrip())
