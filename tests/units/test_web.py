# SPDX-License-Identifier: Apache-2.0
"""The page's logic without a browser and without Gradio: limits, sessions, masks from cached latents, pictures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inlay.errors import ConfigError, UsageError, VideoError
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.web import render
from inlay.web.actions import BY_KEEP, BY_TAU, Actions, View
from inlay.web.clips import CLIPS, built_in
from inlay.web.limits import Limits
from inlay.web.request_filter import RequestFilter
from inlay.web.server import ServeConfig, free_port
from inlay.web.sessions import Sessions
from inlay.web.uploads import check_signature, read_clip
from tests.conftest import moving_square, still

HERE = "127.0.0.1"
SMALL = Limits(max_mb=1, max_seconds=1, max_side=96, side=64)


def quiet(share: float, what: str) -> None:
    pass


def saved(path: Path, video: Video) -> str:
    return str(video.save(path))


@pytest.fixture
def actions(tmp_path: Path, tiny_tokenizer: Tokenizer) -> Iterator[Actions]:
    desk = Sessions(tmp_path / "desk")
    yield Actions(tokenizer=tiny_tokenizer, sessions=desk, limits=SMALL, uploads=tmp_path)
    desk.close()


@pytest.fixture
def loaded(actions: Actions, tmp_path: Path) -> Actions:
    view = actions.upload("ann", saved(tmp_path / "square.mp4", moving_square(17, 64, 64)), "hold", quiet)
    assert "inlay-error" not in view.status, view.status
    return actions


def rate(view: View) -> float:
    return float(view.table.split("keep rate</th><td>")[1].split("%")[0])


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_clip_within_the_limits_is_read_as_it_is(tmp_path: Path) -> None:
    clip = moving_square(9, 64, 48)
    path = clip.save(tmp_path / "a.mkv", lossless=True)
    assert torch.equal(read_clip(path, SMALL).frames, clip.frames)


def test_a_larger_clip_is_reduced_to_the_side_worked_at(tmp_path: Path) -> None:
    path = still(2, 96, 80).save(tmp_path / "a.mp4")
    assert min(read_clip(path, SMALL).frames.shape[1:3]) == 64


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
    view = actions.upload("eve", str(playlist), "hold", quiet)
    assert "not a video" in view.status and view.frames == 0


@pytest.mark.parametrize("name", ["max_mb", "max_seconds", "max_side", "side"])
def test_limits_check_themselves(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})


def test_messages_do_not_tell_where_uploads_lie(actions: Actions, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"\0\0\0\x18ftypisom" + bytes(2000))
    for view in (
        actions.upload("ann", str(broken), "hold", quiet),
        actions.upload_tokens("ann", str(broken), "hold", quiet),
    ):
        assert "inlay-error" in view.status and str(tmp_path) not in view.status and "broken.mp4" in view.status


# --- masks -----------------------------------------------------------------------------------------------------------


def test_a_higher_tau_keeps_no_more(loaded: Actions) -> None:
    rates = [rate(loaded.choose("ann", BY_TAU, tau, 0, 3, "hold")) for tau in (0.0, 0.05, 0.2, 1e6)]
    assert rates == sorted(rates, reverse=True) and rates[0] == 100 and rates[-1] == 20  # slot 0 of five


def test_the_mask_is_that_of_the_command_line(loaded: Actions, tmp_path: Path) -> None:
    from inlay.codec import Encoder

    tokenizer = loaded.tokenizer
    loaded.choose("ann", BY_TAU, 0.1, 0, 0, "hold")
    session = loaded.sessions.of("ann")
    assert session.choice is not None and session.original is not None
    want = list(Encoder(tokenizer, tau=0.1).encode([session.original]))
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(session.choice.chunks, want, strict=True))


def test_keep_rate_mode_gives_that_rate(loaded: Actions) -> None:
    assert rate(loaded.choose("ann", BY_KEEP, 0, 40, 0, "hold")) == 40


def test_a_keep_rate_below_what_slot_0_needs_is_explained(loaded: Actions) -> None:
    view = loaded.choose("ann", BY_KEEP, 0, 5, 0, "hold")
    assert "kept whole" in view.status and "inlay-error" in view.status


@pytest.mark.parametrize("tau", [-1.0, float("nan"), float("inf")])
def test_a_tau_that_makes_no_sense_changes_nothing(loaded: Actions, tau: float) -> None:
    before = loaded.sessions.of("ann").choice
    view = loaded.choose("ann", BY_TAU, tau, 0, 0, "hold")
    assert "inlay-error" in view.status and loaded.sessions.of("ann").choice is before


def test_moving_tau_on_33_frames_repaints_well_under_a_second(actions: Actions, tiny_tokenizer: Tokenizer) -> None:
    session = actions.sessions.of("ann")
    session.load(tiny_tokenizer, moving_square(33, 256, 256), "square", 0.0, quiet)
    spent = []
    for tau in (0.05, 0.1, 0.2):
        start = time.perf_counter()
        actions.choose("ann", BY_TAU, tau, 0, 16, "hold")
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.5, spent


# --- reconstruction --------------------------------------------------------------------------------------------------


def test_what_is_shown_is_what_the_token_file_gives(loaded: Actions) -> None:
    import inlay.container

    view = loaded.reconstruct("ann", 0, "linear", quiet)
    assert view.token_file is not None and view.film is not None, view.status
    decoded = loaded.tokenizer.decode(inlay.container.open(view.token_file), fill="linear")
    assert torch.equal(decoded.frames, loaded.sessions.of("ann").results["linear"].video.frames)
    for word in ("PSNR", "SSIM", "bits per pixel", "decode (s)", f"{view.token_file.stat().st_size:,}"):
        assert word in view.table


def test_fills_stand_side_by_side_until_the_mask_changes(loaded: Actions) -> None:
    loaded.reconstruct("ann", 0, "hold", quiet)
    view = loaded.reconstruct("ann", 0, "linear", quiet)
    assert "<th>hold</th><th>linear</th>" in view.table
    assert "reconstruction (hold)" in loaded.look("ann", 2, "hold").panels
    view = loaded.choose("ann", BY_TAU, 0.3, 0, 0, "hold")
    assert view.token_file is None and view.film is None and "reconstruction" not in view.panels


def test_the_film_shows_input_mask_and_reconstruction(loaded: Actions) -> None:
    from inlay.video import read_video

    view = loaded.reconstruct("ann", 0, "hold", quiet)
    film = read_video(view.film).frames
    head, factor = 29, 4  # pixels of the labels; 64 pixels are enlarged to more than 240
    assert len(film) == 17 and film.shape[2] == 3 * 64 * factor + 2 * 8
    shown = film[:, head : head + 64 * factor : factor, : 64 * factor : factor].float()
    original = loaded.sessions.of("ann").original
    assert original is not None
    assert (shown - original.frames.float()).abs().mean() < 6


def test_a_token_file_comes_back_without_its_original(loaded: Actions, tmp_path: Path) -> None:
    made = loaded.reconstruct("ann", 0, "hold", quiet).token_file
    assert made is not None
    path = tmp_path / "theirs.inlay"
    path.write_bytes(made.read_bytes())
    view = loaded.upload_tokens("bob", str(path), "hold", quiet)
    assert "Decoded theirs.inlay" in view.status and view.film is not None and not view.can_choose
    want, got = loaded.sessions.of("ann").results["hold"], loaded.sessions.of("bob").results["hold"]
    assert torch.equal(want.video.frames, got.video.frames)
    assert "decoded as it is" in loaded.choose("bob", BY_TAU, 0.1, 0, 0, "hold").status


def test_damaged_token_files_are_refused(loaded: Actions, tmp_path: Path) -> None:
    made = loaded.reconstruct("ann", 0, "hold", quiet).token_file
    assert made is not None
    data = bytearray(made.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "bad.inlay"
    path.write_bytes(data)
    view = loaded.upload_tokens("bob", str(path), "hold", quiet)
    assert "bad.inlay" in view.status and "inlay-error" in view.status and "--keep-going" not in view.status
    assert view.frames == 0


def test_a_token_file_of_many_frames_is_refused_before_decoding(loaded: Actions, tmp_path: Path) -> None:
    made = loaded.reconstruct("ann", 0, "hold", quiet).token_file
    short = Actions(
        tokenizer=loaded.tokenizer, sessions=loaded.sessions, limits=Limits(max_seconds=0.2), uploads=loaded.uploads
    )
    assert "holds 0.7 s" in short.upload_tokens("bob", str(made), "hold", quiet).status


# --- sessions --------------------------------------------------------------------------------------------------------


def test_one_visitors_error_is_not_anothers(loaded: Actions, tmp_path: Path) -> None:
    bad = tmp_path / "notes.mp4"
    bad.write_text("not a video")
    before = loaded.look("ann", 3, "hold").panels
    assert "inlay-error" in loaded.upload("bob", str(bad), "hold", quiet).status
    after = loaded.look("ann", 3, "hold")
    assert "inlay-error" not in after.status and after.panels == before


def test_an_upload_that_fails_leaves_the_clip_that_was_there(loaded: Actions, tmp_path: Path) -> None:
    bad = tmp_path / "notes.mp4"
    bad.write_text("not a video")
    view = loaded.upload("ann", str(bad), "hold", quiet)
    assert "inlay-error" in view.status and view.frames == 17 and view.can_choose


def test_a_defect_is_told_without_details(loaded: Actions) -> None:
    view = loaded.choose("ann", BY_TAU, "seven", 0, 0, "hold")  # type: ignore[arg-type]
    assert "Something went wrong" in view.status and "seven" not in view.status


@pytest.mark.parametrize("path", ["/etc/hostname", "../../etc/hostname", "", None])
def test_only_uploads_are_opened(actions: Actions, path: str | None) -> None:
    assert "inlay-error" in actions.upload("eve", path, "hold", quiet).status


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    outside = saved(tmp_path / "secret.mp4", moving_square(5, 64, 64))
    files = tmp_path / "files"
    files.mkdir()
    (files / "link.mp4").symlink_to(outside)
    actions = Actions(tokenizer=tiny_tokenizer, sessions=Sessions(files / "desk"), limits=SMALL, uploads=files)
    assert "was not uploaded" in actions.upload("eve", str(files / "link.mp4"), "hold", quiet).status


@pytest.mark.parametrize("name", ["../../evil", "/abs", "a\0b", "", "x" * 500, "<img src=x onerror=alert(1)>"])
def test_hostile_names_stay_names(loaded: Actions, name: str) -> None:
    session = loaded.sessions.of("ann")
    session.name = name + ".mp4"
    place = session.film_place("hold")
    assert place.parent == session.folder and place.suffix == ".mp4" and len(place.name) <= 70
    assert "<img src=x" not in loaded.look("ann", 0, "hold").status


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
    actions.upload("ann", str(first), "hold", quiet)
    actions.upload("bob", str(first), "hold", quiet)  # the same file: Gradio keeps one of it
    actions.upload("ann", str(second), "hold", quiet)
    assert first.exists() and second.exists(), "bob still has the first"
    actions.sessions.leave("bob")
    assert not first.parent.exists() and second.exists()
    actions.upload("ann", str(third), "hold", quiet)
    assert not second.exists() and third.exists()
    third.write_bytes(third.read_bytes())  # somebody has just sent it again, and waits for their turn
    actions.sessions.leave("ann")
    assert third.exists()
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    assert "inlay-error" in actions.upload("ann", str(bad), "hold", quiet).status
    actions.sessions.leave("ann")
    assert not bad.exists(), "what was refused goes as well"


def test_idle_sessions_are_put_away_though_nobody_comes(tmp_path: Path) -> None:
    desk = Sessions(tmp_path / "desk", idle_seconds=0.0)
    old = desk.of("a")
    upload = tmp_path / "a.mp4"
    upload.touch()
    desk.take(old, upload)
    desk.tidy()
    assert not old.folder.exists() and len(desk) == 0 and not upload.exists()


def test_one_request_has_an_end(tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    desk = Sessions(tmp_path / "desk")
    hasty = Limits(max_mb=1, max_seconds=1, max_side=96, side=64, max_work=1e-6)
    actions = Actions(tokenizer=tiny_tokenizer, sessions=desk, limits=hasty, uploads=tmp_path)
    clip = saved(tmp_path / "square.mp4", moving_square(17, 64, 64))
    assert "took longer than" in actions.upload("ann", clip, "hold", quiet).status
    desk.close()


def test_the_pixels_of_a_clip_are_counted(tmp_path: Path) -> None:
    """Wide and flat: the short side is within the limit, and the long one too."""
    limits = Limits(max_mb=1, max_seconds=0.4, max_side=1920, side=32)
    path = tmp_path / "flat.mp4"
    moving_square(9, 64, 1920).save(path)
    with pytest.raises(UsageError, match="million pixels"):
        read_clip(path, limits)


# --- hints, fence, server -----------------------------------------------------------------------------------------


def test_an_empty_session_shows_a_hint(actions: Actions) -> None:
    view = actions.look("new", 0, "hold")
    assert view.panels == render.EMPTY and view.frames == 0 and "up to 1 MB" in view.status


@pytest.mark.parametrize("name", list(CLIPS))
def test_built_in_clips_are_short_and_the_same_every_time(name: str) -> None:
    assert built_in(name).frames.shape == (33, 256, 256, 3)


def test_an_unknown_built_in_clip_is_refused(actions: Actions) -> None:
    assert "unknown built-in clip" in actions.pick("ann", "Mil", "hold", quiet).status


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


def test_a_port_that_is_taken_is_told_before_anything_is_loaded() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="another port"):
            free_port(ServeConfig(port=taken.getsockname()[1]))


@pytest.mark.parametrize("settings", [{"port": 70000}, {"waiting": 0}, {"sessions": 0}])
def test_the_servers_settings_check_themselves(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ServeConfig(**settings)


def test_gradio_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    from inlay.cli.main import main

    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["serve"]) == 5
    assert "inlay[web]" in capsys.readouterr().err
