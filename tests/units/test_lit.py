# SPDX-License-Identifier: Apache-2.0
"""LIT's size, its positions, its tiles, and its weight file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.errors import ConfigError, MissingError, ShapeError, UsageError
from inlay.fill import Filler, Lit, LitConfig, hold, load_lit, paper, paper_small, plus, save_lit
from inlay.fill.filler import LONGEST
from inlay.fill.lit import rope_tables, rotate
from inlay.masking import Profile
from inlay.tokenizer import find_profile


def parameters(config: LitConfig) -> float:
    with torch.device("meta"):
        return sum(p.numel() for p in Lit.build(config).parameters()) / 1e6


def test_sizes_are_those_of_the_text() -> None:
    assert parameters(paper()) == pytest.approx(8.01, abs=0.01)
    assert parameters(paper_small()) == pytest.approx(2.68, abs=0.01)
    assert parameters(plus()) < 6


def test_rotation_tells_only_the_offset() -> None:
    q, k = torch.randn(2, 1, 1, 1, 24)
    cos, sin = rope_tables((10,), (24,), q)

    def score(i: int, j: int) -> torch.Tensor:
        return (rotate(q, (cos[i : i + 1], sin[i : i + 1])) * rotate(k, (cos[j : j + 1], sin[j : j + 1]))).sum()

    torch.testing.assert_close(score(1, 4), score(6, 9))
    assert not torch.isclose(score(1, 4), score(1, 5))


def test_two_axes_have_tables_of_their_own() -> None:
    cos, sin = rope_tables((2, 3), (12, 12), torch.zeros(1))
    assert cos.shape == sin.shape == (6, 12)
    assert torch.equal(cos[0], torch.ones(12))
    assert torch.equal(cos[1, :6], torch.ones(6))  # (y, x) = (0, 1): only the x half turns
    assert (cos[1, 6:] < 1).any()


def test_shift_by_a_window_shifts_plus() -> None:
    """Inside, `plus` sees windows only: moving the picture by a whole window moves the answer."""
    lit = Lit.build(LitConfig(channels=4, width=64, heads=2, blocks=1, window=4, grid=64)).eval()
    torch.nn.init.normal_(lit.out_proj.weight)
    z, keep = torch.randn(1, 4, 3, 8, 24), torch.rand(1, 3, 8, 24) < 0.5
    keep[:, 0] = True
    with torch.inference_mode():
        a = lit(z, keep, 0.3)
        b = lit(z.roll(4, -1), keep.roll(4, -1), 0.3).roll(-4, -1)
    torch.testing.assert_close(a[..., 4:16], b[..., 4:16], rtol=1e-4, atol=1e-4)


def test_weight_file_round_trip_and_refusals(tmp_path: Path) -> None:
    lit = Lit.build(LitConfig(kind="paper", channels=4, width=48, heads=2, blocks=1)).eval().requires_grad_(False)
    save_lit(tmp_path / "lit.safetensors", lit, {"note": "x"}, stored="fp32")
    back = load_lit(tmp_path / "lit.safetensors")
    z, keep = torch.randn(1, 4, 3, 5, 5), torch.rand(1, 3, 5, 5) < 0.6
    assert torch.equal(back(z, keep), lit(z, keep))
    save_lit(tmp_path / "small.safetensors", lit, stored="int8")
    small = load_lit(tmp_path / "small.safetensors")
    error = (small(z, keep) - lit(z, keep)).norm() / lit(z, keep).norm()
    assert 0 < error < 0.03
    assert small.weight_hash != back.weight_hash
    raw = (tmp_path / "lit.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        load_lit(tmp_path / "cut.safetensors")
    other = Lit.build(replace(lit.config, width=96))
    from inlay.weightfile import fill_module, load_weights

    with pytest.raises(UsageError, match=r"tensor in_proj.bias has shape \(48,\), the network needs \(96,\)"):
        fill_module(other, load_weights(tmp_path / "lit.safetensors"), source="lit.safetensors")


def test_settings_and_shapes_are_checked() -> None:
    with pytest.raises(UsageError, match="unknown LIT"):
        LitConfig(kind="big")
    with pytest.raises(ConfigError, match="head size"):
        LitConfig(width=100, heads=3)
    with pytest.raises(ShapeError, match="not of one grid"):
        Lit.build(LitConfig(channels=4, width=64, heads=2))(torch.zeros(1, 4, 2, 3, 3), torch.ones(1, 2, 3, 4).bool())


def test_paper_looks_no_further_than_the_grid_it_learnt_on() -> None:
    small = {"channels": 4, "width": 32, "heads": 1, "blocks": 1}
    paper_lit, plus_lit = (Lit.build(LitConfig(kind=kind, **small)).eval() for kind in ("paper", "plus"))
    z, keep = torch.randn(1, 4, 3, 12, 24), torch.ones(1, 3, 12, 24).bool()
    other = torch.cat([z[..., :-1], z[..., -1:] + 1], dim=-1)

    def reaches_across() -> bool:
        with torch.inference_mode():
            return not torch.equal(paper_lit(z, keep)[..., 0], paper_lit(other, keep)[..., 0])

    assert reaches_across()
    for lit in (paper_lit, plus_lit):
        lit.trained_on(12)
    assert not reaches_across()
    assert (paper_lit.config.grid, plus_lit.config.grid) == (12, 32)
    paper_lit.trained_on(4)
    assert paper_lit.config.grid == 9, "a window is larger than what it shares with the next"


def test_a_long_chunk_is_filled_piece_by_piece_as_a_stream_is() -> None:
    """Time and memory follow its length; without pieces they would follow its square."""
    lit = Lit.build(LitConfig(channels=4, width=32, heads=2, blocks=1, window=4)).eval().requires_grad_(False)
    torch.nn.init.normal_(lit.out_proj.weight)
    filler = Filler({"lit": lit})
    z, keep = torch.randn(2, 4, 2 * LONGEST + 3, 4, 8), torch.rand(2, 2 * LONGEST + 3, 4, 8) < 0.3
    keep[:, 0] = True
    found, held = filler.fill(z, keep, 0.3), hold(z, keep)
    assert torch.equal(found[:, :, :LONGEST], filler.fill(z[:, :, :LONGEST], keep[:, :LONGEST], 0.3))
    at = slice(LONGEST, 2 * LONGEST)
    led = torch.cat([held[:, :, LONGEST - 1 : LONGEST], z[:, :, at]], dim=2)
    kept = torch.cat([torch.ones_like(keep[:, :1]), keep[:, at]], dim=1)
    assert torch.equal(found[:, :, at], filler.fill(led, kept, 0.3)[:, :, 1:])
    assert found.shape == z.shape and torch.equal(found.movedim(1, -1)[keep], z.movedim(1, -1)[keep])


def test_a_lit_of_your_own_backbone_is_found_and_one_that_is_not_is_explained(tmp_path: Path, caplog) -> None:
    mine = "my_module:MyBackbone"
    with pytest.raises(
        MissingError, match=r"they would be my_module-MyBackbone\.lit\.safetensors, in the folder given"
    ):
        Filler.load([tmp_path], mine, "one", default="lit")
    lit = Lit.build(LitConfig(channels=4, width=32, heads=2, blocks=1))
    place = tmp_path / "my_module-MyBackbone.lit.safetensors"
    save_lit(place, lit, {"backbone_hash": "one"})
    assert Filler.load([tmp_path], mine, "one").default == "lit"
    with pytest.raises(
        MissingError, match=r"MyBackbone\.lit\.safetensors is for a backbone with weights one, these are two"
    ):
        Filler.load([tmp_path], mine, "two", default="lit")
    assert not caplog.text, "the last folder is the package's own, where a LIT of others is nothing new"
    assert Filler.load([tmp_path, tmp_path / "weights"], mine, "two").default == "hold"
    assert "MyBackbone.lit.safetensors is for a backbone with weights one, these are two" in caplog.text
    Profile(backbone=mine, weight_hash="one", tau=0.7).save(tmp_path / "my_module-MyBackbone.profile.json")
    found = find_profile([tmp_path], mine, "one")
    assert found is not None and found.tau == 0.7


def test_a_lit_of_other_channels_than_the_backbone_s_is_refused() -> None:
    lit = Lit.build(LitConfig(channels=4, width=32, heads=2, blocks=1))
    with pytest.raises(ConfigError, match="for latents of 4 channels, and the backbone's have 8; build it with"):
        lit.set_statistics((0.0,) * 8, (1.0,) * 8)
