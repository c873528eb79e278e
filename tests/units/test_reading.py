# SPDX-License-Identifier: Apache-2.0
"""Reading tokens back: all kinds of sources give the same samples, dense ones are a trainer's own, damage is told."""

from __future__ import annotations

import io
import tarfile
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from inlay.container import save, to_bytes
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, MissingError, TokenFileError, UsageError
from inlay.pack import ShapeSampler, TokenBudgetSampler
from inlay.scale import layout
from inlay.scale.layout import VideoRecord
from inlay.scale.reading import TokenDataset, collate_dense, collate_sparse, list_members
from inlay.types import Recipe, Span, VideoInfo
from tests.conftest import moving_square

COUNT, PER_SHARD = 23, 5


def made(i: int, *, side: int = 2, fill: str = "hold") -> Tokens:
    rng = torch.Generator().manual_seed(i)
    mask = torch.rand(3, side, side, generator=rng) < 0.3
    mask[0] = True
    return Tokens(
        values=torch.randn(int(mask.sum()), 4, generator=rng),
        mask=mask,
        info=VideoInfo(width=side * 8, height=side * 8, fps=Fraction(30000, 1001), frames=9),
        recipe=Recipe(backbone="none", weight_hash="0", tau=0.1, precision="fp32", fill=fill),
    )


def record(i: int, tokens: Tokens, size: int, **more: Any) -> VideoRecord:
    info = tokens.info
    return VideoRecord(
        key=layout.video_key(i),
        source=f"clip {i}.mp4",
        sha256=f"{i:064x}",
        frames=info.frames,
        width=info.width,
        height=info.height,
        fps=f"{info.fps.numerator}/{info.fps.denominator}",
        tokens=len(tokens),
        cells=tokens.cells,
        keep_rate=tokens.keep_rate,
        bytes=size,
        caption=f"a caption, ç {i}" if i % 2 else None,
        **more,
    )


def write_set(folder: Path, clips: list[Tokens], form: str = "tar") -> Path:
    """What `inlay tokenize` would write."""
    (folder / layout.SHARDS).mkdir(parents=True)
    records: list[VideoRecord] = []
    for first in range(0, len(clips), PER_SHARD):
        name = layout.shard_name(first // PER_SHARD, form)
        rows = list(enumerate(clips))[first : first + PER_SHARD]
        write = write_tar if form == "tar" else write_parquet
        records += [replace(r, shard=name) for r in write(folder / name, rows)]
    (folder / layout.MANIFEST).write_text("".join(r.line() + "\n" for r in records), encoding="utf-8")
    told = {
        "layout_version": layout.LAYOUT_VERSION, "format": form, "recipe": {}, "options": {}, "quarantined": 0,
        "videos": len(clips), "frames": 9 * len(clips), "tokens": 0, "cells": 0, "keep_rate": 0.5, "bytes": 0,
        "latent_count": 1, "latent_mean": [0.5, 0, 0, -1], "latent_std": [1, 2, 1, 0.5], "shards": [],
    }  # fmt: skip
    (folder / layout.DATASET).write_text(layout.dump(told))
    return folder


def write_tar(path: Path, rows: list[tuple[int, Tokens]]) -> list[VideoRecord]:
    records = []
    with tarfile.open(path, "w") as tar:
        for i, tokens in rows:
            data = to_bytes(tokens)
            entry = record(i, tokens, len(data))
            note = {k: v for k, v in asdict(entry).items() if k not in ("shard", "offset")}
            offset = 0
            for suffix, content in (("inlay", data), ("json", layout.dump(note).encode())):
                info = tarfile.TarInfo(f"{entry.key}.{suffix}")
                info.size = len(content)
                if suffix == "inlay":
                    offset = tar.offset + tarfile.BLOCKSIZE
                tar.addfile(info, io.BytesIO(content))
            records.append(replace(entry, offset=offset))
    return records


def write_parquet(path: Path, rows: list[tuple[int, Tokens]]) -> list[VideoRecord]:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = [to_bytes(tokens) for _, tokens in rows]
    records = [
        record(i, tokens, len(d), offset=row) for row, ((i, tokens), d) in enumerate(zip(rows, data, strict=True))
    ]
    columns = [asdict(r) | {layout.TOKENS_COLUMN: d} for r, d in zip(records, data, strict=True)]
    parquet.write_table(arrow.Table.from_pylist(columns), path, row_group_size=2)
    return records


@pytest.fixture(scope="module")
def clips() -> list[Tokens]:
    return [made(i) for i in range(COUNT)]


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory, clips: list[Tokens]) -> Path:
    return write_set(tmp_path_factory.mktemp("sets") / "tars", clips)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, clips: list[Tokens]) -> Path:
    return write_set(tmp_path_factory.mktemp("sets") / "tables", clips, "parquet")


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory, clips: list[Tokens]) -> Path:
    folder = tmp_path_factory.mktemp("loose")
    for i, tokens in enumerate(clips):
        (folder / f"{i % 3}").mkdir(exist_ok=True)
        save(tokens, folder / f"{i % 3}" / f"{layout.video_key(i)} é.inlay")
    return folder


