# SPDX-License-Identifier: Apache-2.0
"""LeRobot data sets as a source: episodes, cameras, spans inside shared files; tokens with their actions."""

from __future__ import annotations

import csv
import json
import os
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import inlay
from inlay.cli.main import main
from inlay.errors import UsageError
from inlay.scale import EpisodeDataset, TokenDataset
from inlay.scale.lerobot import copy_span, is_lerobot, read_episodes
from inlay.scale.reading.episodes import _numbers
from inlay.video import open_video, read_video
from tests.caches import robots
from tests.caches.robots import CAMERAS, FPS, LENGTHS, SETS, TASKS

SOURCES = [f"{camera}/episode_{e:06d}" for e in range(3) for camera in CAMERAS]


@pytest.fixture(params=SETS)
def robot_set(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return SETS[request.param](tmp_path / "set")


def tokenize(root: Path, *words: str) -> Path:
    out = root / "tokens"
    given = ["tokenize", str(root), str(out), "--backbone", "mini-untrained", "--tau", "0.3", "--workers", "1", "-q"]
    assert main([*given, *words]) == 0
    return out


def test_episodes_and_spans(robot_set: Path) -> None:
    assert is_lerobot(robot_set) and not is_lerobot(robot_set.parent)
    episodes = read_episodes(robot_set)
    assert [e.index for e in episodes] == [0, 1, 2]
    assert [e.length for e in episodes] == list(LENGTHS)
    assert [e.tasks for e in episodes] == [(task,) for task in TASKS]
    assert all(e.data.is_file() and tuple(e.cameras) == CAMERAS for e in episodes)
    assert all(span.path.is_file() for e in episodes for span in e.cameras.values())


def test_a_task_may_hold_what_unicode_calls_an_end_of_line(tmp_path: Path) -> None:
    path = robots.old_set(tmp_path / "set") / "meta/episodes.jsonl"
    lines = [{"episode_index": e, "tasks": ["pick\u2028it"], "length": LENGTHS[e]} for e in range(3)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    assert [e.tasks for e in read_episodes(tmp_path / "set")] == [("pick\u2028it",)] * 3


@pytest.mark.parametrize("gop", [2, 250])
def test_a_span_is_the_same_frames_as_in_the_whole_file(gop: int, tmp_path: Path) -> None:
    """Whether key frames are near or far; with B-frames as x264 makes them."""
    root = robots.new_set(tmp_path / "set", gop=gop)
    for episode in read_episodes(root):
        for span in episode.cameras.values():
            assert span.first is not None
            copy = copy_span(span.path, first=span.first, frames=episode.length, fps=Fraction(FPS))
            with open_video(copy.media, start=copy.start, frames=episode.length) as reader:
                got = torch.cat([piece.frames for piece in reader.chunks()])
                assert reader.fps == FPS
            whole = read_video(span.path).frames
            assert torch.equal(got, whole[span.first : span.first + episode.length])


def test_a_span_does_not_read_what_lies_before_it(tmp_path: Path) -> None:
    frames = np.concatenate([robots.frames_of(e % 3, 0) for e in range(12)])
    robots.write_mp4(tmp_path / "long.mp4", frames)
    copy = copy_span(tmp_path / "long.mp4", first=len(frames) - 20, frames=20, fps=Fraction(FPS))
    assert copy.start < 2
    assert len(copy.media.read()) < 0.4 * (tmp_path / "long.mp4").stat().st_size


def test_tokenised_beside_the_data(robot_set: Path) -> None:
    """Every camera of every episode, in order, under names that say which; LeRobot's own files stay as they are."""
    before = {p: p.read_bytes() for p in robot_set.rglob("*") if p.is_file()}
    out = tokenize(robot_set)
    assert all(p.read_bytes() == data for p, data in before.items())
    assert all(out in p.parents for p in robot_set.rglob("*") if p.is_file() and p not in before)
    assert not any(out in p.parents for p in [*robot_set.glob("data/*/*.parquet"), *robot_set.glob("meta/**/*")])
    records = TokenDataset(str(out)).records()
    assert [r.source for r in records] == SOURCES
    assert [r.frames for r in records] == [n for n in LENGTHS for _ in CAMERAS]
    assert [r.caption for r in records] == [task for task in TASKS for _ in CAMERAS]
    assert {r.fps for r in records} == {"30/1"}
    assert len({r.sha256 for r in records}) == 6


def test_both_versions_give_the_same_tokens_as_the_frames_alone(tmp_path: Path) -> None:
    root = robots.new_set(tmp_path / "set")
    data = EpisodeDataset(root, tokenize(root))
    tokenizer = inlay.Tokenizer.from_pretrained("mini-untrained", device="cpu")
    for sample, episode in zip(data, read_episodes(root), strict=False):
        for camera, span in episode.cameras.items():
            video = read_video(span.path, start=span.first or 0, frames=episode.length)
            alone = tokenizer.encode(video, tau=0.3)
            assert torch.equal(sample.tokens[camera].mask, alone.mask)


def test_episodes_with_their_actions(robot_set: Path) -> None:
    data = EpisodeDataset(robot_set, tokenize(robot_set))
    assert len(data) == 3 and data.missing == 0
    assert repr(data) == f"EpisodeDataset(3 episodes of {robot_set}; {', '.join(CAMERAS)})"
    assert repr(data[1]).startswith(f"EpisodeSample(1: {TASKS[1]}; {CAMERAS[0]}, {CAMERAS[1]}; action [9, 2], ")
    for e in range(3):
        sample = data[e]
        assert (sample.index, sample.tasks) == (e, (TASKS[e],))
        assert sample.action.shape == (LENGTHS[e], 2) and sample.action.dtype == torch.float32
        assert sample.columns["index"].dtype == torch.int64
        assert sample.action[:, 0].tolist() == [100 * e + t for t in range(LENGTHS[e])]
        assert sample.columns["frame_index"].tolist() == list(range(LENGTHS[e]))
        assert tuple(sample.tokens) == CAMERAS
        for camera in CAMERAS:
            slots, tokens = sample.slots[camera], sample.tokens[camera]
            assert tokens.info.frames == LENGTHS[e] == len(slots)
            assert slots[0] == 0 and slots.max() < len(tokens.mask) and bool((slots.diff() >= 0).all())
    one = EpisodeDataset(robot_set, robot_set / "tokens", cameras=CAMERAS[:1], columns=("action", "episode_index"))[1]
    assert tuple(one.tokens) == CAMERAS[:1] and set(one.columns) == {"action", "episode_index"}
    assert set(EpisodeDataset(robot_set, robot_set / "tokens", cameras=CAMERAS[0], columns="action")[1].columns) == {
        "action"
    }
    with pytest.raises(UsageError, match="no camera 'side'"):
        EpisodeDataset(robot_set, robot_set / "tokens", cameras=("side",))
    with pytest.raises(UsageError, match=r"parquet has no column 'actions'; it has action, "):
        EpisodeDataset(robot_set, robot_set / "tokens", columns=("actions",))[0]


def test_a_set_of_links_is_read(robot_set: Path, tmp_path: Path) -> None:
    """The hub's cache: a snapshot whose files are links to blobs beside it."""
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(sorted(p for p in robot_set.rglob("*") if p.is_file())):
        blob = tmp_path / "blobs" / f"{number:040x}"
        path.rename(blob)
        path.symlink_to(os.path.relpath(blob, path.parent))
    data = EpisodeDataset(robot_set, tokenize(robot_set))
    assert len(data) == 3 and data[2].action.shape == (LENGTHS[2], 2)


def test_rows_of_different_lengths_are_no_column_of_numbers() -> None:
    """Even where their sum divides: [[1], [2, 3, 4]] is no [2, 2]."""
    even, uneven, absent = pa.array([[1, 2], [3, 4]]), pa.array([[1], [2, 3, 4]]), pa.array([None, [1, 2, 3, 4]])
    columns = [_numbers(pa.chunked_array([rows])) for rows in (even, uneven, absent)]
    assert columns[0] is not None and columns[0].tolist() == [[1, 2], [3, 4]]
    assert columns[1] is None and columns[2] is None


def test_resumed_like_any_other_source(robot_set: Path) -> None:
    out = tokenize(robot_set)
    when = {p: p.stat().st_mtime_ns for p in (out / "shards").iterdir()}
    tokenize(robot_set)
    assert when == {p: p.stat().st_mtime_ns for p in (out / "shards").iterdir()}


def test_caches_are_made_of_episodes(robot_set: Path, tmp_path: Path) -> None:
    words = ["cache", "make", str(robot_set), str(tmp_path / "out"), "--format", "ltx", "--backbone", "mini-untrained"]
    assert main([*words, "--frames", "9", "-q"]) == 0
    found = sorted(p.relative_to(tmp_path / "out/.precomputed/latents").as_posix() for p in tmp_path.rglob("*.pt"))
    assert found == sorted(f"{source}.pt" for source in SOURCES)


def test_a_format_without_folders_names_camera_and_episode(robot_set: Path, tmp_path: Path) -> None:
    words = ["cache", "make", str(robot_set), str(tmp_path / "out"), "--format", "musubi-wan", "--size", "64x48", "-q"]
    assert main([*words, "--backbone", "mini-untrained", "--frames", "9"]) == 0
    found = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert found == sorted(f"{source.replace('/', '_')}_00000-009_0064x0048_wan.safetensors" for source in SOURCES)


def quarantined(out: Path) -> dict[str, str]:
    with (out / "quarantine.csv").open() as file:
        return {row["path"]: row["reason"] for row in csv.DictReader(file)}


def test_what_was_in_quarantine_is_tried_again_from_its_list(tmp_path: Path) -> None:
    root = robots.new_set(tmp_path / "set")
    video = root / f"videos/{CAMERAS[0]}/chunk-000/file-001.mp4"
    kept = video.read_bytes()
    video.unlink()
    out = tokenize(root)
    again = tmp_path / "again"
    words = ["--backbone", "mini-untrained", "--tau", "0.3", "--workers", "1", "-q"]
    lost = str(out / "quarantine.csv")
    assert main(["tokenize", lost, str(tmp_path / "nothing"), *words]) == 3  # it is still not there
    assert quarantined(tmp_path / "nothing").keys() == quarantined(out).keys()
    video.write_bytes(kept)
    assert main(["tokenize", lost, str(again), *words]) == 0 and not quarantined(again)
    data = EpisodeDataset(root, [out, again])
    assert len(data) == 3 and data.missing == 0
    assert data[2].tokens[CAMERAS[0]].info.frames == LENGTHS[2]


# --- bad input --------------------------------------------------------------------------------------------------------


def edited(root: Path, **changes: object) -> Path:
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return root


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"features": robots.features("image")}, 3, "none of its features is a video"),
        ({"codebase_version": "v2.0"}, 2, "v2.1 and v3.0 can be read"),
        ({"fps": 0}, 2, "is damaged or missing"),
        ({"features": None}, 2, "is damaged or missing"),
        ({"video_path": "../../{video_key}.mp4"}, 2, "leads out of the data set"),
        ({"video_path": "{nonsense}.mp4"}, 2, "is damaged"),
    ],
)
def test_sets_that_cannot_be_read(robot_set: Path, changes, code, said, tmp_path: Path, capsys) -> None:
    edited(robot_set, **changes)
    assert main(["tokenize", str(robot_set), str(tmp_path / "out"), "--backbone", "mini-untrained"]) == code
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_missing_tables_are_named(tmp_path: Path, capsys) -> None:
    root = robots.new_set(tmp_path / "set")
    table = root / "meta/episodes/chunk-000/file-000.parquet"
    table.write_bytes(table.read_bytes()[:-9])
    assert main(["tokenize", str(root), str(tmp_path / "out")]) == 2
    assert "not a whole Parquet file" in capsys.readouterr().err
    table.unlink()
    assert main(["tokenize", str(root), str(tmp_path / "out")]) == 2
    assert "holds no tables" in capsys.readouterr().err


