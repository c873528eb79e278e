# SPDX-License-Identifier: Apache-2.0
"""What every backbone promises, as a class of tests: yours passes them if you subclass it.

from inlay.backbones.contract import BackboneContract

class TestMine(BackboneContract):
    @pytest.fixture(scope="class")
    @classmethod
    def backbone(cls):
        return load_backbone("my_module:MyBackbone")
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inlay.backbones.base import Backbone, BackboneSpec
from inlay.errors import ShapeError, require


class BackboneContract:
    """Tests that take a fixture `backbone`; set the class attributes below to what yours promises."""

    tolerance: float = 1e-4  # of batches, causality and carried state, relative to the numbers; 0: equal bits
    still: float | None = None  # how far latents of a static video may move, likewise; None: no such promise
    cells: tuple[int, int] = (4, 5)  # grid of the test clips

    def clip(self, spec: BackboneSpec, slots: int, *, seed: int = 0) -> Tensor:
        """A square that travels over a smooth ground."""
        rows, columns = self.cells
        H, W = rows * spec.space_stride, columns * spec.space_stride
        coarse = torch.rand(1, 3, rows, columns, generator=torch.Generator().manual_seed(seed))
        ground = torch.nn.functional.interpolate(coarse, (H, W), mode="bilinear", align_corners=False)[0]
        x = (ground * 1.4 - 0.9)[None, :, None].repeat(1, 1, spec.frames(slots), 1, 1)
        side = max(H // 4, 1)
        for t in range(x.shape[2]):
            left = (2 * t) % (W - side)
            x[:, :, t, H // 3 : H // 3 + side, left : left + side] = 0.8
        return x

    def assert_close(self, a: Tensor, b: Tensor, tolerance: float) -> None:
        if tolerance == 0:
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))

    @torch.no_grad()
    def test_spec_is_truthful(self, backbone: Backbone) -> None:
        s = backbone.spec
        for slots in (1, 2, 3):
            x = self.clip(s, slots)
            z = backbone.encode(x)
            assert z.shape == (1, s.channels, slots, *s.grid(*x.shape[3:]))
            assert bool(torch.isfinite(z).all())
            y = backbone.decode(z)
            assert y.shape == x.shape
            assert bool(torch.isfinite(y).all())
        assert s.weight_hash and s.licence and s.name
        if isinstance(backbone, torch.nn.Module):
            assert s.parameters == sum(p.numel() for p in backbone.parameters())
            assert not any(p.requires_grad for p in backbone.parameters())

    def test_slots_and_frames_are_inverse(self, backbone: Backbone) -> None:
        s = backbone.spec
        assert [s.slots(s.frames(t)) for t in range(1, 20)] == list(range(1, 20))
        assert s.slots(s.frames(3) + 1) == 4

    @torch.no_grad()
    def test_is_deterministic_and_batch_does_not_matter(self, backbone: Backbone) -> None:
        x = torch.cat([self.clip(backbone.spec, 2, seed=i) for i in range(3)])
        z = backbone.encode(x)
        assert torch.equal(z, backbone.encode(x))
        self.assert_close(z[1:2], backbone.encode(x[1:2]), self.tolerance or 1e-4)
        y = backbone.decode(z)
        assert torch.equal(y, backbone.decode(z))
        self.assert_close(y[1:2], backbone.decode(z[1:2]), self.tolerance or 1e-4)

    @torch.no_grad()
    def test_still_video_gives_latents_constant_in_time(self, backbone: Backbone) -> None:
        if self.still is None:
            require("pytest", extra="dev").skip(f"{backbone.spec.name} makes no such promise")
        x = self.clip(backbone.spec, 1)
        z = backbone.encode(x.expand(-1, -1, backbone.spec.frames(6), -1, -1))
        self.assert_close(z, z[:, :, :1].expand_as(z), float(self.still or 0))

    @torch.no_grad()
    def test_causal(self, backbone: Backbone) -> None:
        s = backbone.spec
        if not s.causal:
            require("pytest", extra="dev").skip(f"{s.name} looks ahead")
        x = self.clip(s, 5)
        changed = x.clone()
        changed[:, :, s.frames(3) :] = torch.rand_like(changed[:, :, s.frames(3) :])
        a, b = backbone.encode(x), backbone.encode(changed)
        self.assert_close(a[:, :, :3], b[:, :, :3], self.tolerance)
        assert not torch.equal(a[:, :, 3:], b[:, :, 3:])
        p, q = backbone.decode(a), backbone.decode(torch.cat([a[:, :, :3], b[:, :, 3:]], dim=2))
        self.assert_close(p[:, :, : s.frames(3)], q[:, :, : s.frames(3)], self.tolerance)

    @torch.no_grad()
    def test_state_carries_over_every_cut(self, backbone: Any) -> None:
        s: BackboneSpec = backbone.spec
        if not s.stateful:
            require("pytest", extra="dev").skip(f"{s.name} carries no state")
        x = self.clip(s, 5)
        whole = backbone.encode(x)
        video = backbone.decode(whole)
        for cut in range(1, 5):
            frames = s.frames(cut)
            a, state = backbone.encode_next(x[:, :, :frames], None)
            b, _ = backbone.encode_next(x[:, :, frames:], state)
            self.assert_close(torch.cat([a, b], 2), whole, self.tolerance)
            p, state = backbone.decode_next(whole[:, :, :cut], None)
            q, _ = backbone.decode_next(whole[:, :, cut:], state)
            self.assert_close(torch.cat([p, q], 2), video, self.tolerance)

    def test_gradients_flow_through_the_decoder(self, backbone: Backbone) -> None:
        with torch.no_grad():
            z = backbone.encode(self.clip(backbone.spec, 2))
        z = z.clone().requires_grad_()
        backbone.decode(z).square().mean().backward()
        assert z.grad is not None and bool(torch.isfinite(z.grad).all()) and bool(z.grad.any())

    def test_refuses_other_shapes(self, backbone: Backbone) -> None:
        s, raises = backbone.spec, require("pytest", extra="dev").raises
        H, W = (n * s.space_stride for n in self.cells)
        wrong = [(1, 3, s.frames(2), H - 2, W), (1, 1, s.frames(2), H, W), (3, s.frames(2), H, W)]
        if s.time_stride > 1:
            wrong.append((1, 3, s.frames(2) - 1, H, W))
        for shape in wrong:
            with raises(ShapeError, match="takes pixels"):
                backbone.encode(torch.zeros(shape))
        with raises(ShapeError, match="decodes latents"):
            backbone.decode(torch.zeros(1, s.channels + 1, 2, *self.cells))