def source_of(kind: str, tars: Path, tables: Path, loose: Path) -> Any:
    """The same clips from every place they can lie in."""
    if kind.startswith("memory"):
        fs = pytest.importorskip("fsspec").filesystem("memory")
        if not fs.exists("/tars"):
            fs.put(str(tars), "/tars", recursive=True)
            fs.put(str(loose), "/loose", recursive=True)
    return {
        "set of tars": tars,
        "set of tables": tables,
        "tars alone": tars / layout.SHARDS,
        "tables alone": tables / layout.SHARDS,
        "list of tars": sorted((tars / layout.SHARDS).glob("*.tar")),
        "loose files": loose,
        "memory set": "memory://tars",
        "memory tars": "memory://tars/shards",
        "memory files": "memory://loose",
    }[kind]


KINDS = [
    "set of tars", "set of tables", "tars alone", "tables alone", "list of tars", "loose files", "memory set",
    "memory tars", "memory files",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_every_clip(kind: str, tars: Path, tables: Path, loose: Path, clips: list[Tokens]) -> None:
    data = TokenDataset(source_of(kind, tars, tables, loose))
    assert len(data) == COUNT
    seen = set()
    for i in range(len(data)):
        sample = data[i]
        number = int(sample.key.split("/")[-1].split(" ")[0])
        seen.add(number)
        assert torch.equal(sample.tokens.values, clips[number].values)
        assert torch.equal(sample.tokens.mask, clips[number].mask)
        assert sample.record.tokens == len(clips[number]) and sample.record.fps == "30000/1001"
        if "files" not in kind:
            assert sample.record.caption == (f"a caption, ç {number}" if number % 2 else None)
    assert seen == set(range(COUNT))
    assert sorted(data.token_counts) == sorted(map(len, clips))
    assert set(data.shapes) == {(9, 16, 16, 12)}


def test_a_budget_sampler_and_workers_pack_the_whole_set(tars: Path, clips: list[Tokens]) -> None:
    data = TokenDataset(tars)
    sampler = TokenBudgetSampler(data.token_counts, budget=40)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate_sparse, num_workers=2)
    batches = list(loader)
    assert sorted(int(r.key) for b in batches for r in b.records) == list(range(COUNT))
    assert all(len(b.packed.values) <= 40 for b in batches)
    first = batches[0]
    assert torch.equal(first.packed[1].values, clips[int(first.records[1].key)].values)


# --- dense ----------------------------------------------------------------------------------------------------------


def test_dense_latents_are_those_of_the_tokenizer(tiny_tokenizer: Any, tmp_path: Path) -> None:
    tokens = tiny_tokenizer.encode(moving_square(41, 32, 40), tau=0.5, precision="fp32")  # two chunks
    assert 0.3 < tokens.keep_rate < 0.9
    save(tokens, tmp_path / "clip.inlay")
    for fill in ("hold", "linear", "auto"):
        sample = TokenDataset(tmp_path, mode="dense", fill=fill)[0]
        want = tiny_tokenizer.fill(tokens, fill=None if fill == "auto" else fill)[0]
        assert torch.equal(sample["latents"], want)
        assert not sample["latents"].is_inference()
    assert (sample["num_frames"], sample["height"], sample["width"]) == (41, 32, 40)


