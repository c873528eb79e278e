# SPDX-License-Identifier: Apache-2.0
"""`Packed`: the cells of several clips, tokens or dense latents, as one row with its boundaries, and back.

Legend: N cells of all clips together, C channels, B clips, L cells of the longest clip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.container.tokens import Tokens, run_lengths
from inlay.errors import ShapeError, UsageError, check_kind
from inlay.pack.rope import grid_positions
from inlay.types import check_shape, describe


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Packed:
    """Clips of any lengths, end to end, with no padding between them.

    batch[i] is clip i on its own; `values`, `cu_seqlens` and `max_seqlen` are what variable-length attention takes.
    """

    values: Tensor  # [N, C] floating point
    positions: Tensor  # [N, 3]: (t, y, x) of each cell in its own clip
    run_lengths: Tensor  # [N] int64: slots each cell stands for, itself included
    cu_seqlens: Tensor  # [B + 1] int32: clip i is cells cu_seqlens[i] to cu_seqlens[i + 1]
    grids: Tensor  # [B, 3] int64: (slots, rows, columns) of each clip

    def __post_init__(self) -> None:
        n, ends = len(self.values), self.cu_seqlens
        if self.values.ndim != 2 or not self.values.is_floating_point():
            raise ShapeError(f"packed values are floating point [N, C]; got {describe(self.values)}")
        if tuple(self.positions.shape) != (n, 3) or tuple(self.run_lengths.shape) != (n,):
            raise ShapeError(
                f"{n} cells need positions [{n}, 3] and run lengths [{n}]; "
                f"got {describe(self.positions)} and {describe(self.run_lengths)}"
            )
        if ends.ndim != 1 or ends.dtype != torch.int32 or len(ends) < 2:
            raise ShapeError(f"cu_seqlens is int32 [clips + 1]; got {describe(ends)}")
        if tuple(self.grids.shape) != (len(ends) - 1, 3):
            raise ShapeError(f"{len(ends) - 1} clips need grids [{len(ends) - 1}, 3]; got {describe(self.grids)}")

    def __len__(self) -> int:
        """Clips."""
        return len(self.cu_seqlens) - 1

    def __iter__(self) -> Iterator[Packed]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Packed:
        if not -len(self) <= i < len(self):
            raise IndexError(f"the batch has clips 0 to {len(self) - 1}; asked for {i}")
        i %= len(self)
        start, stop = self.cu_seqlens[i : i + 2].tolist()
        return Packed(
            values=self.values[start:stop],
            positions=self.positions[start:stop],
            run_lengths=self.run_lengths[start:stop],
            cu_seqlens=self.cu_seqlens.new_tensor([0, stop - start]),
            grids=self.grids[i : i + 1],
        )

    def __repr__(self) -> str:
        return f"Packed({len(self)} clips, {describe(self.values)}, longest {self.max_seqlen})"

    @cached_property
    def lengths(self) -> Tensor:
        """[B] int32: cells of each clip."""
        return self.cu_seqlens.diff()

    @cached_property
    def offsets(self) -> Tensor:
        """[B + 1] int64: cu_seqlens as nested tensors take it, one for all of them, so that they agree."""
        return self.cu_seqlens.long()

    @cached_property
    def max_seqlen(self) -> int:
        """Cells of the longest clip; asked once, since on a GPU the answer must be waited for."""
        return int(self.lengths.max())

    @cached_property
    def min_seqlen(self) -> int:
        """Cells of the shortest clip; asked once as well."""
        return int(self.lengths.min())

    @cached_property
    def clip_ids(self) -> Tensor:
        """[N] int64: the clip each cell belongs to."""
        return torch.repeat_interleave(self.lengths.long(), output_size=len(self.values))

    def expand(self, per_clip_B: Tensor) -> Tensor:
        """[N, ...]: what is said of a clip (a time step, a class), said of each of its cells."""
        if len(per_clip_B) != len(self):
            raise ShapeError(f"the batch has {len(self)} clips; got {describe(per_clip_B)}")
        return per_clip_B[self.clip_ids]

    def mean(self, x_ND: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """[B, D]: the mean over each clip's cells, weighted where weights are given."""
        weights = x_ND.new_ones(len(x_ND)) if weights_N is None else weights_N.to(x_ND.dtype)
        sums = x_ND.new_zeros(len(self), x_ND.shape[1]).index_add(0, self.clip_ids, x_ND * weights[:, None])
        total = weights.new_zeros(len(self)).index_add(0, self.clip_ids, weights)
        return sums / total.clamp(min=torch.finfo(x_ND.dtype).tiny)[:, None]  # a clip with no cells: zeros

    def nested(self, x_ND: Tensor | None = None) -> Tensor:
        """A jagged nested tensor [B, *, D] of the values, or of anything with a row for each cell; no copy."""
        x_ND = self.values if x_ND is None else x_ND
        return torch.nested.nested_tensor_from_jagged(
            x_ND, self.offsets, min_seqlen=self.min_seqlen, max_seqlen=self.max_seqlen
        )

    def padded(self, x_ND: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """([B, L, D], bool [B, L]): one row a clip, zeros behind its end, and where there are cells."""
        x_ND = self.values if x_ND is None else x_ND
        here_BL = torch.arange(self.max_seqlen, device=x_ND.device) < self.lengths[:, None]
        x_BLD = x_ND.new_zeros(*here_BL.shape, *x_ND.shape[1:])
        x_BLD[here_BL] = x_ND
        return x_BLD, here_BL

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Packed:
        """On another device; `dtype` is that of the values."""
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in self.__dataclass_fields__}
        return replace(self, **moved | {"values": moved["values"].to(dtype or self.values.dtype)})

    def pin_memory(self) -> Packed:
        """What a DataLoader with pin_memory=True calls."""
        return replace(self, **{name: getattr(self, name).pin_memory() for name in self.__dataclass_fields__})


