# SPDX-License-Identifier: Apache-2.0
"""Long video on the command line: budgets, pipes, seeking, and what is left of an encode that was killed."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import inlay
from inlay.cli.main import main
from inlay.codec import mode_of
from inlay.container import TokenReader, unfinished
from inlay.video import read_video, write_video
from inlay.video.frames import Video
from tests.conftest import moving_square, still

MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]
INLAY = [sys.executable, "-m", "inlay"]
SAME_THREADS = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # other counts, other last bits


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    write_video(moving_square(120, 24, 32), folder / "clip.mp4")
    write_video(moving_square(40, 24, 32), folder / "short.mp4")
    words = ["encode", str(folder / "clip.mp4"), "--tau", "0.3", "--key-every", "2", "--no-cuts", "--quiet", *MODEL]
    assert main(words) == 0
    return folder


def encode(run, source: object, out: object, *words: object) -> dict:
    code, text, err = run("encode", source, out, "--json", *words, *MODEL)
    assert code == 0, err
    return json.loads(text)


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_budgets_are_kept_and_told(run, made: Path, tmp_path: Path) -> None:
    clip = made / "short.mp4"
    record = encode(run, clip, tmp_path / "a.inlay", "--keep", 0.3)
    assert record["keep_rate"] <= 0.3
    assert record["got"] == pytest.approx(record["keep_rate"])
    record = encode(run, clip, tmp_path / "b.inlay", "--keep", 0.3, "--exact")
    assert record["tokens"] == int(0.3 * record["cells"])
    record = encode(run, clip, tmp_path / "c.inlay", "--tokens", 61)
    assert record["tokens"] == record["got"] == 61
    record = encode(run, clip, tmp_path / "d.inlay", "--bits", 0.4)
    assert record["bits_per_pixel"] <= 0.4
    code, text, err = run("encode", clip, tmp_path / "e.inlay", "--psnr", 8, *MODEL)
    assert code == 0, err
    assert "decodes" in text
    assert run("decode", tmp_path / "e.inlay", tmp_path / "e.mp4", "--lossless", "--quiet", "--fill", "hold")[0] == 0
    a, b = (read_video(p).frames.double() for p in (clip, tmp_path / "e.mp4"))
    error = (a - b).square().mean((1, 2, 3))
    assert (10 * torch.log10(255**2 / error)).mean() >= 8


@pytest.mark.slow
def test_budgets_hold_on_real_clips(run, shared: Path, tmp_path: Path) -> None:
    clips = sorted((shared / "data" / "bench").glob("*.mp4"))[3::10]
    for number, clip in enumerate(clips):
        size = ["--size", "64"]
        record = encode(run, clip, tmp_path / f"{number}k.inlay", "--keep", 0.25, *size)
        assert record["keep_rate"] <= 0.25
        record = encode(run, clip, tmp_path / f"{number}t.inlay", "--tokens", 1500, *size)
        assert record["tokens"] == 1500


REFUSED = [
    (["--keep", "0.3", "--tau", "0.3"], "contradict"),
    (["--keep", "1.2"], "a share of the cells, above 0 and at most 1; got 1.2 (--keep)"),
    (["--keep", "-0.2"], "(--keep)"),
    (["--tokens", "0"], "a number of tokens, 1 or more; got 0 (--tokens)"),
    (["--tokens", "1.5"], "--tokens"),
    (["--tokens", "3"], "(--tokens, --key-every)"),
    (["--bits", "-1"], "(--bits)"),
    (["--psnr", "200"], "at most 100"),
    (["--psnr", "90"], "at its finest"),
    (["--exact"], "(--exact, --keep)"),
    (["--bucket", "2"], "(--bucket, --keep, --bits)"),
    (["--keep", "0.3", "--bucket", "-2"], "(--bucket)"),
    (["--mode", "statefull"], "did you mean 'stateful'"),
    (["--chunk", "32"], "33 is"),
    (["--chunk", "0"], "a number of frames, at least 2; got 0"),
    (["--key-every", "-1"], "--key-every"),
    (["--curve", "x.jpg"], ".png"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[" ".join(w) for w, _ in REFUSED])
def test_bad_values_are_refused_in_one_line(run, made: Path, tmp_path: Path, words: list[str], says: str) -> None:
    given = words if {"--tau", "--keep", "--tokens", "--bits", "--psnr"} & {*words} else [*words, "--tau", "0.3"]
    code, out, err = run("encode", made / "clip.mp4", tmp_path / "x.inlay", *given, *MODEL)
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1
    assert says in err
    assert not list(tmp_path.iterdir())


# --- seeking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(1.0, 1.5), (0, 0.3), (3.2, 4.1), (1.8, 99), (4.9, 4.91)])
def test_a_part_is_the_part_of_the_whole(run, made: Path, tmp_path: Path, start: float, end: float) -> None:
    words = ["--lossless", "--fill", "hold", "--quiet"]
    assert run("decode", made / "clip.inlay", tmp_path / "all.mp4", *words)[0] == 0
    code, _, err = run("decode", made / "clip.inlay", tmp_path / "part.mp4", "--from", start, "--to", end, *words)
    assert code == 0, err
    whole, part = read_video(tmp_path / "all.mp4").frames, read_video(tmp_path / "part.mp4").frames
    first, last = -int(-start * 24 // 1), min(-int(-end * 24 // 1), 120)
    assert part.equal(whole[first:last] if last > first else whole[first - 1 : first]), "or the frame of that moment"


def test_seeking_reads_nothing_but_what_it_needs(run, made: Path, tmp_path: Path) -> None:
    with TokenReader(made / "clip.inlay") as reader:
        spans, entries = reader.spans, reader._contents.entries
    assert [i for i, s in enumerate(spans) if s.key] == [0, 2, 4]
    data = bytearray((made / "clip.inlay").read_bytes())
    for number in (0, 1, 4, 5):  # all but the second and a half to the fourth second
        if number < len(entries):
            at = entries[number].offset
            data[at : at + entries[number].length] = bytes(entries[number].length)
    hurt = tmp_path / "hurt.inlay"
    hurt.write_bytes(data)
    assert run("decode", hurt, tmp_path / "x.mp4", "--from", 2, "--to", 3, "--quiet")[0] == 0
    assert len(read_video(tmp_path / "x.mp4")) == 24
    assert run("decode", hurt, tmp_path / "y.mp4", "--from", 0, "--to", 1)[0] == 4


def test_seeking_goes_by_the_times_of_the_file(run, tmp_path: Path) -> None:
    seconds = torch.cat([torch.arange(40) / 10, 4 + torch.arange(60) / 30]).double()
    write_video(Video(frames=moving_square(100, 16, 16).frames, seconds=seconds), tmp_path / "vary.mkv")
    encode(run, tmp_path / "vary.mkv", tmp_path / "vary.inlay", "--tau", 0.3, "--key-every", 1)
    code, text, err = run("decode", tmp_path / "vary.inlay", tmp_path / "x.mkv", "--from", 3.95, "--to", 5, "--json")
    assert code == 0, err
    assert json.loads(text)["frames"] == 30


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--from", "9"], "after its end"), (["--from", "2", "--to", "1"], "later"), (["--from", "-1"], "0 or more")],
)
def test_bad_times_are_refused(run, made: Path, tmp_path: Path, words: list[str], says: str) -> None:
    code, out, err = run("decode", made / "clip.inlay", tmp_path / "x.mp4", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert not list(tmp_path.iterdir())


# --- pipes and live sources -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_live_pipe_in_and_out(tmp_path: Path) -> None:
    """Frames are written to the pipe while the encoder runs; with ffmpeg at hand it makes them, else PyAV does."""
    out = tmp_path / "live.inlay"
    words = [*INLAY, "encode", "-", str(out), "--keep", "0.4", "--bucket", "1", "--json", *MODEL]
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg:
        source = [ffmpeg, "-v", "error", "-re", "-f", "lavfi", "-i", "testsrc=size=48x32:rate=24:duration=4",
                  "-c:v", "libx264", "-tune", "zerolatency", "-f", "matroska", "-"]  # fmt: skip
    else:
        source = [sys.executable, "-c", FEED]
    feeder = subprocess.Popen(source, stdout=subprocess.PIPE, env=SAME_THREADS)
    done = subprocess.run(words, stdin=feeder.stdout, capture_output=True, env=SAME_THREADS)
    assert feeder.stdout is not None
    feeder.stdout.close()
    assert feeder.wait() == 0
    assert done.returncode == 0, done.stderr.decode()
    record = json.loads(done.stdout)
    assert record["frames"] == 96
    assert record["peak_overshoot"] <= record["bucket_size"] * 1.0001
    assert record["chunks"] >= 3
    done = subprocess.run([*INLAY, "decode", str(out), "-", "--fill", "hold"], capture_output=True, env=SAME_THREADS)
    assert done.returncode == 0, done.stderr.decode()
    (tmp_path / "back.mp4").write_bytes(done.stdout)
    assert len(read_video(tmp_path / "back.mp4")) == 96


FEED = """
import sys, time, av, numpy
container = av.open(sys.stdout.buffer, "w", format="matroska")
stream = container.add_stream("libx264", rate=24, options={"tune": "zerolatency"})
stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
for t in range(96):
    picture = numpy.zeros((32, 48, 3), dtype="uint8")
    picture[8:20, t % 36 : t % 36 + 12] = 200
    for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
        container.mux(packet)
    time.sleep(0.005)
