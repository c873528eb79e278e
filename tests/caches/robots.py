# SPDX-License-Identifier: Apache-2.0
"""Small data sets in the genuine layouts of LeRobot v2.1 and v3.0, written by code of their own (LeRobot 7427f3180)."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CAMERAS = ("observation.images.top", "observation.images.wrist")
LENGTHS = (14, 9, 21)
TASKS = ("pick the cube", "place the cube", "pick the cube")
FPS = 30
HEIGHT, WIDTH = 48, 64


def frames_of(episode: int, camera: int) -> np.ndarray:
    """[T, H, W, 3] a bright square over a background that differs by episode and camera."""
    made = np.full((LENGTHS[episode], HEIGHT, WIDTH, 3), 40 + 50 * episode + 20 * camera, dtype=np.uint8)
    for t in range(LENGTHS[episode]):
        made[t, 8 + t : 24 + t, 2 * t : 2 * t + 16] = (200, 60 + 5 * t, 30)
    return made


def write_mp4(path: Path, frames: np.ndarray, *, gop: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=FPS, options={"g": str(gop), "crf": "20"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode())


def features(dtype: str = "video") -> dict:
    return {
        **{c: {"dtype": dtype, "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]} for c in CAMERAS},
        "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        **{name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
           for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")},
    }  # fmt: skip


def rows(episode: int) -> dict:
    T, before = LENGTHS[episode], sum(LENGTHS[:episode])
    action = np.stack([np.arange(T) + 100 * episode, np.sin(np.arange(T))], axis=1).astype(np.float32)
    return {
        "action": pa.array(list(action), type=pa.list_(pa.float32(), 2)),
        "observation.state": pa.array(list(action + 1), type=pa.list_(pa.float32(), 2)),
        "timestamp": pa.array((np.arange(T) / FPS).astype(np.float32)),
        "frame_index": pa.array(range(T), type=pa.int64()),
        "episode_index": pa.array([episode] * T, type=pa.int64()),
        "index": pa.array(range(before, before + T), type=pa.int64()),
        "task_index": pa.array([episode % 2] * T, type=pa.int64()),
    }


def info(version: str, **more: object) -> dict:
    return {
        "codebase_version": version, "robot_type": "arm", "total_episodes": 3, "total_frames": sum(LENGTHS),
        "total_tasks": 2, "chunks_size": 1000, "fps": FPS, "splits": {"train": "0:3"}, "features": features(), **more,
    }  # fmt: skip


def old_set(root: Path) -> Path:
    """v2.1: a video file and a table for each episode."""
    about = info(
        "v2.1",
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    )
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(about, indent=4))
    lines = [{"episode_index": e, "tasks": [TASKS[e]], "length": LENGTHS[e]} for e in range(3)]
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick the cube"}\n')
    for episode in range(3):
        table = root / f"data/chunk-000/episode_{episode:06d}.parquet"
        table.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows(episode)), table)
        for number, camera in enumerate(CAMERAS):
            path = root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"
            write_mp4(path, frames_of(episode, number))
    return root


def new_set(root: Path, *, gop: int = 2) -> Path:
    """v3.0: episodes 0 and 1 share a video file and a table, episode 2 has the next ones."""
    about = info(
        "v3.0",
        data_files_size_in_mb=100,
        video_files_size_in_mb=500,
        data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    )
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(about, indent=4))
    tasks = pa.table({"task_index": [0, 1], "__index_level_0__": ["pick the cube", "place the cube"]})
    pq.write_table(tasks, root / "meta/tasks.parquet")
    episodes = []
    for group, members in enumerate(((0, 1), (2,))):
        pq.write_table(
            pa.concat_tables([pa.table(rows(e)) for e in members]), root / f"data/chunk-000/file-{group:03d}.parquet"
        )
        for number, camera in enumerate(CAMERAS):
            shared = np.concatenate([frames_of(e, number) for e in members])
            write_mp4(root / f"videos/{camera}/chunk-000/file-{group:03d}.mp4", shared, gop=gop)
        for e in members:
            start = sum(LENGTHS[m] for m in members if m < e)
            before = sum(LENGTHS[:e])
            row = {"episode_index": e, "tasks": [TASKS[e]], "length": LENGTHS[e], "data/chunk_index": 0}
            row |= {"data/file_index": group, "dataset_from_index": before, "dataset_to_index": before + LENGTHS[e]}
            for camera in CAMERAS:
                row |= {f"videos/{camera}/chunk_index": 0, f"videos/{camera}/file_index": group}
                row[f"videos/{camera}/from_timestamp"] = start / FPS
                row[f"videos/{camera}/to_timestamp"] = (start + LENGTHS[e]) / FPS
            row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
            episodes.append(row)
    pq.write_table(pa.Table.from_pylist(episodes), root / "meta/episodes/chunk-000/file-000.parquet")
    return root


SETS = {"v2.1": old_set, "v3.0": new_set}
