"""What a user is advised to do about a pod that does not start."""

from __future__ import annotations

import pytest

from services.core.adapters.kubernetes import reasons

PULL = 'failed to pull and unpack image "x/y:1": failed to resolve reference "x/y:1": '
"""As containerd 1.7 and 2 begin."""


def pull_problem(answer: str, **annotations: str) -> reasons.Problem:
    waiting = {"reason": "ErrImagePull", "message": f"{PULL}{answer}"}
    problem = reasons.not_started(
        {
            "metadata": {"annotations": annotations},
            "status": {"containerStatuses": [{"name": "learner", "state": {"waiting": waiting}}]},
        }
    )
    assert problem is not None
    assert problem.reason == "ImagePullFailed"
    return problem


@pytest.mark.parametrize(
    "answer",
    [
        "pull access denied, repository does not exist or may require authorization: insufficient_scope",
        "unexpected status from HEAD request to https://x/v2/y/manifests/1: 401 Unauthorized",
        "unexpected status from HEAD request to https://x/v2/y/manifests/1: 403 Forbidden",
    ],
)
def test_image_that_a_registry_refuses_advises_about_credentials_and_ends_the_wait(answer: str) -> None:
    problem = pull_problem(answer)
    assert problem.final
    assert answer in problem.message
    assert "credentials (WEFT_KUBERNETES_PULL_SECRET_FILE or WEFT_KUBERNETES_PULL_SECRETS)" in problem.message


def test_image_that_a_registry_refuses_with_the_tenants_secret_names_that_secret() -> None:
    problem = pull_problem("401 Unauthorized", **{"weft.dev/image-pull-secret": "registry"})
    assert "check the image's name and the secret 'registry' of image_pull_secret" in problem.message
    assert "`weft secret set registry username=NAME password=@FILE`" in problem.message


@pytest.mark.parametrize("answer", ["x/y:1: not found", "dial tcp 127.0.0.1:9: connect: connection refused"])
def test_image_without_a_refusal_advises_about_its_name(answer: str) -> None:
    assert pull_problem(answer).message == f"{PULL}{answer}; {reasons.ADVICE[reasons.PodReason.IMAGE_PULL_FAILED]}"