def test_dense_latents_of_chunks_that_go_on(tiny_tokenizer: Any, tmp_path: Path) -> None:
    from inlay.codec import EncodeConfig, Encoder

    encoder = Encoder(tiny_tokenizer, EncodeConfig(mode="dual-cache", chunk_frames=9), tau=0.5)
    video = moving_square(27, 32, 32)
    tokens = Tokens.join([*encoder.push(video), *encoder.flush()])
    assert not all(s.key for s in tokens.spans) and tokens.keep_rate < 0.9
    path = save(tokens, tmp_path / "clip.inlay")
    sample = TokenDataset(path, mode="dense", fill="hold")[0]
    stored = TokenDataset(path)[0].tokens
    assert torch.equal(sample["latents"], tiny_tokenizer.fill(stored, fill="hold")[0])


def test_a_lit_fills_without_its_backbone(tiny_tokenizer: Any, tmp_path: Path) -> None:
    from inlay.fill import Lit, LitConfig, save_lit

    tokens = tiny_tokenizer.encode(moving_square(9, 32, 32), tau=0.5, precision="fp32")
    save(tokens, tmp_path / "clip.inlay")
    config = LitConfig(channels=tokens.channels, kind="plus", width=32, heads=2)
    lit = Lit.build(config)
    with torch.no_grad():
        for p in lit.parameters():
            p.add_(0.1)
    weights = tmp_path / "a.safetensors"
    save_lit(weights, lit, {"backbone_hash": tiny_tokenizer.spec.weight_hash}, stored="fp32")
    sample = TokenDataset(tmp_path / "clip.inlay", mode="dense", fill="lit", weights=str(weights))[0]
    lit.eval()
    with torch.inference_mode():
        want = lit(tokens.dense(), tokens.mask[None], tokens.recipe.tau)[0]
    assert torch.allclose(sample["latents"], want, atol=1e-6)
    hold = TokenDataset(tmp_path / "clip.inlay", mode="dense", fill="hold")[0]["latents"]
    assert not torch.allclose(sample["latents"], hold)
    save_lit(tmp_path / "b.safetensors", lit, {"backbone_hash": "another"})
    with pytest.raises(MissingError, match="another"):
        TokenDataset(tmp_path / "clip.inlay", mode="dense", fill="lit", weights=str(tmp_path / "b.safetensors"))[0]
    with pytest.raises(MissingError, match="no weights"):
        TokenDataset(tmp_path / "clip.inlay", mode="dense", fill="lit", weights=str(tmp_path))[0]


def test_layouts_are_those_of_the_trainers(tars: Path, clips: list[Tokens]) -> None:
    z = TokenDataset(tars, mode="dense")[3]["latents"]
    assert z.shape == (4, 3, 2, 2) and z.dtype == torch.float32
    kept = clips[3].mask
    assert torch.equal(z.permute(1, 2, 3, 0)[kept], clips[3].values)

    ltx = TokenDataset(tars, mode="dense", layout="ltx")[3]
    assert list(ltx) == ["latents", "num_frames", "height", "width", "fps"]
    assert ltx["latents"].dtype == torch.bfloat16 and torch.equal(ltx["latents"], z.bfloat16())
    assert (ltx["num_frames"], ltx["height"], ltx["width"]) == (3, 2, 2) and ltx["fps"] == pytest.approx(
        29.97, abs=0.01
    )

    row = TokenDataset(tars, mode="dense", layout="fastvideo", also=lambda r: {"text_embedding_bytes": b"x"})[3]
    back = np.frombuffer(row["vae_latent_bytes"], dtype=row["vae_latent_dtype"]).reshape(row["vae_latent_shape"])
    assert np.array_equal(back, z.numpy())
    assert row["caption"] == "a caption, ç 3" and row["media_type"] == "video" and row["num_frames"] == 3
    assert row["duration_sec"] == pytest.approx(9 * 1001 / 30000) and row["text_embedding_bytes"] == b"x"

    nemo = TokenDataset(tars, mode="dense", layout="nemo", dtype=torch.float32)[2]
    assert nemo["__key__"] == "00000002" and nemo["pth"].shape == (4, 3, 2, 2) and nemo["json"]["caption"] == ""


