# SPDX-License-Identifier: Apache-2.0
"""The sampler is a pure function: of seed, step and place, and of nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from inlay.errors import VideoError
from inlay.train import ClipConfig, ClipEntry, Sampler
from inlay.train.sampler import fixed_draws


def entries(*frames: int) -> list[ClipEntry]:
    return [ClipEntry(name=f"v{i}.mp4", frames=n, height=40, width=64) for i, n in enumerate(frames)]


CONFIG = ClipConfig(frames=5, size=32, interval=(1, 3), zoom=(1.0, 1.5), reverse=True)


def test_a_draw_depends_on_nothing_but_its_arguments() -> None:
    a = Sampler(entries(20, 30, 40), CONFIG, seed=7)
    b = Sampler(entries(20, 30, 40), CONFIG, seed=7)
    later = [b.draw(step, slot, 4) for step in reversed(range(6)) for slot in range(4)]
    assert [a.draw(step, slot, 4) for step in reversed(range(6)) for slot in range(4)] == later
    assert a.step(3, 4) == [b.draw(3, slot, 4) for slot in range(4)]
    assert a.step(3, 4) != Sampler(entries(20, 30, 40), CONFIG, seed=8).step(3, 4)


def test_every_round_visits_every_video_once() -> None:
    sampler = Sampler(entries(*[20] * 6), CONFIG)
    draws = [d for step in range(3) for d in sampler.step(step, 4)]
    for start in (0, 6):
        assert sorted(d.clip for d in draws[start : start + 6]) == list(range(6))
    assert [d.clip for d in draws[:6]] != [d.clip for d in draws[6:]]


def test_clips_stay_inside_their_video() -> None:
    sampler = Sampler(entries(5, 9, 13, 14, 60), CONFIG)
    for step in range(100):
        for d in sampler.step(step, 4):
            assert d.start >= 0
            assert d.start + d.span <= sampler.entries[d.clip].frames
            top, left, side = d.window(40, 64)
            assert 0 <= top <= 40 - side
            assert 0 <= left <= 64 - side
            assert 1 <= d.interval <= 3
            assert 0 <= d.level < 1


def test_a_grid_walks_through_a_video_without_overlap() -> None:
    config = ClipConfig(frames=5, size=32, interval=(2, 2), start="grid", crop="centre", flip=False)
    sampler = Sampler(entries(30), config)
    assert [sampler.step(s, 1)[0].start for s in range(4)] == [0, 9, 18, 0]
    assert not config.augmented


def test_balance_by_frames_and_by_weights() -> None:
    long = Sampler(entries(10, 91), ClipConfig(frames=5, size=32, interval=(1, 1), balance="frames"))
    seen = Counter(d.clip for s in range(200) for d in long.step(s, 4))
    assert seen[1] > 8 * seen[0]
    weighted = Sampler(entries(10, 10), CONFIG, weights=(1.0, 3.0))
    seen = Counter(d.clip for s in range(300) for d in weighted.step(s, 4))
    assert 2.4 < seen[1] / seen[0] < 3.8


def test_short_videos_are_left_out_and_counted() -> None:
    sampler = Sampler(entries(4, 5, 3, 20), ClipConfig(frames=5, size=32, interval=(1, 1)))
    assert (sampler.usable, sampler.skipped) == ((1, 3), 2)


def test_too_short_names_the_clip_its_frames_and_the_need() -> None:
    with pytest.raises(VideoError, match=r"v1.mp4, has 8 frames.*5 frames at interval 3 need 13"):
        Sampler(entries(4, 8), ClipConfig(frames=5, size=32, interval=(3, 3)))
    with pytest.raises(VideoError, match="no videos"):
        Sampler([], CONFIG)


def test_validation_looks_at_the_same_clips_spread_over_the_list() -> None:
    draws = fixed_draws(entries(9, 2, 9, 9, 9), frames=5, size=32, limit=2)
    assert [(d.clip, d.start, d.y, d.x) for d in draws] == [(0, 0, 0.5, 0.5), (3, 0, 0.5, 0.5)]
