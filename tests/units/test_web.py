# SPDX-License-Identifier: Apache-2.0
"""The page's logic without a browser and without Gradio: limits, sessions, masks from cached latents, pictures."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from inlay.errors import ConfigError, UsageError, VideoError
from inlay.masking import Profile
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.web import render
from inlay.web.actions import ALL, BY_KEEP, BY_TAU, MODELS_OWN, PAPER, TENTH, USUAL, Actions, View
from inlay.web.clips import CLIPS, CODE, DEFAULT, EncodedClips, built_in
from inlay.web.limits import Limits
from inlay.web.request_filter import RequestFilter
from inlay.web.server import ServeConfig, free_port
from inlay.web.session import Session
from inlay.web.sessions import Sessions
from inlay.web.sheets import Sheets, write_sheets
from inlay.web.snippets import snippets
from inlay.web.uploads import check_signature, read_clip
from tests.conftest import moving_square, still

HERE = "127.0.0.1"
SMALL = Limits(max_mb=1, max_seconds=1, max_side=96, side=64)


def quiet(share: float, what: str) -> None:
    pass


def saved(path: Path, video: Video) -> str:
    return str(video.save(path))


@contextlib.contextmanager
def page(folder: Path, tokenizer: Tokenizer, uploads: Path | None = None) -> Iterator[Actions]:
    sessions, clips = Sessions(folder / "desk"), EncodedClips(folder=folder / "clips")
    yield Actions(tokenizer=tokenizer, sessions=sessions, clips=clips, limits=SMALL, uploads=uploads or folder)
    sessions.close()
    clips.close()


def shown(view: View) -> dict[str, Any]:
    """What the viewer is given."""
    return json.loads(base64.b64decode(view.data.split('data-view="')[1].split('"')[0]))


def painted(sheets: Sheets, frame: int, height: int, width: int) -> np.ndarray:
    """A frame as a browser cuts it out of its sheet."""
    with Image.open(sheets.paths[frame // sheets.each]) as image:
        row, column = divmod(frame % sheets.each, sheets.columns)
        box = (column * width, row * height, (column + 1) * width, (row + 1) * height)
        return np.asarray(image.convert("RGB").crop(box), np.float32)


@pytest.fixture
def actions(tmp_path: Path, tiny_tokenizer: Tokenizer) -> Iterator[Actions]:
    with page(tmp_path, tiny_tokenizer) as made:
        yield made


@pytest.fixture
def loaded(actions: Actions, tmp_path: Path) -> Actions:
    view = actions.upload("ann", saved(tmp_path / "square.mp4", moving_square(17, 64, 64)), quiet)
    assert "inlay-error" not in view.status, view.status
    return actions


def rate(view: View) -> float:
    return float(column(view, "keep rate")[0].removesuffix("%"))


def column(view: View, name: str) -> list[str]:
    """Of the table, from the first setting to the last."""
    return re.findall(rf'<td data-label="{re.escape(name)}"[^>]*>([^<]*)', view.table)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_clip_within_the_limits_is_read_as_it_is(tmp_path: Path) -> None:
    clip = moving_square(9, 64, 48)
    path = clip.save(tmp_path / "a.mkv", lossless=True)
    assert torch.equal(read_clip(path, SMALL).video.frames, clip.frames)


def test_a_larger_clip_is_reduced_to_the_side_worked_at(tmp_path: Path) -> None:
    path = still(2, 96, 80).save(tmp_path / "a.mp4")
    assert min(read_clip(path, SMALL).video.frames.shape[1:3]) == 64


@pytest.mark.parametrize(
    ("clip", "limits", "words"),
    [
        (still(30, 64, 64), SMALL, "lasts 1.2 s"),
        (still(2, 64, 128), SMALL, "is 128x64, and this page takes at most 96"),
        (still(2, 64, 64), Limits(max_mb=0.0005), "at most 0.0005 MB"),
    ],
)
def test_what_is_too_much_is_refused_with_the_limit(tmp_path: Path, clip: Video, limits: Limits, words: str) -> None:
    path = clip.save(tmp_path / "a.mp4")
    with pytest.raises(UsageError, match=words):
        read_clip(path, limits)


@pytest.mark.parametrize(
    "text", ["#EXTM3U\n#EXTINF:1,\n/etc/hostname\n", "ffconcat version 1.0\nfile b.mp4\n", "hello"]
)
def test_text_that_could_name_other_files_is_no_video(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list.mp4"
    path.write_text(text)
    with pytest.raises(VideoError, match="not a video"):
        check_signature(path)


def test_a_playlist_shows_nothing_of_the_video_it_names(actions: Actions, tmp_path: Path) -> None:
    secret = saved(tmp_path / "secret.ts.mp4", moving_square(5, 64, 64))
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n")
    view = actions.upload("eve", str(playlist), quiet)
    assert "not a video" in view.status and shown(view) == {}


@pytest.mark.parametrize("name", ["max_mb", "max_seconds", "max_side", "side"])
def test_limits_check_themselves(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})


def test_messages_do_not_tell_where_uploads_lie(actions: Actions, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"\0\0\0\x18ftypisom" + bytes(2000))
    for view in (
        actions.upload("ann", str(broken), quiet),
        actions.upload_tokens("ann", str(broken), "hold", quiet),
    ):
        assert "inlay-error" in view.status and str(tmp_path) not in view.status and "broken.mp4" in view.status


# --- masks -----------------------------------------------------------------------------------------------------------


def test_a_higher_tau_keeps_no_more(loaded: Actions) -> None:
    rates = [rate(loaded.choose("ann", "A", BY_TAU, tau, 0)) for tau in (0.0, 0.05, 0.2, 1e6)]
    assert rates == sorted(rates, reverse=True) and rates[0] == 100 and rates[-1] == 20  # slot 0 of five


def test_the_mask_is_that_of_the_command_line(loaded: Actions, tmp_path: Path) -> None:
    from inlay.codec import Encoder

    tokenizer = loaded.tokenizer
    loaded.choose("ann", "A", BY_TAU, 0.1, 0)
    session = loaded.sessions.of("ann")
    assert session.original is not None
    want = list(Encoder(tokenizer, tau=0.1).encode([session.original]))
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(session.setting("A").choice.chunks, want, strict=True))


def test_keep_rate_mode_gives_that_rate(loaded: Actions) -> None:
    assert rate(loaded.choose("ann", "A", BY_KEEP, 0, 40)) == 40


def test_a_keep_rate_below_what_slot_0_needs_is_explained(loaded: Actions) -> None:
    view = loaded.choose("ann", "A", BY_KEEP, 0, 5)
    assert "kept whole" in view.status and "inlay-error" in view.status


def test_no_number_changes_nothing(loaded: Actions) -> None:
    before = loaded.sessions.of("ann").setting("A")
    for mode in (BY_TAU, BY_KEEP):
        view = loaded.choose("ann", "A", mode, None, None)
        assert "Give a number" in view.status and "inlay-error" not in view.status
    assert loaded.sessions.of("ann").setting("A") is before


def test_the_dial_out_of_sight_goes_along(loaded: Actions) -> None:
    view = loaded.choose("ann", "A", BY_TAU, 0.05, 0)
    assert view.moved == BY_TAU and view.controls is not None
    assert view.controls.tau == 0.05 and view.controls.keep == pytest.approx(rate(view), abs=0.05)
    view = loaded.choose("ann", "A", BY_KEEP, 0, 40)
    assert view.moved == BY_KEEP and view.controls is not None
    assert f"{view.controls.tau:.4g}" == str(view.controls.tau) == column(view, "tau")[0], "as it is written elsewhere"


@pytest.mark.parametrize("tau", [-1.0, float("nan"), float("inf")])
def test_a_tau_that_makes_no_sense_changes_nothing(loaded: Actions, tau: float) -> None:
    before = loaded.sessions.of("ann").setting("A")
    view = loaded.choose("ann", "A", BY_TAU, tau, 0)
    assert "inlay-error" in view.status and loaded.sessions.of("ann").setting("A") is before


def test_moving_tau_on_33_frames_repaints_well_under_a_second(actions: Actions, tiny_tokenizer: Tokenizer) -> None:
    session = actions.sessions.of("ann")
    session.load(tiny_tokenizer, moving_square(33, 256, 256), "square", 0.0, quiet)
    spent = []
    for tau in (0.05, 0.1, 0.2):
        start = time.perf_counter()
        actions.choose("ann", "A", BY_TAU, tau, 0)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.5, spent


# --- reconstruction --------------------------------------------------------------------------------------------------


def test_what_is_shown_is_what_the_token_file_gives(loaded: Actions) -> None:
    import inlay.container

    view = loaded.reconstruct("ann", "A", "linear", quiet)
    assert view.token_file is not None and view.film is not None, view.status
    decoded = loaded.tokenizer.decode(inlay.container.open(view.token_file), fill="linear")
    sheets = loaded.sessions.of("ann").setting("A").results["linear"].sheets
    assert all(np.abs(painted(sheets, frame, 64, 64) - decoded.frames[frame].numpy()).mean() < 4 for frame in range(17))
    for word in ("PSNR", "SSIM", "bits per pixel", ", decode ", f"{view.token_file.stat().st_size:,}"):
        assert word in view.table


def test_fills_stand_side_by_side_until_the_mask_changes(loaded: Actions) -> None:
    loaded.reconstruct("ann", "A", "hold", quiet)
    view = loaded.reconstruct("ann", "A", "linear", quiet)
    assert column(view, "fill") == ["hold", "linear"]
    view = loaded.refill("ann", "A", "hold")
    assert "Showing the reconstruction with hold" in view.status and shown(view)["settings"]["A"]["fill"] == "hold"
    pictures = sorted(loaded.sessions.of("ann").folder.glob("pictures*"))
    assert len(pictures) == 3, "of the input and of two fills"
    view = loaded.choose("ann", "A", BY_TAU, 0.3, 0)
    assert view.token_file is None and view.film is None and shown(view)["settings"]["A"]["result"] is None
    assert sorted(loaded.sessions.of("ann").folder.glob("pictures*")) == pictures[:1]


def test_the_film_shows_input_mask_and_reconstruction(loaded: Actions) -> None:
    from inlay.video import read_video

    view = loaded.reconstruct("ann", "A", "hold", quiet)
    film = read_video(view.film).frames
    head, factor = 2 * 29, 4  # pixels of caption and labels; 64 pixels are enlarged to more than 240
    assert len(film) == 17 and film.shape[2] == 3 * 64 * factor + 2 * 8
    shown = film[:, head : head + 64 * factor : factor, : 64 * factor : factor].float()
    original = loaded.sessions.of("ann").original
    assert original is not None
    assert (shown - original.frames.float()).abs().mean() < 6


def test_a_token_file_comes_back_without_its_original(loaded: Actions, tmp_path: Path) -> None:
    made = loaded.reconstruct("ann", "A", "hold", quiet).token_file
    assert made is not None
    path = tmp_path / "theirs.inlay"
    path.write_bytes(made.read_bytes())
    view = loaded.upload_tokens("bob", str(path), "hold", quiet)
    assert "Decoded theirs.inlay" in view.status and view.film is not None and not view.can_choose
    want, got = (loaded.sessions.of(name).setting("A").results["hold"].sheets for name in ("ann", "bob"))
    assert [path.read_bytes() for path in want.paths] == [path.read_bytes() for path in got.paths]
    assert "built-in one to choose masks" in loaded.choose("bob", "A", BY_TAU, 0.1, 0).status
    assert "built-in one to see latents" in loaded.latents("bob", 0)


def test_damaged_token_files_are_refused(loaded: Actions, tmp_path: Path) -> None:
    made = loaded.reconstruct("ann", "A", "hold", quiet).token_file
    assert made is not None
    data = bytearray(made.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "bad.inlay"
    path.write_bytes(data)
    view = loaded.upload_tokens("bob", str(path), "hold", quiet)
    assert "bad.inlay" in view.status and "inlay-error" in view.status and "--keep-going" not in view.status
    assert shown(view) == {}


def test_a_token_file_of_many_frames_is_refused_before_decoding(loaded: Actions, tmp_path: Path) -> None:
    made = loaded.reconstruct("ann", "A", "hold", quiet).token_file
    short = replace(loaded, limits=Limits(max_seconds=0.2))
    assert "holds 0.7 s" in short.upload_tokens("bob", str(made), "hold", quiet).status


# --- sessions --------------------------------------------------------------------------------------------------------


def test_one_visitors_error_is_not_anothers(loaded: Actions, tmp_path: Path) -> None:
    bad = tmp_path / "notes.mp4"
    bad.write_text("not a video")
    before = loaded.switch("ann", "A").data
    assert "inlay-error" in loaded.upload("bob", str(bad), quiet).status
    after = loaded.switch("ann", "A")
    assert "inlay-error" not in after.status and after.data == before


def test_an_upload_that_fails_leaves_the_clip_that_was_there(loaded: Actions, tmp_path: Path) -> None:
    bad = tmp_path / "notes.mp4"
    bad.write_text("not a video")
    view = loaded.upload("ann", str(bad), quiet)
    assert "inlay-error" in view.status and shown(view)["frames"] == 17 and view.can_choose and not view.fresh
    assert loaded.upload("ann", saved(tmp_path / "one.mp4", moving_square(1, 64, 64)), quiet).fresh


def test_a_defect_is_told_without_details(loaded: Actions) -> None:
    view = loaded.choose("ann", "A", BY_TAU, "seven", 0)  # type: ignore[arg-type]
    assert "Something went wrong" in view.status and "seven" not in view.status


@pytest.mark.parametrize("path", ["/etc/hostname", "../../etc/hostname", "", None])
def test_only_uploads_are_opened(actions: Actions, path: str | None) -> None:
    assert "inlay-error" in actions.upload("eve", path, quiet).status


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    outside = saved(tmp_path / "secret.mp4", moving_square(5, 64, 64))
    files = tmp_path / "files"
    files.mkdir()
    (files / "link.mp4").symlink_to(outside)
    with page(tmp_path, tiny_tokenizer, uploads=files) as actions:
        assert "was not uploaded" in actions.upload("eve", str(files / "link.mp4"), quiet).status


@pytest.mark.parametrize("name", ["../../evil", "/abs", "a\0b", "", "x" * 500, "<img src=x onerror=alert(1)>"])
def test_hostile_names_stay_names(loaded: Actions, name: str) -> None:
    session = loaded.sessions.of("ann")
    session.name = name + ".mp4"
    place = session.film_place("A", "hold")
    assert place.parent == session.folder / "A" and place.suffix == ".mp4" and len(place.name) <= 70
    view = loaded.switch("ann", "A")
    assert not any("<img src=x" in part for part in (view.status, view.data, view.table, view.code))
    assert shown(view)["clip"] == name + ".mp4"


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("Übung ü.mp4", "Übung-ü"),
        ("U\u0308bung.mp4", "Übung"),
        ("हिन्दी 日本語.mp4", "हिन्दी-日本語"),
        ("a\u202e4pm/\x00..\\c:d.mkv", "c-d"),
        ("\ud800.mp4", "clip"),
        ("日" * 99, "日" * 60),
        ("𠮷" * 99, "𠮷" * 45),
    ],
)
def test_files_of_ours_keep_the_letters_of_a_name(tmp_path: Path, name: str, stem: str) -> None:
    assert Session(folder=tmp_path, name=name).stem == stem


def test_one_frame_is_not_some_frames(actions: Actions, tmp_path: Path) -> None:
    view = actions.upload("ann", saved(tmp_path / "one.mp4", moving_square(1, 64, 64)), quiet)
    assert "one.mp4: 1 frame 64x64;" in view.status and "1 frame 64x64 at" in view.table


def test_the_desk_is_bounded_and_clears_up(tmp_path: Path) -> None:
    desk = Sessions(tmp_path, most=2)
    first = desk.of("../../a")
    assert first.folder.parent == tmp_path
    desk.of("b")
    assert desk.of("../../a") is first
    desk.of("c")
    assert len(desk) == 2 and desk.of("../../a") is first and len(list(tmp_path.iterdir())) == 2
    desk.leave("../../a")
    assert not first.folder.exists()
    desk.close()
    assert list(tmp_path.iterdir()) == [] and len(desk) == 0


def test_idle_sessions_are_put_away(tmp_path: Path) -> None:
    desk = Sessions(tmp_path, idle_seconds=0.0)
    old = desk.of("a")
    desk.of("b")
    assert not old.folder.exists() and len(desk) == 1


def test_an_upload_goes_with_its_visitor(actions: Actions, tmp_path: Path) -> None:
    def sent(name: str) -> Path:
        (tmp_path / name).mkdir()
        return Path(saved(tmp_path / name / "square.mp4", moving_square(9, 64, 64)))

    first, second, third = sent("a"), sent("b"), sent("c")
    actions.upload("ann", str(first), quiet)
    actions.upload("bob", str(first), quiet)  # the same file: Gradio keeps one of it
    actions.upload("ann", str(second), quiet)
    assert first.exists() and second.exists(), "bob still has the first"
    actions.sessions.leave("bob")
    assert not first.parent.exists() and second.exists()
    actions.upload("ann", str(third), quiet)
    assert not second.exists() and third.exists()
    third.write_bytes(third.read_bytes())  # somebody has just sent it again, and waits for their turn
    actions.sessions.leave("ann")
    assert third.exists()
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    assert "inlay-error" in actions.upload("ann", str(bad), quiet).status
    actions.sessions.leave("ann")
    assert not bad.exists(), "what was refused goes as well"


def test_a_fresh_upload_that_somebody_else_may_wait_with_stays_for_a_while(tmp_path: Path) -> None:
    desk = Sessions(tmp_path / "desk", fresh_seconds=1.0)
    upload = tmp_path / "a" / "a.mp4"
    upload.parent.mkdir()
    upload.touch()
    desk.take(desk.of("ann"), upload)
    desk.leave("ann")
    desk.tidy()
    assert upload.exists()
    time.sleep(1.1)
    desk.tidy()
    assert not upload.parent.exists()


def test_idle_sessions_are_put_away_though_nobody_comes(tmp_path: Path) -> None:
    desk = Sessions(tmp_path / "desk", idle_seconds=0.0)
    old = desk.of("a")
    upload = tmp_path / "a.mp4"
    upload.touch()
    desk.take(old, upload)
    desk.tidy()
    assert not old.folder.exists() and len(desk) == 0 and not upload.exists()


def test_one_request_has_an_end(actions: Actions, tmp_path: Path) -> None:
    clip = saved(tmp_path / "square.mp4", moving_square(17, 64, 64))
    assert "inlay-error" not in actions.upload("ann", clip, quiet).status
    hasty = replace(actions, limits=replace(SMALL, max_work=1e-6))
    assert "took longer than" in hasty.reconstruct("ann", "A", "hold", quiet).status
    assert "took longer than" in hasty.upload("ann", clip, quiet).status


def test_who_leaves_while_something_is_made_leaves_nothing(
    actions: Actions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clip = saved(tmp_path / "square.mp4", moving_square(17, 64, 64))
    for at in ("Decoding", "Measuring", "Writing the film", "Reading the video"):
        actions.upload("ann", clip, quiet)
        folder = actions.sessions.of("ann").folder
        said: list[str] = []

        def go(share: float, what: str, at: str = at, said: list[str] = said) -> None:
            said.append(what)
            if what == at:
                actions.sessions.leave("ann")

        view = actions.upload("ann", clip, go) if at.startswith("Read") else actions.reconstruct("ann", "A", "hold", go)
        assert said[-1] == at or at == "Writing the film", "nobody waits for the rest"
        assert not folder.exists() and "has ended" in view.status and not view.can_decode
        saved(Path(clip), moving_square(17, 64, 64))  # the upload went with its visitor
    assert not caplog.records, "no defect of ours"


def test_the_pixels_of_a_clip_are_counted(tmp_path: Path) -> None:
    """Wide and flat: the short side is within the limit, and the long one too."""
    limits = Limits(max_mb=1, max_seconds=0.4, max_side=1920, side=32)
    path = tmp_path / "flat.mp4"
    moving_square(9, 64, 1920).save(path)
    with pytest.raises(UsageError, match="million pixels"):
        read_clip(path, limits)


# --- settings, presets, addresses --------------------------------------------------------------------------------


def test_the_page_opens_with_a_clip_and_its_mask(actions: Actions) -> None:
    view = actions.open("ann", "", quiet)
    data = shown(view)
    assert view.clip == DEFAULT == data["clip"] and data["frames"] == 49 and 0 < data["settings"]["A"]["rate"] < 1
    assert view.controls is not None and view.controls.mode == BY_TAU and view.can_choose and view.can_decode
    assert len(data["settings"]) == 1 and data["input"]["urls"] == ["clips/clip0/0.webp"]


def test_a_built_in_clip_is_encoded_once_and_shared_by_no_one(actions: Actions) -> None:
    first, second = (actions.pick(name, "Moving square", quiet) for name in ("ann", "bob"))
    ann, bob = (actions.sessions.of(name) for name in ("ann", "bob"))
    assert ann.latents is not None and bob.latents is not None and ann.latents is not bob.latents
    assert shown(first)["settings"] == shown(second)["settings"] and ann.sheets is bob.sheets
    actions.sessions.leave("ann")
    assert "cells kept" in actions.choose("bob", "A", BY_TAU, 0.2, 0).status and bob.sheets.paths[0].is_file()


def test_two_settings_stand_side_by_side(loaded: Actions) -> None:
    loaded.choose("ann", "A", BY_TAU, 0.05, 0)
    view = loaded.switch("ann", "B")
    data = shown(view)["settings"]
    assert data["A"] == data["B"] and view.controls is not None and view.controls.which == "B"
    view = loaded.choose("ann", "B", BY_KEEP, 0, 40)
    data = shown(view)["settings"]
    assert data["A"]["keep"] is None and data["B"]["keep"] == 0.4 and data["A"]["mask"] != data["B"]["mask"]
    a = loaded.reconstruct("ann", "A", "hold", quiet)
    b = loaded.reconstruct("ann", "B", "linear", quiet)
    assert a.token_file is not None and b.token_file is not None and a.token_file.name == b.token_file.name
    assert a.token_file.read_bytes() != b.token_file.read_bytes()
    assert re.findall(r"<th>(\w)</th>", b.table) == ["A", "B"] and column(b, "fill") == ["hold", "linear"]
    back = loaded.switch("ann", "A")
    assert back.controls is not None and back.controls.fill == "hold" and back.controls.tau == 0.05
    assert back.token_file == a.token_file


@pytest.mark.parametrize("which", ["C", "", "../A"])
def test_there_are_no_other_settings(loaded: Actions, which: str) -> None:
    for view in (
        loaded.switch("ann", which),
        loaded.choose("ann", which, BY_TAU, 0.1, 0),
        loaded.reconstruct("ann", which, "hold", quiet),
    ):
        assert "unknown setting" in view.status and list(shown(view)["settings"]) == ["A"]


@pytest.fixture
def stepped(tmp_path: Path, tiny_mini: Any) -> Iterator[Actions]:
    """With a model whose gains are known."""
    gains = tuple(1.0 + i for i in range(tiny_mini.spec.channels))
    profile = Profile(backbone="mini-untrained", weight_hash=tiny_mini.spec.weight_hash, tau=0.1, gains=gains)
    with page(tmp_path / "stepped", Tokenizer(tiny_mini, profile=profile), tmp_path) as made:
        made.upload("ann", saved(tmp_path / "stepped.mp4", moving_square(17, 64, 64)), quiet)
        yield made


def test_a_step_changes_bytes_and_no_mask_in_either_setting(stepped: Actions) -> None:
    stepped.choose("ann", "A", BY_KEEP, 0, 40)
    before = shown(stepped.switch("ann", "B"))["settings"]["A"]
    for which, step in (("A", "fine"), ("B", "small")):
        view = stepped.restep("ann", which, step)
        assert f"step {step}" in view.status
        assert f"--step {step}" in view.code and f"step=&quot;{step}&quot;" in view.code
    data = shown(view)["settings"]
    assert data["A"]["mask"] == data["B"]["mask"] == before["mask"]
    assert [before["step"], data["A"]["step"], data["B"]["step"]] == [None, "fine", "small"]
    assert column(view, "step") == ["1 grey level", "8 grey levels"]
    files = [stepped.reconstruct("ann", which, "hold", quiet).token_file for which in ("A", "B")]
    fine, small = (file.read_bytes() for file in files if file is not None)
    assert len(small) < len(fine)
    kept = shown(stepped.choose("ann", "B", BY_TAU, 0.2, 0))["settings"]["B"]
    assert kept["step"] == "small", "another mask keeps the step"
    back = stepped.switch("ann", "A")
    assert back.controls is not None and back.controls.step == "fine"
    assert shown(stepped.restep("ann", "A", MODELS_OWN))["settings"]["A"]["step"] is None


def test_a_step_that_is_none_changes_nothing(stepped: Actions, loaded: Actions) -> None:
    assert "unknown step" in stepped.restep("ann", "A", "enormous").status
    assert stepped.sessions.of("ann").setting("A").step is None
    assert loaded.steps == [MODELS_OWN] and "unknown step" in loaded.restep("ann", "A", "fine").status


def test_an_address_brings_back_the_step(stepped: Actions) -> None:
    view = stepped.open("bob", "#clip=Moving+square&A=tau:0.07:hold:coarse&B=keep:0.3:hold:enormous", quiet)
    data = shown(view)["settings"]
    assert (data["A"]["step"], data["A"]["tau"], data["A"]["fill"]) == ("coarse", 0.07, "hold")
    assert data["B"]["step"] == "coarse", "one that is unknown leaves what was there: B begins as A is"
    view = stepped.open("bob", "#clip=Moving+square&A=tau:0.07:hold:coarse&B=keep:0.3:hold", quiet)
    assert shown(view)["settings"]["B"]["step"] is None, "as the address is written where B has the model's own"


@pytest.mark.parametrize(("name", "rate"), [(TENTH, 0.10), (PAPER, 0.62), (ALL, 1.0)])
def test_presets_give_what_they_say(actions: Actions, name: str, rate: float) -> None:
    actions.pick("ann", "Moving square", quiet)
    view = actions.preset("ann", "A", name)
    assert shown(view)["settings"]["A"]["rate"] == pytest.approx(rate, abs=1e-3)
    assert view.controls is not None and "cannot be had" not in view.status


def test_a_preset_that_a_short_clip_cannot_have_is_the_nearest(loaded: Actions) -> None:
    usual = shown(loaded.preset("ann", "A", USUAL))["settings"]["A"]
    view = loaded.preset("ann", "A", TENTH)
    assert "10% cannot be had" in view.status and shown(view)["settings"]["A"]["rate"] == pytest.approx(0.2, abs=1e-3)
    assert shown(loaded.preset("ann", "A", USUAL))["settings"]["A"] == usual
    assert "unknown preset" in loaded.preset("ann", "A", "none").status


def test_an_address_brings_back_what_was_shown(actions: Actions) -> None:
    view = actions.open("ann", "#clip=Moving+square&A=tau:0.07:linear&B=keep:0.3:hold&on=B&frame=3", quiet)
    data = shown(view)
    assert data["clip"] == "Moving square" and data["active"] == "B"
    assert (data["settings"]["A"]["tau"], data["settings"]["A"]["fill"]) == (0.07, "linear")
    assert data["settings"]["B"]["rate"] == pytest.approx(0.3, abs=1e-3) and data["settings"]["B"]["fill"] == "hold"
    assert view.controls is not None and view.controls.which == "B" and view.controls.mode == BY_KEEP
    assert "30.0% of its cells" in view.status and "in setting B" in view.status and view.fresh


def test_an_address_of_an_upload_that_is_here_keeps_it(loaded: Actions) -> None:
    first = shown(loaded.switch("ann", "B"))
    view = loaded.open("ann", "#clip=square.mp4&A=tau:0.05:linear", quiet)
    data = shown(view)
    assert data["clip"] == "square.mp4" and "no longer here" not in view.status and data["version"] > first["version"]
    assert list(data["settings"]) == ["A"] and data["settings"]["A"]["tau"] == 0.05
    assert shown(loaded.open("ann", "#clip=square.mp4", quiet))["settings"]["A"] == first["settings"]["A"]


def test_an_address_of_a_token_file_that_is_here_keeps_it(loaded: Actions, tmp_path: Path) -> None:
    made = loaded.reconstruct("ann", "A", "hold", quiet).token_file
    assert made is not None
    path = tmp_path / "theirs.inlay"
    path.write_bytes(made.read_bytes())
    before = shown(loaded.upload_tokens("ann", str(path), "hold", quiet))
    view = loaded.open("ann", "#clip=theirs.inlay&A=tau:0.05:hold", quiet)
    assert "inlay-error" not in view.status and shown(view)["settings"] == before["settings"]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("clip=holiday.mp4", "holiday.mp4 was uploaded, and is no longer here"),
        ("A=tau:seven:lit", "begin anew"),
        ("A=tau:nan", "tau"),
        ("A=keep:9", "keep"),
        ("on=C&B=&A", "Mill, train and ball"),
        ("&=%%%" * 999, "Mill, train and ball"),
    ],
)
def test_an_address_that_makes_no_sense_still_opens_the_page(actions: Actions, state: str, words: str) -> None:
    view = actions.open("ann", state, quiet)
    assert words in view.status and shown(view)["clip"] == DEFAULT


# --- what the viewer is given ------------------------------------------------------------------------------------


def test_masks_and_scores_reach_the_viewer(loaded: Actions) -> None:
    data = shown(loaded.choose("ann", "A", BY_TAU, 0.1, 0))
    setting, choice = data["settings"]["A"], loaded.sessions.of("ann").setting("A").choice
    count = choice.keep_Shw.numel()
    bits = np.unpackbits(np.frombuffer(base64.b64decode(setting["mask"]), np.uint8))[:count]
    assert torch.equal(torch.from_numpy(bits).bool(), choice.keep_Shw.flatten())
    codes = np.frombuffer(base64.b64decode(setting["scores"]["codes"]), np.uint8)
    steps, top = setting["scores"]["steps"], setting["scores"]["top"]
    score = top * (2.0 ** (codes / steps) - 1) / (2.0 ** (254 / steps) - 1)
    assert choice.score_Shw is not None
    want = choice.score_Shw.flatten().numpy()
    first = codes == 255
    assert first[: choice.keep_Shw[0].numel()].all() and not first[choice.keep_Shw[0].numel() :].any()
    np.testing.assert_allclose(score[~first], want[~first], rtol=0.03, atol=1e-3 * top)
    kept = torch.from_numpy(want >= 0.1)
    assert torch.equal(kept, choice.keep_Shw.flatten()), "a cell is kept where its score reaches tau"


def test_sheets_hold_every_frame_in_its_place(tmp_path: Path) -> None:
    video = moving_square(11, 500, 700)
    sheets = write_sheets(video, tmp_path / "sheets")
    assert (sheets.columns, sheets.each, len(sheets.paths)) == (2, 8, 2)
    for frame in (0, 1, 7, 8, 10):
        assert np.abs(painted(sheets, frame, 500, 700) - video.frames[frame].numpy()).mean() < 6, frame


@pytest.mark.parametrize("frame", [float("inf"), float("nan"), -1e300])
def test_latents_of_no_frame_are_those_of_the_nearest(loaded: Actions, frame: float) -> None:
    assert "latents of slot" in loaded.latents("ann", frame)


def test_the_frames_of_a_clip_wait_on_disk(loaded: Actions, tmp_path: Path) -> None:
    original = loaded.sessions.of("ann").original
    assert original is not None and torch.equal(original.frames, read_clip(tmp_path / "square.mp4", SMALL).video.frames)
    assert any(path.stat().st_size == original.frames.numel() for path in tmp_path.glob("desk/*/pictures1/frames"))


def test_latents_of_a_slot_are_a_picture(loaded: Actions) -> None:
    first, last = (loaded.latents("ann", frame) for frame in (0, 999))
    assert "slot 0: 16 channels of 8x8 cells" in first and "slot 4:" in last and first.count("<img") == 2
    assert "there is no clip yet" in loaded.latents("new", 0)


def test_directions_tell_cells_apart_where_they_differ() -> None:
    z_Chw = torch.zeros(6, 4, 4)
    z_Chw[2, :, 2:] = 5.0
    picture = render.directions(z_Chw)
    assert (picture[:, :2] == picture[0, 0]).all() and (picture[:, 2:] == picture[0, 3]).all()
    assert (picture[0, 0] != picture[0, 3]).any()


# --- what to type ------------------------------------------------------------------------------------------------


def typed(session: Session, folder: Path) -> dict[str, bytes]:
    """What the lines that are shown give."""
    from inlay.cli.main import main

    setting = session.setting("A")
    made = snippets(session, setting)
    lines = made.command.splitlines()
    if lines[0].startswith("python"):
        subprocess.run([sys.executable, *shlex.split(lines.pop(0))[1:]], cwd=folder, check=True)
    encode, decode = (shlex.split(line) for line in lines)
    assert "--backbone" in encode and decode[:2] == ["inlay", "decode"] and decode[3:] == ["--fill", "hold"]
    encode[2] = str(folder / encode[2])
    assert main([*encode[1:], "--device", "cpu", "--quiet"]) == 0
    scope: dict[str, Any] = {}
    with contextlib.chdir(folder):
        exec(made.python, scope)
    python = scope["tokens"].save(folder / "python.inlay", force=True)
    return {"command": (folder / decode[2]).read_bytes(), "python": python.read_bytes()}


@pytest.mark.parametrize("source", ["an upload that is reduced", "a built-in clip"])
def test_the_lines_shown_give_the_bytes_of_the_download(tmp_path: Path, source: str) -> None:
    tokenizer = Tokenizer.from_pretrained("mini-untrained", device="cpu")
    with page(tmp_path, tokenizer) as actions:
        if source == "a built-in clip":
            actions.pick("ann", "Moving square", quiet)
            actions.choose("ann", "A", BY_KEEP, 0, 31.4)
        else:
            actions.upload("ann", saved(tmp_path / "it's large.mp4", moving_square(17, 96, 80)), quiet)
            actions.choose("ann", "A", BY_TAU, 0.2, 0)
        view = actions.reconstruct("ann", "A", "hold", quiet)
        assert view.token_file is not None, view.status
        wanted = view.token_file.read_bytes()
        assert typed(actions.sessions.of("ann"), tmp_path) == {"command": wanted, "python": wanted}


def test_the_lines_of_built_in_clips_make_them() -> None:
    from inlay.video import synthetic

    for name, line in CODE.items():
        assert torch.equal(eval(line, {"synthetic": synthetic}).frames, built_in(name).frames), name


# --- fence, server --------------------------------------------------------------------------------------------------


def test_an_empty_session_says_so(actions: Actions) -> None:
    view = actions.switch("new", "A")
    assert "there is no clip yet" in view.status and shown(view) == {} and not view.can_decode


@pytest.mark.parametrize("name", list(CLIPS))
def test_built_in_clips_are_short_and_the_same_every_time(name: str) -> None:
    assert built_in(name).frames.shape == (49, 256, 256, 3)


def test_an_unknown_built_in_clip_is_refused(actions: Actions) -> None:
    assert "unknown built-in clip" in actions.pick("ann", "Mil", quiet).status


def test_the_fence_hands_out_its_own_folder_only(tmp_path: Path) -> None:
    async def app(*_: object) -> None: ...

    fence = RequestFilter(app, folder=tmp_path, hosts=frozenset({"localhost"}))
    base = "/gradio_api/file="
    assert fence.allows("/") and fence.allows("/assets/file-3f2.js") and fence.allows(f"{base}{tmp_path}/a.mp4")
    (tmp_path / "link").symlink_to("/etc")
    for wanted in (
        "/etc/passwd", f"{tmp_path}/../x", f"{tmp_path}/%2e%2e/%2e%2e/etc/passwd", f"{tmp_path}/link/passwd",
        f"http://{HERE}/", "pyproject.toml", "file:///etc/passwd", "/a\0b",
    ):  # fmt: skip
        assert not fence.allows(f"{base}{wanted}"), wanted
        assert not fence.allows(f"/file={wanted}"), wanted
    assert not fence.allows(f"/gradio_api/proxy=http://{HERE}/") and not fence.allows("/file/etc/passwd")


@pytest.mark.parametrize(
    ("config", "served", "refused"),
    [
        (ServeConfig(), ["localhost", "localhost:7860", "127.0.0.1:1", "[::1]:7860"], ["evil.example", "10.0.0.1", ""]),
        (ServeConfig(host="10.0.0.1"), ["10.0.0.1:7860", "localhost"], ["10.0.0.2", "evil.example:80"]),
        (ServeConfig(host="0.0.0.0"), ["10.0.0.2", "[fe80::1]:7860"], ["evil.example", "10.0.0.2.evil.example"]),
        (ServeConfig(names="box.lan, inlay.example"), ["BOX.lan:7860", "inlay.example"], ["lan", "x.inlay.example"]),
    ],
    ids=["default", "address", "everywhere", "named"],
)
def test_the_page_answers_to_its_own_names(
    tmp_path: Path, config: ServeConfig, served: list[str], refused: list[str]
) -> None:
    async def app(*_: object) -> None: ...

    fence = RequestFilter(app, folder=tmp_path, hosts=config.hosts)
    assert all(fence.serves(host) for host in served) and not any(fence.serves(host) for host in refused)


@pytest.mark.parametrize("begun", [False, True])
def test_a_file_that_goes_while_it_is_asked_for_is_not_there(tmp_path: Path, begun: bool) -> None:
    responses = pytest.importorskip("starlette.responses", reason="the page needs Gradio; pip install '.[web]'")
    picture, sent = tmp_path / "0.webp", []
    picture.write_bytes(b"0" * 100)

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        response = responses.FileResponse(picture)
        if not begun:
            picture.unlink()
        await response(scope, receive, send)

    async def receive() -> Any:
        await asyncio.sleep(60)  # the visitor stays

    async def send(message: Any) -> None:
        sent.append(message)
        picture.unlink(missing_ok=True)

    def ask(path: str) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        asyncio.run(RequestFilter(app, folder=tmp_path, hosts=frozenset({"localhost"}))(scope, receive, send))

    ask(f"/file={picture}")
    assert sent[0]["status"] == (200 if begun else 404)
    assert begun or b"gone" in sent[1]["body"]
    with pytest.raises((RuntimeError, OSError)):
        ask("/config")  # what goes wrong elsewhere is not hidden


def test_a_port_that_is_taken_is_told_before_anything_is_loaded() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="another port"):
            free_port(ServeConfig(port=taken.getsockname()[1]))
    for host in ("192.0.2.1", "nowhere.invalid"):  # the first is nobody's
        with pytest.raises(UsageError, match=r"not an address of this machine .* try 127"):
            free_port(ServeConfig(host=host))


@pytest.mark.parametrize("settings", [{"port": 70000}, {"waiting": 0}, {"sessions": 0}])
def test_the_servers_settings_check_themselves(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ServeConfig(**settings)


COUNT_ARENAS = """
import ctypes, sys, threading
from inlay.web.server import one_arena
if sys.argv[1] == "one":
    one_arena()
gate = threading.Barrier(9)
def work():
    held = [bytes(9000) for _ in range(200)]
    gate.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
gate.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(open(sys.argv[2]).read().count("<heap nr="))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="arenas are glibc's")
def test_all_threads_take_memory_from_one_place(tmp_path: Path) -> None:
    def arenas(how: str) -> int:
        words = [sys.executable, "-c", COUNT_ARENAS, how, str(tmp_path / "info")]
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    assert arenas("one") == 1 < arenas("many")


def test_gradio_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    from inlay.cli.main import main

    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["serve"]) == 5
    assert "# the extra web" in capsys.readouterr().err
