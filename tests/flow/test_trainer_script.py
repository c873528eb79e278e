# SPDX-License-Identifier: Apache-2.0
"""What a new user writes first: a folder of videos to latents, a DataLoader, a network of their own, what it made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import inlay
from inlay.video import read_video, write_video
from tests.conftest import moving_square

SCRIPT = """
import torch
from torch.utils.data import DataLoader

import inlay

config = inlay.scale.TokenizeConfig(backbone="mini-untrained", tau=0.3)
inlay.scale.tokenize("videos", "tokens", config)  # no `if __name__ == "__main__"`: workers do not run the script again
data = inlay.scale.TokenDataset("tokens", mode="dense", fill="hold")
print(data)
denoise = torch.nn.Conv3d(16, 16, 3, padding=1)
optimiser = torch.optim.AdamW(denoise.parameters())
for batch in DataLoader(data, batch_sampler=inlay.pack.ShapeSampler(data.shapes, batch_size=2)):
    z = batch["latents"]
    noise = torch.randn_like(z)
    loss = (denoise(z + noise) - noise).square().mean()
    loss.backward()
    optimiser.step()
tokenizer = inlay.Tokenizer.from_pretrained("mini-untrained")
tokenizer.decode(denoise(torch.randn(1, *z.shape[1:])), fps=24).save("made.mp4")
"""


def test_a_trainer_in_twenty_lines(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    for seed, frames in enumerate((17, 9, 17)):  # latents of different lengths cannot be stacked
        write_video(moving_square(frames, 32, 48, seed=seed), tmp_path / f"videos/{seed}.mp4")
    (tmp_path / "trainer.py").write_text(SCRIPT)
    here = {**os.environ, "PYTHONPATH": str(Path(inlay.__file__).parents[1])}  # this copy, wherever the script lies
    words = [sys.executable, "trainer.py"]
    done = subprocess.run(words, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TokenDataset(3 videos by mini-untrained") and done.stdout.count("\n") == 1
    assert read_video(tmp_path / "made.mp4").frames.shape[1:] == (32, 48, 3)
