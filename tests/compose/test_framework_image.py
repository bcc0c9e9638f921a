"""Images of the framework library, built and started as a pod starts them: each trains with its framework.

`make test` tries numpy's. `make test-compose FRAMEWORKS="pytorch jax"` tries these, `FRAMEWORKS=all` each.
"""

from __future__ import annotations

import os
import re
from typing import Final

import pytest

from scripts.images import build, for_base, images_named
from services.core.frameworks import library
from tests.compose.stack import Stack

_AS_IN_A_POD = (
    "run",
    "--rm",
    "--network=none",
    "--read-only",
    "--tmpfs=/tmp",
    "--user=200123:200123",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--env=HOME=/tmp",
)
_ABOUT = """\
import importlib.metadata, os, re, shutil, sys
print(os.getuid(), sys.prefix)
names = (package.metadata["Name"] for package in importlib.metadata.distributions())
print(sorted({re.sub("[-_.]+", "-", name).lower() for name in names}))
print([program for program in ("pip", "pip3", "uv", "gcc", "cc", "ensurepip") if shutil.which(program)])
"""
_POINTS = """
import numpy
x = numpy.linspace(-1, 1, 64, dtype="float32")[:, None]
y = 3 * x + 2
"""
_TRAINS: Final = {
    "python": """
xs = [n / 32 - 1 for n in range(64)]
w = b = 0.0
for _ in range(500):
    errors = [w * x + b - (3 * x + 2) for x in xs]
    w -= 0.1 * sum(error * x for error, x in zip(errors, xs)) / 32
    b -= 0.1 * sum(errors) / 32
""",
    "numpy": _POINTS
    + """
w, b = 0.0, 0.0
for _ in range(500):
    error = w * x + b - y
    w, b = w - 0.2 * (error * x).mean(), b - 0.2 * error.mean()
""",
    "jax": _POINTS
    + """
import jax
def loss(line):
    return ((line[0] * x + line[1] - y) ** 2).mean()
line = jax.numpy.zeros(2)
gradient = jax.jit(jax.grad(loss))
for _ in range(500):
    line = line - 0.1 * gradient(line)
w, b = map(float, line)
""",
    "pytorch": _POINTS
    + """
import torch
line = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
for _ in range(500):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(line(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    optimizer.step()
w, b = line.weight.item(), line.bias.item()
""",
    "tensorflow": _POINTS
    + """
import tensorflow
line = tensorflow.keras.Sequential([tensorflow.keras.Input((1,)), tensorflow.keras.layers.Dense(1)])
line.compile(optimizer=tensorflow.keras.optimizers.SGD(0.1), loss="mse")
line.fit(x, y, batch_size=64, epochs=500, verbose=0)
w, b = (float(numpy.ravel(values)[0]) for values in line.get_weights())
""",
    "sklearn-xgboost": """
import pandas, xgboost
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression
digits = load_digits()
model = xgboost.XGBClassifier(n_estimators=20, n_jobs=1).fit(digits.data[:1200], digits.target[:1200])
assert model.score(digits.data[1200:], digits.target[1200:]) > 0.8
frame = pandas.DataFrame({"x": range(64)})
line = LinearRegression().fit(frame, 3 * frame.x + 2)
w, b = line.coef_[0], line.intercept_
""",
}
"""Framework -> a program that learns the line y = 3 x + 2, as ``w`` and ``b``."""
_CHOSEN: Final = os.environ.get("WEFT_TEST_FRAMEWORKS", "numpy").split()


def test_a_training_is_known_for_each_framework() -> None:
    assert set(_TRAINS) == {entry.name for entry in library()}


@pytest.mark.parametrize("framework", _TRAINS if _CHOSEN == ["all"] else _CHOSEN)
def test_framework_image_trains_as_any_user_on_a_read_only_root_without_pip_and_compiler(
    new_stack: Stack, framework: str
) -> None:
    (image,) = images_named((), [framework])
    build(image, new_stack.engine)
    assert image.framework is not None
    program = f"{_ABOUT}{_TRAINS[framework]}print(f'{{w:.2f}} {{b:.2f}}')"
    printed = new_stack.engine.docker(*_AS_IN_A_POD, image.name, "python", "-c", program).splitlines()
    locked = re.findall(r"(?m)^([a-z0-9-]+)==", for_base(image.framework.lock_text()))
    assert printed[:3] == ["200123 /opt/framework", str(sorted(locked)), "[]"]
    assert printed[-1] == "3.00 2.00"
    labels = new_stack.engine.docker("image", "inspect", "--format={{json .Config.Labels}}", image.name)
    assert image.framework.lock_digest in labels