def test_latents_come_normalised_by_the_statistics_of_the_set(tars: Path, loose: Path) -> None:
    raw = TokenDataset(tars, mode="dense")[0]["latents"]
    data = TokenDataset(tars, mode="dense", normalise=True)
    mean, std = (torch.tensor(x).view(4, 1, 1, 1) for x in ([0.5, 0, 0, -1], [1, 2, 1, 0.5]))
    assert torch.allclose(data[0]["latents"], (raw - mean) / std)
    assert data.dataset is not None and data.dataset.latent_std == [1, 2, 1, 0.5]
    with pytest.raises(UsageError, match="mean and std"):
        TokenDataset(loose, mode="dense", normalise=True)


def test_dense_batches_stack_clips_of_one_shape(tmp_path: Path) -> None:
    clips = [made(i, side=2 + i % 2) for i in range(11)]
    data = TokenDataset(write_set(tmp_path / "mixed", clips), mode="dense")
    sampler = ShapeSampler(data.shapes, batch_size=4)
    batches = list(DataLoader(data, batch_sampler=sampler, collate_fn=collate_dense))
    assert sorted(k for b in batches for k in b["key"]) == [layout.video_key(i) for i in range(11)]
    assert {tuple(b["latents"].shape[3:]) for b in batches} == {(2, 2), (3, 3)}
    with pytest.raises(UsageError, match="one shape"):
        collate_dense([data[0], data[1]])


def test_latents_of_a_kind_no_trainer_reads_are_refused(tars: Path) -> None:
    for wrong in (torch.int8, "float16"):
        with pytest.raises(ConfigError, match="floating-point numbers"):
            TokenDataset(tars, mode="dense", dtype=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"fastvideo is read as torch\.float32 whatever it says"):
        TokenDataset(tars, mode="dense", layout="fastvideo", dtype=torch.bfloat16)
    TokenDataset(tars, mode="dense", layout="fastvideo", dtype=torch.float32)


def test_samples_and_batches_print_no_numbers(tars: Path) -> None:
    data = TokenDataset(tars)
    assert repr(data.dataset).startswith(f"DatasetRecord({COUNT} videos") and len(repr(data.dataset)) < 150
    assert repr(data[0]).startswith("TokenSample(clip 0.mp4: Tokens(")
    assert repr(collate_sparse([data[0], data[1]])).startswith("SparseBatch(Packed(2 clips, float32[")


def test_clips_of_one_length_with_other_chunks_are_not_stacked(tmp_path: Path) -> None:
    """A scene cut begins a key chunk, so that as many frames take more slots."""
    chunks = (Span(slots=2, frames=5), Span(slots=2, frames=4))
    cut = replace(made(1), mask=torch.ones(4, 2, 2, dtype=torch.bool), values=torch.zeros(16, 4), spans=chunks)
    data = TokenDataset(write_set(tmp_path / "cuts", [made(0), cut, made(2), cut]), mode="dense")
    sampler = ShapeSampler(data.shapes, batch_size=4)
    batches = list(DataLoader(data, batch_sampler=sampler))
    assert sorted(tuple(b["latents"].shape) for b in batches) == [(2, 4, 3, 2, 2), (2, 4, 4, 2, 2)]


# --- damage ---------------------------------------------------------------------------------------------------------