for packet in stream.encode(None):
    container.mux(packet)
container.close()
"""


def test_pipes_refuse_what_needs_the_whole_video(tmp_path: Path, run) -> None:
    for words in (["--tokens", 5], ["--psnr", 30], ["--keep", 0.3, "--exact"]):
        code, _, err = run("encode", "-", tmp_path / "x.inlay", *words, *MODEL)
        assert code == 2
        assert "whole video" in err


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget",
    [["--tau", "0.3"], pytest.param(["--keep", "0.4", "--bucket", "1"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_killed_resumed_decoded_identical(run, tmp_path: Path, budget: list[str]) -> None:
    clip, out, part = tmp_path / "clip.mp4", tmp_path / "x.inlay", tmp_path / "x.inlay.part"
    write_video(moving_square(400, 24, 24), clip)
    settings = [*budget, "--key-every", "1.5", *MODEL]
    assert run("encode", clip, tmp_path / "whole.inlay", "--quiet", *settings)[0] == 0
    child = subprocess.Popen([*INLAY, "encode", str(clip), str(out), *settings], env=SAME_THREADS)
    enough = (tmp_path / "whole.inlay").stat().st_size // 3
    while child.poll() is None and not (part.exists() and part.stat().st_size > enough):
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the encode ended before it could be killed"
    assert not out.exists()
    left = unfinished(out)
    assert left is not None and 0 < left.frames < 400
    code, _, err = run("encode", clip, out, *settings)
    assert code == 2 and "--resume" in err, "what was done is not thrown away unasked"
    code, _, err = run("encode", clip, out, "--resume", *settings, "--precision", "fp16")
    assert code == 2 and "other settings" in err
    code, _, err = run("encode", clip, out, "--resume", "--quiet", *settings)
    assert code == 0, err
    assert out.read_bytes() == (tmp_path / "whole.inlay").read_bytes()
    assert not part.exists()
    assert run("verify", out)[0] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there SIGTERM ends a process at once")
def test_a_terminated_decode_leaves_nothing_half_written(tmp_path: Path) -> None:
    clip, tokens, out = tmp_path / "clip.mp4", tmp_path / "x.inlay", tmp_path / "x.mp4"
    write_video(moving_square(1200, 24, 24), clip)
    assert main(["encode", str(clip), str(tokens), "--tau", "0.3", "--quiet", *MODEL]) == 0
    before = sorted(tmp_path.iterdir())
    words = [*INLAY, "decode", str(tokens), str(out), "--fill", "hold", "--device", "cpu", "--quiet"]
    child = subprocess.Popen(words, env=SAME_THREADS, stderr=subprocess.PIPE, text=True)
    while child.poll() is None and sorted(tmp_path.iterdir()) == before:
        time.sleep(0.002)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate()
    assert (child.returncode, err) == (143, "inlay: terminated\n")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(sys.platform == "win32", reason="there SIGTERM ends a process at once")
def test_a_second_sigterm_does_not_interrupt_what_the_first_began() -> None:
    words = "import os, signal\nfrom inlay.cli.main import _terminate\nfrom inlay.errors import Terminated\n"
    words += "ask = lambda: os.kill(os.getpid(), signal.SIGTERM)\nsignal.signal(signal.SIGTERM, _terminate)\n"
    words += "try:\n    ask()\nexcept Terminated:\n    ask()\n    print('put away')\n"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "put away\n"), done.stderr


def test_what_is_left_of_a_killed_encode_can_be_decoded(run, made: Path, tmp_path: Path) -> None:
    with TokenReader(made / "clip.inlay") as reader:
        second = reader._contents.entries[1]
        header = reader.header
    from dataclasses import replace

    data = bytearray(
        (made / "clip.inlay").read_bytes()[: second.offset + second.length + 50]
    )  # torn in the third chunk
    blank = replace(header, frames=None, chunks=None, file_bytes=None).pack()
    data[: len(blank)] = blank
    part = tmp_path / "x.inlay.part"
    part.write_bytes(data)
    code, _, err = run("decode", part, tmp_path / "x.mp4", "--keep-going")
    assert code == 0, err
    assert len(read_video(tmp_path / "x.mp4")) == sum(s.frames for s in inlay.open(part, keep_going=True).spans)


def test_interrupting_a_live_stream_ends_it(run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.codec import Parts

    calls = []

    def interrupted(self, tokens):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Parts, "saw_tokens", interrupted)
    write_video(moving_square(60, 24, 32), tmp_path / "clip.mkv")
    with subprocess.Popen(["cat", str(tmp_path / "clip.mkv")], stdout=subprocess.PIPE) as camera:
        assert camera.stdout is not None
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(camera.stdout))  # type: ignore[arg-type]
        code, _, err = run("encode", "-", tmp_path / "x.inlay", "--tau", 0.3, *MODEL)
    assert code == 130
    assert "x.inlay" in err
    assert run("verify", tmp_path / "x.inlay")[0] == 0
    assert {p.name for p in tmp_path.iterdir()} == {"clip.mkv", "x.inlay"}
    assert inlay.open(tmp_path / "x.inlay").info.frames == 33


def test_resume_with_nothing_to_resume_begins(run, made: Path, tmp_path: Path) -> None:
    words = ["--tau", 0.3, "--key-every", 2, "--no-cuts", "--resume"]
    record = encode(run, made / "clip.mp4", tmp_path / "x.inlay", *words)
    assert record["frames"] == 120
    assert (tmp_path / "x.inlay").read_bytes() == (made / "clip.inlay").read_bytes()
    (tmp_path / "y.inlay.part").write_bytes(b"not a token file at all")
    code, _, err = run("encode", made / "clip.mp4", tmp_path / "y.inlay", *words, *MODEL)
    assert code == 2 and "not an unfinished token file" in err


# --- modes, curve, noise ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["stateful", "dual-cache", "clips"])
def test_a_file_knows_its_mode_and_decodes_without_being_told(run, made: Path, tmp_path: Path, mode: str) -> None:
    record = encode(run, made / "clip.mp4", tmp_path / "x.inlay", "--tau", 0.3, "--mode", mode)
    tokens = inlay.open(tmp_path / "x.inlay")
    assert mode_of(tokens.recipe) == mode
    assert record["frames"] == 120
    assert run("decode", tmp_path / "x.inlay", tmp_path / "x.mp4", "--quiet")[0] == 0
    assert len(read_video(tmp_path / "x.mp4")) == 120
    assert run("view", tmp_path / "x.inlay", tmp_path / "film.mp4", "--quiet")[0] == 0


def test_curve_of_an_encode(run, made: Path, tmp_path: Path) -> None:
    encode(run, made / "clip.mp4", tmp_path / "x.inlay", "--tau", 0.3, "--curve", tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_curves_of_clips_and_of_a_stream_in_one_picture(tiny_tokenizer) -> None:
    from inlay.codec import EncodeConfig, Encoder, keep_curve
    from inlay.draw.plots import keep_curves

    def curve(mode: str):
        config = EncodeConfig(mode=mode, key_seconds=0)
        return keep_curve(Encoder(tiny_tokenizer, config, tau=0.3).encode([still(100, 16, 16)]))

    curves = {"per clip": curve("clips"), "streaming": curve("stateful")}
    assert keep_curves(curves, title="x").startswith(b"\x89PNG")
    assert curves["per clip"].keep_rate > 3 * curves["streaming"].keep_rate
    json.dumps(curves["streaming"].record(), allow_nan=False)


def test_noise_flag_spends_less_on_a_noisy_still(run, tmp_path: Path) -> None:
    frames = still(66, 64, 64).frames.float() * 0.3 + 8 * torch.randn(66, 64, 64, 3)
    write_video(Video(frames=frames.clamp(0, 255).to(torch.uint8)), tmp_path / "noisy.mp4", lossless=True)
    plain = encode(run, tmp_path / "noisy.mp4", tmp_path / "a.inlay", "--tau", 0.4)
    calm = encode(run, tmp_path / "noisy.mp4", tmp_path / "b.inlay", "--tau", 0.4, "--noise")
    assert calm["tokens"] < 0.3 * plain["tokens"]