def pack(clips: Iterable[Tokens]) -> Packed:
    """The tokens of several videos as one batch, in the order given. Serves as a DataLoader's collate_fn."""
    if isinstance(clips, Tokens):
        raise UsageError("a batch is a list of clips; give [tokens]")
    clips = list(clips)
    for clip in clips:
        check_kind(clip, Tokens, "a batch is a list of clips, each of them Tokens")
    channels = {t.channels for t in clips}
    if len(channels) != 1:
        found = ", ".join(map(str, sorted(channels))) or "no clips"
        raise UsageError(f"a batch is one or more clips with the same number of channels; got {found}")
    return Packed(
        values=torch.cat([t.values for t in clips]),
        positions=torch.cat([t.positions for t in clips]),
        run_lengths=torch.cat([t.run_lengths for t in clips]),
        cu_seqlens=_ends([len(t) for t in clips]),
        grids=torch.tensor([tuple(t.mask.shape) for t in clips]),
    )


def pack_latents(z_BCTHW: Tensor) -> Packed:
    """Dense latents as if every cell were a token: the same model can then read either."""
    check_kind(z_BCTHW, Tensor, "latents are a tensor [B, C, T, H, W]")
    check_shape(z_BCTHW.ndim == 5, f"latents are [B, C, T, H, W]; got {describe(z_BCTHW)}")
    B, C, T, H, W = z_BCTHW.shape
    cells, device = T * H * W, z_BCTHW.device
    return Packed(
        values=z_BCTHW.movedim(1, -1).reshape(B * cells, C),
        positions=grid_positions(T, H, W, device=device).repeat(B, 1),
        run_lengths=torch.ones(B * cells, dtype=torch.int64, device=device),
        cu_seqlens=_ends([cells] * B).to(device),
        grids=torch.tensor([[T, H, W]], device=device).expand(B, 3).contiguous(),
    )


def pack_kept(z_BCTHW: Tensor, keep_BTHW: Tensor) -> Packed:
    """The kept cells of dense latents: what `pack` makes of the tokens of these clips, for all of them at once."""
    for x in (z_BCTHW, keep_BTHW):
        check_kind(x, Tensor, "latents and masks are tensors")
    B, T, H, W = keep_BTHW.shape if keep_BTHW.ndim == 4 else (0, 0, 0, 0)
    if z_BCTHW.ndim != 5 or (len(z_BCTHW), *z_BCTHW.shape[2:]) != (B, T, H, W) or keep_BTHW.dtype != torch.bool:
        raise ShapeError(f"latents are [B, C, T, H, W], masks bool [B, T, H, W]; got {describe(z_BCTHW)} and "
                         f"{describe(keep_BTHW)}")  # fmt: skip
    runs_BTHW = run_lengths(keep_BTHW.transpose(0, 1).reshape(T, B * H, W)).view(T, B, H, W).transpose(0, 1)
    counts_B = keep_BTHW.flatten(1).sum(1)
    return Packed(
        values=z_BCTHW.movedim(1, -1)[keep_BTHW],
        positions=keep_BTHW.nonzero()[:, 1:],
        run_lengths=runs_BTHW[keep_BTHW],
        cu_seqlens=F.pad(counts_B.cumsum(0), (1, 0)).to(torch.int32),
        grids=torch.tensor([[T, H, W]], device=keep_BTHW.device).expand(B, 3).contiguous(),
    )


def unpack(batch: Packed, x_ND: Tensor | None = None) -> list[Tensor]:
    """[C, T, H, W] for each clip: cells at their places, zeros where none was kept; the inverse of packing."""
    x_ND = batch.values if x_ND is None else x_ND
    clips = []
    for x, clip in zip(x_ND.split(batch.lengths.tolist()), batch, strict=True):
        z_THWD = x.new_zeros(*clip.grids[0].tolist(), x.shape[1])
        z_THWD[tuple(clip.positions.long().unbind(1))] = x
        clips.append(z_THWD.movedim(-1, 0))
    return clips


def _ends(lengths: Sequence[int]) -> Tensor:
    return F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32)