def damage(folder: Path, row: int, keep: int = 0) -> None:
    """Flip a byte in the middle of one token file."""
    member = list_members(folder).members[row]
    path = Path(member.place)
    data = bytearray(path.read_bytes())
    data[member.offset + (member.size or 0) // 2] ^= 0xFF
    path.write_bytes(data)


def test_a_damaged_member_is_named_or_skipped_and_counted(tmp_path: Path, clips: list[Tokens]) -> None:
    folder = write_set(tmp_path / "set", clips)
    damage(folder, 7)
    data = TokenDataset(folder)
    with pytest.raises(TokenFileError, match=r"shard-00001\.tar: 00000007"):
        data[7]
    assert data[8].key == "00000008"
    data = TokenDataset(folder, damaged="skip")
    loader = DataLoader(data, batch_size=4, collate_fn=collate_sparse, num_workers=1)
    keys = [r.key for b in loader for r in b.records]
    assert len(keys) == COUNT - 1 and "00000007" not in keys
    assert data.skipped == 1
    assert collate_sparse([data[7]]) is None and data.skipped == 2


def test_a_shard_cut_short_spoils_only_what_was_cut(tmp_path: Path, clips: list[Tokens]) -> None:
    folder = write_set(tmp_path / "set", clips)
    member = list_members(folder).members[8]
    with Path(member.place).open("r+b") as file:
        file.truncate(member.offset + 10)
    data = TokenDataset(folder)
    assert data[7].key == "00000007"
    with pytest.raises(TokenFileError, match="ends after 10 of"):
        data[8]
    with pytest.raises(TokenFileError, match="not a whole tar"):
        TokenDataset(folder / layout.SHARDS)


def test_a_damaged_table_is_told(tmp_path: Path, clips: list[Tokens]) -> None:
    folder = write_set(tmp_path / "set", clips[:6], "parquet")
    shard = folder / layout.shard_name(0, "parquet")
    shard.write_bytes(shard.read_bytes()[:-20])
    data = TokenDataset(folder)
    with pytest.raises(TokenFileError, match=r"shard-00000\.parquet"):
        data[0]
    assert data[5].key == "00000005"


def test_what_is_not_a_data_set_is_refused(tmp_path: Path, clips: list[Tokens]) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        TokenDataset(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no token files"):
        TokenDataset(tmp_path)
    folder = write_set(tmp_path / "set", clips)
    lines = (folder / layout.MANIFEST).read_text().splitlines(keepends=True)
    (folder / layout.MANIFEST).write_text("".join(lines[1:]))
    with pytest.raises(TokenFileError, match="counts 23 videos"):
        TokenDataset(folder)
    (folder / layout.DATASET).unlink()
    with pytest.raises(TokenFileError, match="has not ended"):
        TokenDataset(folder)
    (folder / layout.shard_name(0, "tar")).unlink()
    (folder / layout.DATASET).write_text("{}")
    with pytest.raises(TokenFileError, match="damaged"):
        TokenDataset(folder)
    for wrong in ({"normalise": True}, {"fill": "hold"}, {"dtype": torch.float16}, {"also": lambda record: {}}):
        with pytest.raises(UsageError, match="give mode='dense' as well"):
            TokenDataset(folder / layout.SHARDS, **wrong)
    for wrong in ({"mode": "thick"}, {"fill": "glue"}, {"layout": "wan"}, {"damaged": "mend"}):
        with pytest.raises(UsageError, match="choices"):
            TokenDataset(folder / layout.SHARDS, **wrong)


def test_a_missing_shard_is_an_error_even_where_damage_is_skipped(tmp_path: Path, clips: list[Tokens]) -> None:
    folder = write_set(tmp_path / "set", clips)
    (folder / layout.shard_name(0, "tar")).unlink()
    with pytest.raises(UsageError, match="does not exist"):
        TokenDataset(folder, damaged="skip")[0]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_what_inlay_tokenize_wrote_is_read(tmp_path: Path, form: str) -> None:
    from inlay.cli.main import main

    (tmp_path / "videos").mkdir()
    for i in range(3):
        moving_square(9 + i, 32, 32, seed=i).save(tmp_path / "videos" / f"{i}.mp4")
    options = [
        "--backbone",
        "mini-untrained",
        "--tau",
        "0.5",
        "--workers",
        "1",
        "--format",
        form,
        "--shard-videos",
        "2",
    ]
    assert main(["tokenize", str(tmp_path / "videos"), str(tmp_path / "out"), *options]) == 0
    data = TokenDataset(tmp_path / "out")
    assert [data[i].record.source for i in range(3)] == ["0.mp4", "1.mp4", "2.mp4"]
    assert [len(data[i].tokens) for i in range(3)] == data.token_counts.tolist()
    dense = TokenDataset(tmp_path / "out", mode="dense", normalise=True)
    assert dense[0]["latents"].shape == (16, 3, 4, 4)


@pytest.mark.slow
def test_workers_may_be_spawned(tars: Path) -> None:
    data = TokenDataset(tars, damaged="skip")
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "collate_fn": collate_sparse, "batch_size": 8}
    assert sum(len(b) for b in DataLoader(data, **options)) == COUNT  # type: ignore[arg-type]
