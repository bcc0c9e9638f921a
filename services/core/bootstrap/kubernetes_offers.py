"""The images and devices that the settings offer to jobs on Kubernetes.

The client of Kubernetes is not imported: the api reads this wherever learners run, and the import would take a third
of the processor time of its start.
"""

from __future__ import annotations

from services.core.frameworks.images import LibraryImages
from services.core.runtime.kubernetes_settings import KubernetesSettings
from services.core.runtime.settings import Settings


def library_images(settings: Settings) -> LibraryImages | None:
    """The images of the framework library; None if learners are no pods, or this service has no settings of them."""
    if settings.cluster != "kubernetes":
        return None
    kubernetes = KubernetesSettings()
    return library_images_of(kubernetes) if kubernetes.helper_image else None


def library_images_of(kubernetes: KubernetesSettings) -> LibraryImages:
    """The images of the framework library that the settings name."""
    return LibraryImages(registry=kubernetes.framework_registry, named=kubernetes.framework_images)


def devices(settings: Settings) -> tuple[str, ...] | None:
    """The devices that learners may have; None if learners are no pods, or this service has no settings of them."""
    if settings.cluster != "kubernetes":
        return None
    kubernetes = KubernetesSettings()
    return kubernetes.devices if kubernetes.helper_image else None
