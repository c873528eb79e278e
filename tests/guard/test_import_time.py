# SPDX-License-Identifier: Apache-2.0
"""What is imported when: the package and its help are light, and packages import heavy ones late."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "torch", "numpy", "av", "constriction", "safetensors", "matplotlib", "PIL", "skimage", "scipy", "cv2",
    "torchmetrics", "accelerate", "tensorboard", "triton", "ray", "gradio", "diffusers",
}  # fmt: skip
LATE = HEAVY - {"torch", "numpy", "triton"} | {"typer", "rich"}  # training machines have none of these
PROBE = """
import contextlib, io, json, sys, time
start = time.process_time()
with contextlib.redirect_stdout(io.StringIO()) as out:
    {code}
seconds = time.process_time() - start  # of the CPU: whatever else the machine does
print(json.dumps(dict(seconds=seconds, modules=[m for m in sys.modules if '.' not in m], out=out.getvalue())))
"""


def probe(code: str) -> dict:
    done = subprocess.run([sys.executable, "-c", PROBE.format(code=code)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_import_inlay_is_light() -> None:
    assert not HEAVY & set(probe("import inlay")["modules"])


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_are_light_and_quick(flag: str) -> None:
    code = f"from inlay.cli.main import main; assert main(['{flag}']) == 0"
    answers = [probe(code)]
    while min(a["seconds"] for a in answers) >= 0.5 and len(answers) < 4:  # a busy machine may need another try
        answers.append(probe(code))
    assert "inlay" in answers[0]["out"]
    assert not HEAVY & set(answers[0]["modules"])
    assert min(a["seconds"] for a in answers) < 0.5


def test_every_command_explains_itself_without_torch() -> None:
    code = (
        "from inlay.cli.main import COMMANDS, GROUPS, main;"
        " assert not any(main([name, '--help']) for name in [*COMMANDS, *GROUPS])"
    )
    assert not HEAVY & set(probe(code)["modules"])


PACKAGES = ["video", "backbones", "masking", "fill", "container", "tokenizer", "measure", "train", "vlm"]


def test_packages_open_without_optional_ones() -> None:
    code = "; ".join(f"import inlay.{name}" for name in PACKAGES)
    loaded = LATE & set(probe(code)["modules"])
    assert not loaded, f"opening {PACKAGES} brings {sorted(loaded)}; import them inside the functions that need them"
