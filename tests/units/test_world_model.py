# SPDX-License-Identifier: Apache-2.0
"""The world model runs from videos to a table, sees no future and no other clip, and learns from every kind of set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from inlay.container import as_stored
from inlay.container.tokens import Tokens
from inlay.errors import UsageError
from inlay.files import write_atomic
from inlay.fill import hold
from inlay.pack import pack_kept
from inlay.types import Recipe, VideoInfo
from inlay.video import write_video
from tests.conftest import moving_square, scripts

MODULES = ("data", "model", "prepare", "table", "train")
FOLDER = Path(__file__).parents[2] / "examples" / "world_model"
SHARES = ("0.5", "0.3")
KINDS = ["latents", *(f"{how} {share}" for how in ("filled", "tokens", "tokens+fill") for share in SHARES)]


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    with scripts(FOLDER, *MODULES) as found:
        yield found


@pytest.fixture(scope="module")
def prepared(example: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve short clips of a square that moves; two names are held out, and one video is too short."""
    folder = tmp_path_factory.mktemp("videos")
    is_test = example["prepare"].is_test
    names = [f"source{i}_1" for i in range(200)]
    chosen = [n for n in names if is_test(n)][:2] + [n for n in names if not is_test(n)][:10]
    for i, name in enumerate(chosen):
        write_video(moving_square(17, 32, 32, speed=1 + i % 4, seed=i), folder / f"{name}.mp4")
    write_video(moving_square(5, 32, 32), folder / "short_1.mp4")
    out = tmp_path_factory.mktemp("out") / "world.safetensors"
    size = ["--frames", "17", "--size", "32x32", "--future", "1", "--keep", *SHARES, "--backbone", "mini-untrained"]
    example["prepare"].main([str(folder), str(out), *size, "--device", "cpu"])
    return out


@pytest.fixture(scope="module")
def world(example: dict[str, Any], prepared: Path) -> Any:
    return example["data"].World.load(prepared, "cpu")


