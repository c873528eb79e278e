# SPDX-License-Identifier: Apache-2.0
"""What every backbone promises; one that is causal, stateful or still must prove it, exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inlay.backbones import BACKBONES, WEIGHTS, Backbone, load_backbone
from inlay.errors import MissingError, ShapeError, UsageError
from tests.conftest import moving_square, still


@pytest.fixture(scope="module", params=list(BACKBONES))
def backbone(request: pytest.FixtureRequest) -> Backbone:
    if request.param == "mini" and not (WEIGHTS / "mini.safetensors").is_file():
        pytest.skip("the trained weights of mini are not in this checkout")
    return load_backbone(request.param)


class TestBackbone:
    def test_spec_is_truthful(self, backbone: Backbone) -> None:
        s = backbone.spec
        x = moving_square(s.frames(3), 4 * s.space_stride, 5 * s.space_stride).pixels()
        z = backbone.encode(x)
        assert z.shape == (1, s.channels, 3, *s.grid(*x.shape[3:]))
        assert backbone.decode(z).shape == x.shape
        assert len(s.weight_hash) == 16
        if isinstance(backbone, torch.nn.Module):
            assert s.parameters == sum(p.numel() for p in backbone.parameters())
            assert not any(p.requires_grad for p in backbone.parameters())

    def test_slots_and_frames_are_inverse(self, backbone: Backbone) -> None:
        s = backbone.spec
        assert [s.slots(s.frames(t)) for t in range(1, 20)] == list(range(1, 20))
        assert s.slots(s.frames(3) + 1) == 4

    def test_is_deterministic_and_batch_does_not_matter(self, backbone: Backbone) -> None:
        x = torch.cat([moving_square(9, 32, 32, seed=i).pixels() for i in range(3)])
        z = backbone.encode(x)
        assert torch.equal(z, backbone.encode(x))
        torch.testing.assert_close(z[1:2], backbone.encode(x[1:2]), rtol=1e-4, atol=1e-4)

    def test_still_video_gives_latents_constant_in_time(self, backbone: Backbone) -> None:
        z = backbone.encode(still(33, 48, 64).pixels())
        assert torch.equal(z, z[:, :, :1].expand_as(z))

    def test_causal(self, backbone: Backbone) -> None:
        assert backbone.spec.causal
        x = moving_square(33, 32, 40).pixels()
        changed = x.clone()
        changed[:, :, 17:] = torch.rand_like(changed[:, :, 17:])
        a, b = backbone.encode(x), backbone.encode(changed)
        assert torch.equal(a[:, :, :5], b[:, :, :5])
        assert not torch.equal(a[:, :, 5:], b[:, :, 5:])
        p, q = backbone.decode(a), backbone.decode(b)
        assert torch.equal(p[:, :, :17], q[:, :, :17])

    def test_state_carries_over_every_cut(self, backbone: Backbone) -> None:
        if not backbone.spec.stateful:
            pytest.skip(f"{backbone.spec.name} carries no state")
        x = moving_square(17, 32, 32, speed=1).pixels()
        whole = backbone.encode(x)
        video = backbone.decode(whole)
        for cut in range(1, 5):
            frames = backbone.spec.frames(cut)
            a, state = backbone.encode_next(x[:, :, :frames], None)  # type: ignore[attr-defined]
            b, _ = backbone.encode_next(x[:, :, frames:], state)  # type: ignore[attr-defined]
            assert torch.equal(torch.cat([a, b], 2), whole)
            p, state = backbone.decode_next(whole[:, :, :cut], None)  # type: ignore[attr-defined]
            q, _ = backbone.decode_next(whole[:, :, cut:], state)  # type: ignore[attr-defined]
            assert torch.equal(torch.cat([p, q], 2), video)

    @pytest.mark.parametrize("shape", [(1, 3, 4, 32, 32), (1, 3, 5, 30, 32), (1, 1, 5, 32, 32), (3, 5, 32, 32)])
    def test_refuses_other_shapes(self, backbone: Backbone, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"T = 1 \+ 4k"):
            backbone.encode(torch.zeros(shape))
        with pytest.raises(ShapeError, match="decodes latents"):
            backbone.decode(torch.zeros(1, backbone.spec.channels + 1, 2, 4, 4))


def test_unknown_name_and_missing_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown backbone 'minni'; did you mean 'mini'"):
        load_backbone("minni")
    with pytest.raises(MissingError, match="no weights at"):
        load_backbone("mini", weights=tmp_path / "none.safetensors")
