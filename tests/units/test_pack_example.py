# SPDX-License-Identifier: Apache-2.0
"""The worked example runs from photographs to a record, and its model reads packed clips as it reads single ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.conftest import scripts

MODULES = ("clips", "data", "model", "prepare", "train", "speed", "sweep")
FOLDER = Path(__file__).parents[2] / "examples" / "sparse_classifier"


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    with scripts(FOLDER, *MODULES) as found:
        yield found


@pytest.fixture(scope="module")
def latents(example: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latents") / "motion.npz"
    size = ["--count", "65", "--frames", "5", "--side", "32", "--backbone", "mini-untrained", "--tau", "0.5"]
    example["prepare"].main(["motion", str(path), *size, "--device", "cpu"])
    return path


def test_the_example_runs_and_leaves_a_record(example: dict[str, Any], latents: Path, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    small = ["--epochs", "2", "--width", "24", "--depth", "1", "--seeds", "2", "--out", str(out)]
    rows = example["train"].main([str(latents), *small])
    told = json.loads(out.read_text())
    assert sum(told["clips"].values()) == sum(told["classes"].values()) == 65 and len(told["classes"]) == 13
    assert [row["reading"] for row in rows] == list(example["data"].READINGS)
    by_name = {row["reading"]: row for row in told["rows"]}
    assert by_name["dense"]["tokens_per_clip"] == by_name["hold"]["tokens_per_clip"] == told["cells_per_clip"] == 32
    assert by_name["sparse"]["tokens_per_clip"] == by_name["random"]["tokens_per_clip"] < 32
    assert all(0 <= hit <= 1 for row in told["rows"] for hit in row["accuracies"] + row["class_accuracies"])
    assert all(len(row["accuracies"]) == 2 and row["clips_per_second"] > 0 for row in told["rows"])


def test_some_classes_can_be_chosen(example: dict[str, Any], latents: Path) -> None:
    data = example["data"].Data.load(latents, only=["still", "object up"])
    assert data.classes == ("still", "object up")
    assert data.labels_B.tolist() == [0, 1] * 5


def test_every_clip_is_tested_once_in_four_folds(example: dict[str, Any], latents: Path) -> None:
    folds = [example["data"].Data.load(latents, fold=fold) for fold in range(4)]
    assert sorted(i for data in folds for i in data.test.tolist()) == list(range(65))
    for data in folds:
        assert not set(data.test.tolist()) & set(data.train.tolist())


def test_cells_drawn_by_lot_are_as_many(example: dict[str, Any], latents: Path) -> None:
    keep = example["data"].Data.load(latents).keep_BTHW
    drawn = example["data"].lot(keep, torch.Generator().manual_seed(0))
    assert torch.equal(drawn.flatten(1).sum(1), keep.flatten(1).sum(1)) and not torch.equal(drawn, keep)


def test_windows_of_one_video_are_judged_together(example: dict[str, Any], latents: Path) -> None:
    """Two windows of a video, one seen wrongly with little doubt: the surer one decides."""
    data = example["data"].Data.load(latents, only=["still", "pan left"])
    rows = data.test[:1].repeat(2)
    sure = iter([torch.tensor([[4.0, 0.0], [0.0, 1.0]])])
    twice = replace(data, test=rows, labels_B=torch.zeros_like(data.labels_B))
    found = example["train"].test(twice, "dense", lambda batch: next(sure), 8, torch.Generator())
    assert found == {"accuracy": 1.0, "class_accuracy": 1.0}


@pytest.mark.slow
def test_the_sweep_joins_seeds_and_survives_a_failure(
    example: dict[str, Any], latents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"no latents")
    out = tmp_path / "out"
    small = ["--seeds", "1", "--epochs", "1", "--speed-steps", "1", "--processes", "3"]
    written = example["sweep"].main([str(latents), str(broken), "--out", str(out), *small])
    assert [path.name for path in written] == ["sparse_classifier_motion.json", "sparse_classifier_object.json"]
    told = json.loads(written[0].read_text())
    assert told["seeds"] == [0] and len(told["rows"]) == 5 and len(told["speed"]["rows"]) == 3
    assert "broken, seed 0: failed (1)" in capsys.readouterr().out


def test_the_model_can_learn(example: dict[str, Any], latents: Path) -> None:
    """Two clips by heart: still and moving."""
    model = example["model"]
    data = example["data"].Data.load(latents, only=["still", "pan left"])
    batch = data.read(torch.tensor([0, 1]), "sparse", torch.Generator())
    net = model.Classifier(model.ModelConfig(channels=16, classes=2, width=24, depth=1))
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(net(batch), data.labels_B[:2])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("reading", ["dense", "sparse"])
def test_a_clip_scores_the_same_alone_and_in_a_batch(example: dict[str, Any], latents: Path, reading: str) -> None:
    model = example["model"]
    data = example["data"].Data.load(latents)
    net = model.Classifier(model.ModelConfig(channels=16, classes=13, width=24, depth=2))
    together = net(data.read(torch.arange(4), reading, torch.Generator()))
    alone = torch.cat([net(data.read(torch.tensor([i]), reading, torch.Generator())) for i in range(4)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_motions_are_what_their_names_say(example: dict[str, Any]) -> None:
    clips = example["clips"]
    photos = clips.invented_photos(8)

    def shift(name: str) -> tuple[float, float]:
        """By correlation of the first frame with the last, in pixels (right, down)."""
        video = clips.move(photos[0], photos[1], name, frames=5, side=64, rng=torch.Generator().manual_seed(1))
        a, b = (video.frames[i].float().mean(-1) for i in (0, -1))
        product = torch.fft.ifft2(torch.fft.fft2(b - b.mean()) * torch.fft.fft2(a - a.mean()).conj()).real
        y, x = divmod(int(product.argmax()), 64)
        return (x + 32) % 64 - 32, (y + 32) % 64 - 32

    assert shift("still") == (0, 0)
    assert shift("pan left")[0] > 0 and shift("pan right")[0] < 0  # what is seen goes the other way
    assert shift("pan up")[1] > 0 and shift("pan down")[1] < 0


def test_the_example_needs_neither_pyav_nor_pillow_to_train() -> None:
    import subprocess

    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import train, speed, sweep; "
        "sys.exit(bool({'av', 'PIL'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code, str(FOLDER)], check=True)
