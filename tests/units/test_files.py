# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all; pieces of a video become one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inlay.files import PART, atomic, part_beside, write_atomic
from inlay.video.frames import Video, join_videos
from tests.conftest import moving_square


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a.txt"
    write_atomic(path, b"old", durable=durable)
    with pytest.raises(KeyboardInterrupt), atomic(path, durable=durable) as part:
        part.write_bytes(b"half")
        assert part.parent == tmp_path and part.name.endswith(PART), "a killed process leaves a name that is found"
        assert path.read_bytes() == b"old"
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    with atomic(path, durable=durable) as part:
        part.write_bytes(b"new")
    assert path.read_bytes() == b"new" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    assert part_beside(tmp_path / "a") != part_beside(tmp_path / "a")


def test_pieces_of_a_video_join_and_untimed_ones_stand_on_the_grid() -> None:
    video = moving_square(7, 16, 16)
    assert torch.equal(join_videos([video[:3], video[3:]]).frames, video.frames)
    assert join_videos([video[:3], video[3:]]).seconds is None
    timed = Video(frames=video.frames[3:], fps=video.fps, seconds=torch.tensor([1.0, 2.0, 3.0, 4.0]).double())
    joined = join_videos([video[:3], timed]).seconds
    assert joined is not None and joined.tolist() == [0, 1 / float(video.fps), 2 / float(video.fps), 1, 2, 3, 4]
