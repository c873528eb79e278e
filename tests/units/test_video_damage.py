# SPDX-License-Identifier: Apache-2.0
"""What cannot be read: one line that says what is wrong, what was found and what to do."""

from __future__ import annotations

import contextlib
import io
import os
import socket
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from inlay.errors import InlayError, VideoError
from inlay.video import open_video, read_video
from inlay.video.promise import needs_seeking, promised_bytes
from inlay.video.source import is_address
from tests.units.media import gradient, make, make_audio


def refusal(source: object) -> str:
    with pytest.raises(VideoError) as caught:
        read_video(source)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 3
    return message


def test_missing_and_folder_and_empty(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.mp4")
    assert "no such file" in refusal(str(tmp_path / ("n" * 80 + ".mp4")))
    assert "folder" in refusal(tmp_path)
    (tmp_path / "empty.mp4").touch()
    assert "empty" in refusal(tmp_path / "empty.mp4")
    assert "empty" in refusal(io.BytesIO())
    assert "the name is too long" in refusal("n" * 5000)


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "aac"), ("a.mka", "libopus"), ("a.ogg", "libopus")])
def test_audio_only(tmp_path: Path, name: str, codec: str) -> None:
    assert "only audio" in refusal(make_audio(tmp_path / name, codec))


def test_not_a_video(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("To be, or not to be: that is the question.\n" * 40)
    (tmp_path / "b.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "c.mp4").write_bytes(bytes(5000))
    for name in "abc":
        assert "not a video" in refusal(tmp_path / f"{name}.mp4")
    assert "not a video" in refusal(io.BytesIO(b"hello, world"))


def test_a_playlist_does_not_lead_to_other_files(tmp_path: Path) -> None:
    make(tmp_path / "private.mp4", gradient(9))
    make(tmp_path / "private.ts", gradient(9), codec="mpeg2video")
    lists = {
        "a.mp4": f"ffconcat version 1.0\nfile '{'private.mp4'}'\n",
        "b.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:1,\nprivate.ts\n#EXT-X-ENDLIST\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        assert "not a video" in refusal(tmp_path / name)
        with (tmp_path / name).open("rb") as file:  # with its name, which FFmpeg would go by
            assert "not a video" in refusal(file)


@pytest.mark.parametrize("suffix", [".mp4", ".ts", ".m3u8", ".txt"])
@pytest.mark.parametrize(
    "text",
    [
        "ffconcat version 1.0\nfile 'pipe.ts'\n",
        "ffconcat version 1.0\nfile '{folder}/pipe.ts'\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:1,\npipe.ts\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:1,\n{scheme}://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    ],
    ids=["concat", "absolute", "hls", "http", "sdp"],
)
def test_what_a_list_names_is_never_opened(tmp_path: Path, text: str, suffix: str) -> None:
    """A pipe that nobody writes to would hold the reader for ever: the test ends only if it is left alone."""
    os.mkfifo(tmp_path / "pipe.ts")
    path = tmp_path / f"a{suffix}"
    path.write_text(text.format(folder=tmp_path, scheme="http"))
    assert "not a video" in refusal(path)


@pytest.mark.parametrize("name", ["a.txt", "a.ans", "a.nfo", "a.mp4", "a.srt", "a.svg", "a.raw", "a.yuv"])
def test_text_is_no_film(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\x1b[31mTo be\x1b[0m, or not to be: that is the question.\n" * 200)
    assert "not a video" in refusal(tmp_path / name)


def test_a_name_is_no_pattern(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image", reason="Pillow writes the pictures")
    for i in range(5):
        Image.fromarray(gradient(5)[i]).save(tmp_path / f"seq_{i}.png")
    assert "no such file" in refusal(tmp_path / "seq_%d.png")
    Image.fromarray(gradient(1)[0]).save(tmp_path / "seq_%d.png")
    assert len(read_video(tmp_path / "seq_%d.png")) == 1, "the picture of that name, and not its neighbours"
    with (tmp_path / "seq_%d.png").open("rb") as file:
        assert len(read_video(file)) == 1


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.mp4"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        server = socket.socket(socket.AF_UNIX)
        with contextlib.chdir(tmp_path), server:  # the name of a socket is short
            server.bind(path.name)
    message = refusal(path)
    assert kind in message and "standard input" in message


@pytest.mark.parametrize("scheme", ["http", "HTTP", "Http"])
def test_an_address_is_one_in_any_case(scheme: str) -> None:
    assert is_address(f"{scheme}://127.0.0.1:9/a.mp4")
    assert "no such file" not in refusal(f"{scheme}://127.0.0.1:9/a.mp4")


def test_where_nothing_can_be_read_nothing_is_offered(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.mp4", gradient(20, 96, 96), options={"g": "50"}, container_options={"movflags": "faststart"}
    )
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"mdat") + 40])
    with pytest.raises(VideoError, match=r"0 frames could be read; fetch the file again$") as caught:
        read_video(path)
    assert caught.value.about == ()


def test_mp4_cut_before_its_table(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", gradient(20))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "cut short" in refusal(path)
    assert "cut short" in refusal(io.BytesIO(path.read_bytes()))


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi"])
def test_cut_in_the_middle(tmp_path: Path, name: str) -> None:
    faststart = {"movflags": "faststart"} if name == "a.mp4" else None
    codec = "mpeg4" if name == "a.avi" else "libx264"
    path = make(tmp_path / name, gradient(60, 96, 96), codec=codec, container_options=faststart)
    whole = read_video(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    message = refusal(path)
    assert "cut short" in message
    assert "frames could be read" in message
    assert "use what could be read" in message
    with open_video(path, keep_going=True) as reader:
        frames = torch.cat([chunk.frames for chunk in reader])
        assert reader.damage is not None
        assert f"{len(frames)} frames could be read" in reader.damage
        if codec == "libx264":  # of mpeg4 one more is patched up
            assert f"{len(frames)} frames could be read" in message, "what is promised is what is given"
    assert 5 < len(frames) < 60
    same = (frames == whole.frames[: len(frames)]).flatten(1).all(1)
    assert same[:-3].all()
    assert torch.equal(read_video(path, frames=3).frames, whole.frames[:3])  # what lies before the cut is fine


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.mkv", "libvpx-vp9"), ("a.mkv", "libx265")])
def test_damage_inside_is_counted(tmp_path: Path, name: str, codec: str) -> None:
    """Packets that are no longer what they were: the frames that are missing are counted, in silence lost or not."""
    options = {"x265-params": "log-level=none"} if codec == "libx265" else {"g": "10", "bf": "0"}
    path = make(tmp_path / name, gradient(50, 96, 96), codec=codec, options=options)
    with av.open(str(path)) as container:
        places = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    data = bytearray(path.read_bytes())
    for place, size in (places[21], places[22], places[34]):
        data[place + 1 : place + size] = bytes(size - 1)
    path.write_bytes(data)
    with open_video(path, keep_going=True) as reader:
        frames = sum(len(chunk) for chunk in reader)
        damage = reader.damage
    assert damage is not None
    if frames < 50:
        assert f"{50 - frames} of 50 frames could not be decoded" in damage
        assert f"{frames} frames could be read" in damage
    else:
        assert "of 50 frames are damaged" in damage
    try:
        with open_video(path) as reader:
            assert sum(len(chunk) for chunk in reader) == frames
            assert reader.damage == damage, "what was lost in silence is told nonetheless"
    except VideoError as error:
        assert damage in str(error), "the whole damage is told, not only the first of it"
        assert "use what could be read" in str(error) and error.about == ("keep_going",)


def test_cut_pipe(tmp_path: Path) -> None:
    data = make(tmp_path / "a.mkv", gradient(60, 96, 96)).read_bytes()
    out, into = os.pipe()
    with open(into, "wb") as file:  # noqa: PTH123 - a file descriptor
        file.write(data[: len(data) * 2 // 3])
    with open(out, "rb") as pipe:  # noqa: PTH123
        assert "cut short" in refusal(pipe)


def test_absurd_size(tmp_path: Path) -> None:
    """A PNG header that promises 60000 x 60000 pixels."""
    Image = pytest.importorskip("PIL.Image", reason="Pillow writes the picture")
    path = tmp_path / "a.png"
    Image.fromarray(gradient(1)[0]).save(path)
    data = bytearray(path.read_bytes())
    data[16:24] = (60000).to_bytes(4, "big") * 2
    path.write_bytes(data)
    refusal(path)
    small = make(tmp_path / "b.mkv", gradient(1), codec="ffv1", pixels="bgr0")
    with pytest.raises(VideoError, match="pixels"):
        read_video(small, size="20000x20000")


def test_random_damage_never_escapes(tmp_path: Path) -> None:
    """Cuts and flipped bytes give a video or an InlayError, nothing else."""
    rng = np.random.default_rng(0)
    files = [
        make(tmp_path / "a.mp4", gradient(8)),
        make(tmp_path / "a.mkv", gradient(8), codec="libvpx-vp9", options={"cpu-used": "8"}),
        make(tmp_path / "a.avi", gradient(8), codec="mpeg4"),
    ]
    read = 0
    for trial in range(120):
        data = bytearray(files[trial % len(files)].read_bytes())
        for place in rng.integers(0, len(data), rng.integers(1, 20)):
            data[place] = rng.integers(256)
        if trial % 2:
            data = data[: rng.integers(1, len(data))]
        try:
            read += len(read_video(io.BytesIO(bytes(data)), keep_going=trial % 4 < 2)) > 0
        except InlayError as error:
            assert "\n" not in str(error)
    assert read > 0


def test_damage_does_not_move_the_reading_place(tmp_path: Path) -> None:
    """Noise after the header: every packet fails, and with keep_going the walk still comes to its end."""
    data = bytearray(make(tmp_path / "a.avi", gradient(8), codec="mpeg4").read_bytes())
    start = data.index(b"movi") + 4
    data[start + 8 :] = np.random.default_rng(0).bytes(len(data) - start - 8)
    with pytest.raises(VideoError):
        read_video(io.BytesIO(bytes(data)), keep_going=True)


def test_promises() -> None:
    def promised(data: bytes) -> int | None:
        return promised_bytes(lambda offset, size: data[offset : offset + size])

    ftyp, mdat = b"\0\0\0\x10ftypisom\0\0\0\0", b"\0\0\1\0mdat"
    assert promised(ftyp + mdat) == 16 + 256
    assert promised(ftyp + b"\0\0\0\1mdat" + (5000).to_bytes(8, "big")) == 16 + 5000
    assert promised(ftyp + b"\0\0\0\0mdat" + bytes(50)) == 16 + 16  # to the end, wherever that is
    assert promised(ftyp + b"\x99\x99\x99\x99\x99\x99\x99\x99") == 16  # rubbish promises nothing
    assert promised(b"RIFF" + (100).to_bytes(4, "little") + b"AVI ") == 108
    assert promised(b"hello, world, how do you do?") is None
    assert needs_seeking(ftyp + mdat)
    assert not needs_seeking(ftyp + b"\0\0\0\x08moov" + mdat)
    assert not needs_seeking(b"hello, world")


def test_a_rate_of_zero_is_no_rate(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mkv", gradient(2), stamps=[0, 3_000_000], clock=Fraction(1, 1000))
    video = read_video(path)
    assert video.fps > 0
    assert video.seconds is not None