def test_lost_and_short_videos_go_to_quarantine(tmp_path: Path) -> None:
    root = robots.new_set(tmp_path / "set")
    (root / f"videos/{CAMERAS[0]}/chunk-000/file-001.mp4").unlink()
    robots.write_mp4(root / f"videos/{CAMERAS[1]}/chunk-000/file-000.mp4", robots.frames_of(0, 1))  # without episode 1
    out = tokenize(root)
    found = quarantined(out)
    assert "there is no such file" in found[f"{root}!{CAMERAS[0]}/episode_000002"]
    assert "has 0 frames from 0.467 s to 0.767 s, and the episode has 9" in found[f"{root}!{CAMERAS[1]}/episode_000001"]
    data = EpisodeDataset(root, out)
    assert [data[i].index for i in range(len(data))] == [0] and data.missing == 2


def test_tokens_of_another_set_are_refused(robot_set: Path, tmp_path: Path) -> None:
    out = tokenize(robot_set)
    other = robots.old_set(tmp_path / "other")
    (other / "data/chunk-000/episode_000000.parquet").unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        EpisodeDataset(other, out)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what it imports
def test_lerobots_own_reader(tmp_path: Path) -> None:
    """LeRobot reads the set with tokens beside it: the same rows, the same places of its videos."""
    pytest.importorskip("lerobot", reason="lerobot is not installed")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root = robots.new_set(tmp_path / "set")
    ours = EpisodeDataset(root, tokenize(root))
    theirs = LeRobotDataset("local/set", root=root)
    assert theirs.num_episodes == len(ours) == 3 and theirs.num_frames == sum(LENGTHS)
    assert tuple(theirs.meta.video_keys) == CAMERAS
    at = 0
    for episode, sample in zip(read_episodes(root), ours, strict=False):
        rows = [theirs.hf_dataset[at + t] for t in range(episode.length)]
        assert {int(row["episode_index"]) for row in rows} == {episode.index}
        assert torch.equal(torch.stack([row["action"] for row in rows]), sample.action)
        for camera, span in episode.cameras.items():
            assert root / theirs.meta.get_video_file_path(episode.index, camera) == span.path
            begin = theirs.meta.episodes[episode.index][f"videos/{camera}/from_timestamp"]
            assert round(begin * theirs.fps) == span.first
        if find_spec("torchcodec") is not None:
            span = episode.cameras[CAMERAS[0]]
            frame = read_video(span.path, start=(span.first or 0) + 3, frames=1).frames[0]
            seen = (theirs[at + 3][CAMERAS[0]] * 255).round().permute(1, 2, 0).int()
            assert (seen - frame.int()).abs().float().mean() < 3
        at += episode.length
