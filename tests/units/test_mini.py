# SPDX-License-Identifier: Apache-2.0
"""mini's own parts: the block transform, the shift in time, the weight file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from inlay.backbones import Mini, MiniConfig, load_backbone, tiny
from inlay.backbones.mini import BlockDCT, shift_time
from inlay.errors import ConfigError, UsageError
from inlay.fill import Lit, LitConfig, save_lit
from inlay.kernels.rule import NEEDS
from inlay.weightfile import save_weights


def test_block_transform_is_orthonormal_and_inverts() -> None:
    dct = BlockDCT()
    torch.testing.assert_close(dct.basis @ dct.basis.t(), torch.eye(192), rtol=0, atol=1e-5)
    x = torch.rand(2, 3, 8, 16, 24) * 2 - 1
    torch.testing.assert_close(dct.inverse(dct.forward(x), 2), x, rtol=0, atol=1e-5)


def test_shift_reads_the_slot_before() -> None:
    h = torch.arange(2 * 3 * 4.0).view(6, 4, 1, 1)  # 2 clips of 3 slots, 4 channels
    out, last = shift_time(h, 3, 1, None)
    assert out[:, 0].flatten().tolist() == [0, 0, 4, 12, 12, 16]
    assert torch.equal(out[:, 1:], h[:, 1:])
    assert last.flatten().tolist() == [8, 20]


def test_weights_travel_by_file(tmp_path: Path) -> None:
    torch.manual_seed(3)
    mini = Mini(tiny()).eval()
    meta = {"config": asdict(mini.config), "latent_mean": [0.5] * 16, "latent_std": [2.0] * 16}
    save_weights(tmp_path / "mini.safetensors", mini.state_dict(), meta, stored="fp32")
    back = load_backbone("mini", weights=tmp_path / "mini.safetensors")
    x = torch.rand(1, 3, 5, 16, 16)
    with torch.inference_mode():
        assert torch.equal(back.encode(x), mini.encode(x))
    assert back.spec.latent_std == (2.0,) * 16
    assert back.spec.weight_hash == load_backbone("mini", weights=tmp_path / "mini.safetensors").spec.weight_hash


def test_weights_of_something_else_are_refused(tmp_path: Path) -> None:
    lit = Lit.build(LitConfig(channels=4, width=32, heads=2, blocks=1))
    save_lit(tmp_path / "lit.safetensors", lit)
    with pytest.raises(UsageError, match="holds no mini"):
        load_backbone("mini", weights=tmp_path / "lit.safetensors")


def test_untrained_is_the_same_everywhere() -> None:
    a, b = load_backbone("mini-untrained"), load_backbone("mini-untrained")
    assert a.spec == b.spec


def test_bfloat16_is_close() -> None:
    x = torch.rand(1, 3, 5, 32, 32) * 2 - 1
    with torch.inference_mode():
        a = load_backbone("mini-untrained").encode(x)
        b = load_backbone("mini-untrained", dtype=torch.bfloat16).encode(x.bfloat16())
    assert b.dtype == torch.bfloat16
    assert ((a - b.float()).norm() / a.norm()).item() < 0.05


def test_shape_of_the_network_is_checked() -> None:
    with pytest.raises(ConfigError, match="shift is the share"):
        MiniConfig(shift=0.8)


@pytest.mark.parametrize("half", ["encode", "decode"])
def test_slots_that_repeat_are_copied_and_are_the_same_to_the_bit(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A still video, one that changes and is still again, one corner that changes: copies only where nothing is new."""
    mini = load_backbone("mini-untrained")
    calls = {"encode": (3, 4, 3), "decode": (16, 1, 0)}
    channels, frames, missing = calls[half]
    torch.manual_seed(0)
    a, b = (torch.rand(1, channels, 1, 16, 24) * 2 - 1 for _ in range(2))
    corner = b.clone()
    corner[..., -1, -1] += 0.01
    slots = [a] * 3 + [b] * 8 + [corner] * 2
    x = torch.cat([slot.expand(-1, -1, frames, -1, -1) for slot in slots], 2)[:, :, missing:]
    network = mini.encoder if half == "encode" else mini.decoder
    runs: list[int] = []
    network.register_forward_hook(lambda *_: runs.append(1))
    with torch.inference_mode():
        quick, state = getattr(mini, f"{half}_next")(x, None)
        computed = len(runs)
        monkeypatch.setenv("INLAY_FAST", "0")
        plain, plain_state = getattr(mini, f"{half}_next")(x, None)
    assert len(runs) - computed == len(slots), "the plain form computes every slot"
    assert computed < len(slots)
    assert torch.equal(quick, plain)
    assert all(torch.equal(*pair) for pair in zip(state, plain_state, strict=True))
    assert not torch.equal(plain[:, :, -1], plain[:, :, -1 - 8 // frames]), "the corner is seen"


def test_how_far_the_decoder_sees() -> None:
    """A changed cell reaches as far as docs/speed.md says, in space and in time, and never further."""
    mini = load_backbone("mini-untrained")
    coarse, fine = mini.config.decoder_blocks
    cells, slots = 1 + 2 * coarse + (2 * fine + 1) / 2, coarse + fine
    z = torch.randn(1, 16, slots + 4, 24, 24)
    changed = z.clone()
    changed[:, :, 1, 12, 12] += 1
    with torch.inference_mode():
        moved = (mini.decode(changed) != mini.decode(z)).any(1)[0]  # [T, H, W]
    rows = moved.any(0).any(1).nonzero().flatten()
    assert int(rows.min()) >= (12 - cells) * 8 and int(rows.max()) < (13 + cells) * 8
    assert int(rows.min()) < (13 - cells) * 8, "as far as that"
    frames = moved.any(2).any(1).nonzero().flatten()
    assert int(frames.min()) >= 1 and int(frames.max()) <= 4 * (1 + slots), "slot 0 is one frame"
    assert int(frames.max()) > 4 * slots


def test_the_last_convolution_gives_pixels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With float32 everywhere the quick decoder is the plain one to rounding."""
    torch.manual_seed(0)
    mini = (
        Mini(MiniConfig(channels=16, decoder_coarse=32, decoder_fine=64, decoder_blocks=(1, 1)))
        .eval()
        .requires_grad_(False)
    )
    for p in mini.parameters():
        p.add_(0.02 * torch.randn_like(p))
    z = torch.randn(1, 16, 3, 8, 12)
    for need in ("vnni", "avx512_bf16"):
        monkeypatch.setitem(NEEDS, need, (lambda: False, "not here"))
    runs: list[int] = []
    mini.decoder.conv_out.register_forward_hook(lambda *_: runs.append(1))
    with torch.inference_mode():
        quick = mini.decode(z)
        assert not runs, "its kernels were taken, not the layer"
        monkeypatch.setenv("INLAY_FAST", "0")
        torch.testing.assert_close(quick, mini.decode(z), rtol=1e-4, atol=1e-4 * float(quick.abs().max()))
    assert len(runs) == 3


def test_slots_together_and_one_by_one_agree() -> None:
    mini = load_backbone("mini-untrained")
    x = torch.rand(2, 3, 17, 32, 40) * 2 - 1
    with torch.inference_mode():
        z = mini.encode(x)
        together, state = mini.encoder(torch.cat([x[:, :, :1].expand(-1, -1, 3, -1, -1), x], 2), None)
        torch.testing.assert_close(together, z, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mini.decoder(z, None)[0][:, :, 3:], mini.decode(z), rtol=1e-4, atol=1e-4)
    assert [s.shape[1] for s in state] == [8, 8]
