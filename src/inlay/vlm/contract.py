# SPDX-License-Identifier: Apache-2.0
"""The two functions that vLLM and SGLang ask for when they prune video tokens, under the names they have there.

The server lays out the prompt before it has seen the video, so the count comes first and the mask must honour it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from inlay.errors import ShapeError, check_kind, check_number
from inlay.types import describe
from inlay.vlm.last_kept import last_kept_mask

CountOf = Callable[[int, int, float], int]


def compute_retained_tokens_count(tokens_per_frame: int, num_frames: int, q: float) -> int:
    """How many tokens stay when the share `q` is pruned: rounded down, and never less than the first frame.

    >>> compute_retained_tokens_count(tokens_per_frame=144, num_frames=32, q=0.75)
    1152
    """
    check_number("q", q, "the share of the tokens to prune, from 0 to 1", lambda q: 0 <= q <= 1)
    for name, value in (("tokens_per_frame", tokens_per_frame), ("num_frames", num_frames)):
        check_number(name, value, "a whole number, 0 or more", lambda n: n >= 0, whole=True)
    return max(tokens_per_frame, int(tokens_per_frame * num_frames * (1 - q)))


def compute_retention_mask(
    video_embeds: Tensor,
    video_size_thw: Tensor | Sequence[int],
    spatial_merge_size: int,
    q: float,
    *,
    criterion: str = "cosine",
    count_of: CountOf = compute_retained_tokens_count,
) -> Tensor:
    """[T * h * w] bool on the device of the embeddings; as many are true as `compute_retained_tokens_count` says.

    Args:
        video_embeds: [T * h * w, D], the tokens after the merge, frame by frame and row by row.
        video_size_thw: frames, rows and columns before the merge, so that h = H // merge and w = W // merge. Ints, or a
            tensor that lies on the CPU: reading one on a GPU would wait for it.
        criterion: a name in `CRITERIA`.
        count_of: a server's own count, where it is to decide.
    """
    frames, h, w = grid_of(video_embeds, video_size_thw, spatial_merge_size)
    count = count_of(h * w, frames, q)
    return last_kept_mask(video_embeds.reshape(frames, h * w, -1), count, criterion=criterion).flatten()


def grid_of(
    video_embeds: Tensor, video_size_thw: Tensor | Sequence[int], spatial_merge_size: int
) -> tuple[int, int, int]:
    """Frames, rows and columns of the tokens themselves, checked against the embeddings."""
    check_kind(video_embeds, Tensor, "embeddings are a tensor [T * h * w, D]")
    try:
        frames, height, width = (int(n) for n in video_size_thw)
    except (TypeError, ValueError, RuntimeError) as error:
        found = describe(video_size_thw) if isinstance(video_size_thw, Tensor) else repr(video_size_thw)
        raise ShapeError(f"video_size_thw is three whole numbers of one video; got {found}") from error
    wanted = "1 or more patches a side, which the spatial merge joins"
    check_number("spatial_merge_size", spatial_merge_size, wanted, lambda n: n >= 1, whole=True)
    h, w = height // spatial_merge_size, width // spatial_merge_size
    if video_embeds.ndim != 2 or min(frames, h, w) < 1 or len(video_embeds) != frames * h * w:
        raise ShapeError(
            f"embeddings {describe(video_embeds)} are not the tokens of {frames}x{height}x{width} patches merged by"
            f" {spatial_merge_size}: that would be {frames}x{h}x{w} = {frames * h * w} rows, one or more"
        )
    return frames, h, w