def test_from_videos_to_a_table(example: dict[str, Any], prepared: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "record.json", tmp_path / "page.md"
    small = ["--steps", "3", "--batch", "4", "--width", "24", "--depth", "1", "--heads", "2", "--seeds", "2"]
    made = example["train"].main([str(prepared), *small, "--out", str(out)])
    assert json.loads(out.read_text()) == made
    rows = {row["kind"]: row for row in made["rows"]}
    assert list(rows) == KINDS and made["clips"] == {"train": 10, "test": 2, "decoded": 2}
    cells = made["cells_per_clip"] * 10
    assert rows["latents"]["tokens"] == rows["filled 0.3"]["tokens"] == cells == 10 * 5 * 4 * 4
    assert rows["tokens 0.3"]["tokens"] < rows["tokens 0.5"]["tokens"] < cells
    assert rows["filled 0.5"]["bytes"] == rows["tokens 0.5"]["bytes"] > rows["tokens 0.3"]["bytes"]
    assert rows["latents"]["bytes"] == cells * 16 * 2
    assert rows["tokens 0.3"]["tokens_per_step"] < rows["latents"]["tokens_per_step"]
    assert all(len(row["error_each"]) == 2 and row["steps_per_second"] > 0 for row in rows.values())
    assert made["without a network"]["the true slots"]["error"] == 0
    page.write_text(f"before\n{example['table'].BEGIN}old\n{example['table'].END}after\n")
    example["table"].main([str(out), "--into", str(page)])
    assert page.read_text().startswith("before\n") and page.read_text().endswith("after\n")
    assert "tokens alone, 30%" in page.read_text() and "old" not in page.read_text()


def test_a_network_that_changes_nothing_repeats_the_last_cell(example: dict[str, Any], world: Any) -> None:
    """So it begins, whatever it is shown: the last slot of latents, and of tokens the cell kept last."""
    rows = torch.arange(4)
    for kind in KINDS:
        clips = world.clips(kind)
        found = tiny(example, world)(clips.past(rows, 3))
        last = clips.z_BCTHW[rows, :, :3]
        if kind.startswith("tokens"):
            last = hold(last, clips.keep_BTHW[rows, :3])
        assert torch.equal(found, last[:, :, 2:]), kind


def test_tokens_are_what_a_reader_of_the_file_gets(example: dict[str, Any], world: Any) -> None:
    z, keep = world.z_BCTHW[:2], world.keeps["0.3"][:2]
    read = example["data"].as_read(z, keep)
    info = VideoInfo(width=32, height=32, fps=24, frames=17)
    for z_CTHW, keep_THW, found in zip(z, keep, read, strict=True):
        values, recipe = z_CTHW.movedim(0, -1)[keep_THW], Recipe(backbone="-", weight_hash="-", tau=0)
        wanted = as_stored(Tokens(values=values, mask=keep_THW, info=info, recipe=recipe))
        assert torch.equal(found.movedim(0, -1)[keep_THW], wanted.values) and not torch.equal(wanted.values, values)
        assert not found.movedim(0, -1)[~keep_THW].any()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_test_shows_knows_nothing_of_the_future(example: dict[str, Any], world: Any, kind: str) -> None:
    before = world.clips(kind, world.past)
    z = world.z_BCTHW.clone()
    z[:, :, world.past :] = 0
    after = replace(world, z_BCTHW=z).clips(kind, world.past)
    assert torch.equal(before.z_BCTHW, after.z_BCTHW) and before.z_BCTHW.shape[2] == world.past


def test_a_clip_is_foretold_the_same_alone_and_in_company(example: dict[str, Any], world: Any) -> None:
    net = tiny(example, world)
    torch.nn.init.normal_(net.head.weight, std=0.1)
    clips = world.clips("tokens 0.3")
    together = net(clips.past(torch.arange(3), 4))
    alone = torch.cat([net(clips.past(torch.tensor([i]), 4)) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_it_can_learn_by_heart(example: dict[str, Any]) -> None:
    """Two clips, tokens alone, of which a third is kept: what comes next is what it was told."""
    rng = torch.Generator().manual_seed(0)
    z, keep = torch.randn(2, 4, 3, 2, 2, generator=rng), torch.rand(2, 3, 2, 2, generator=rng) < 0.3
    keep[:, 0] = True
    net = example["model"].WorldModel(
        example["model"].ModelConfig(channels=4, future=1, width=24, depth=1, heads=2, attention="masked")
    )
    target = torch.randn(2, 4, 1, 2, 2, generator=rng)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(80):
        loss = torch.nn.functional.mse_loss(net(pack_kept(z, keep)), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.05


def test_files_of_others_are_refused(example: dict[str, Any], prepared: Path, tmp_path: Path) -> None:
    load, broken = example["data"].World.load, tmp_path / "broken.safetensors"
    with pytest.raises(UsageError, match=r"unknown kind of training set 'filled 0\.9'"):
        example["train"].main([str(prepared), "--kinds", "filled 0.9"])
    with pytest.raises(UsageError, match=r"no such file; make it with prepare\.py"):
        load(tmp_path / "none", "cpu")
    write_atomic(broken, prepared.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"make it again"):
        load(broken, "cpu")
    data = prepared.read_bytes()
    at = data.index(b"weight_hash") + len(b'weight_hash\\": \\"')
    write_atomic(broken, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(UsageError, match=r"prepare it again"):
        load(broken, "cpu")


def test_training_needs_neither_pyav_nor_constriction(prepared: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.modules |= {'av': None, 'constriction': None, 'PIL': None}; "
        "import train; train.main([sys.argv[2], '--steps', '1', '--seeds', '1', '--width', '24', '--depth', '1', "
        "'--heads', '2', '--batch', '2'])"
    )
    subprocess.run([sys.executable, "-c", code, str(FOLDER), str(prepared)], check=True, capture_output=True)


def test_the_table_of_the_page_is_that_of_the_record(example: dict[str, Any]) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    name = page.split("benchmarks/world_model_")[1].split(")")[0]
    record = json.loads((FOLDER.parents[1] / "benchmarks" / f"world_model_{name}").read_text(encoding="utf-8"))
    assert example["table"].put(page, example["table"].table(record)) == page


def tiny(example: dict[str, Any], world: Any) -> Any:
    config = example["model"].ModelConfig(
        channels=world.z_BCTHW.shape[1], future=1, width=24, depth=1, heads=2, attention="nested"
    )
    return example["model"].WorldModel(config)
