# SPDX-License-Identifier: Apache-2.0
"""Where backbones come from: the hub (a small one, served by the test), official names, somebody's own module."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlunsplit

import pytest
import torch

from inlay.backbones import BACKBONES, default_tau, load_backbone, resolve
from inlay.backbones.own import Renamed
from inlay.backbones.taef2 import Taef2
from inlay.cli.main import main
from inlay.errors import MissingError, UsageError
from inlay.tokenizer import Tokenizer
from tests.conftest import moving_square

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The few answers of the hub that a download needs; each file may be cut or spoilt on its first delivery."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.gated: set[str] = set()
        self.spoilt: set[str] = set()
        self.stall: int | None = None  # bytes after which a delivery stops, for good
        self.asked: list[str] = []
        self.begun: list[int] = []  # where each delivery began
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                return

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                repo, _, name = self.path.lstrip("/").partition("/resolve/main/")
                key = f"{repo}/{name}"
                hub.asked.append(f"{self.command} {key}")
                if repo in hub.gated:
                    return self.refuse(403, "GatedRepo")
                if key not in hub.files:
                    known = any(k.startswith(repo + "/") for k in hub.files)
                    return self.refuse(404, "EntryNotFound" if known else "RepoNotFound")
                data = hub.files[key]
                etag = hashlib.sha256(data).hexdigest()
                if key in hub.spoilt:
                    data = bytes(len(data))
                begin = int((self.headers.get("Range") or "bytes=0-").split("=")[1].split("-")[0])
                self.send_response(206 if begin else 200)
                for header, value in {
                    "ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Content-Length": str(len(data) - begin),
                    "Accept-Ranges": "bytes", "X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{etag}"',
                }.items():  # fmt: skip
                    self.send_header(header, value)
                self.end_headers()
                if body:
                    hub.begun.append(begin)
                    self.wfile.write(data[begin : hub.stall])
                    if hub.stall is not None:
                        hub.awake.wait(60)
                return None

            def refuse(self, code: int, word: str) -> None:
                self.send_response(code)
                self.send_header("X-Error-Code", word)
                self.send_header("Content-Length", "0")
                self.end_headers()

        self.awake = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return urlunsplit(("http", f"127.0.0.1:{self.server.server_port}", "", "", ""))


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.awake.set()
    hub.server.shutdown()
    hub.server.server_close()


def online(hub: Hub, home: Path) -> dict[str, str]:
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    return environment | {"HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}


def inlay(hub: Hub, home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own: the hub's address is read once, when its package is imported."""
    command = [sys.executable, "-m", "inlay", *words]
    return subprocess.run(command, env=online(hub, home) | more, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def taef2_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("taef2")
    network = Taef2()
    for half in ("encoder", "decoder"):
        torch.save(getattr(network, half).state_dict(), folder / f"taef2_{half}.pth")
    return {f"madebyollin/taef2/{p.name}": p.read_bytes() for p in folder.iterdir()}


@pytest.mark.slow
def test_fetch_caches_and_works_offline_afterwards(hub: Hub, tmp_path: Path, taef2_files: dict[str, bytes]) -> None:
    hub.files |= taef2_files
    done = inlay(hub, tmp_path, "fetch", "taef2", "--json")
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["fetched"]["taef2"])
    assert (folder / "taef2_encoder.pth").read_bytes() == taef2_files["madebyollin/taef2/taef2_encoder.pth"]
    hub.asked.clear()
    again = inlay(hub, tmp_path, "fetch", "taef2", "--json", HF_HUB_OFFLINE="1")
    assert again.returncode == 0 and not hub.asked
    listed = inlay(hub, tmp_path, "backbones", "--json", HF_HUB_OFFLINE="1")
    weights = {name: r["weights"] for name, r in json.loads(listed.stdout)["backbones"].items()}
    assert (weights["taef2"], weights["mini"], weights["mochi"]) == ("cached", "shipped", "to fetch")
    assert weights["cosmos-cv4x8x8-360p"] == "to fetch, gated"


@pytest.mark.slow
def test_what_the_hub_refuses_is_explained(hub: Hub, tmp_path: Path, taef2_files: dict[str, bytes]) -> None:
    hub.gated.add("nvidia/Cosmos-Tokenize1-CV4x8x8-360p")
    done = inlay(hub, tmp_path, "fetch", "nvidia/Cosmos-Tokenize1-CV4x8x8-360p")
    assert done.returncode == 5 and "is gated" in done.stderr and "hf auth login" in done.stderr
    done = inlay(hub, tmp_path, "fetch", "mochi")
    assert done.returncode == 5 and "no repository genmo/mochi-1-preview" in done.stderr
    done = inlay(hub, tmp_path, "fetch", "taef2", HF_HUB_OFFLINE="1")
    assert done.returncode == 5 and "HF_HUB_OFFLINE is set" in done.stderr
    hub.files |= taef2_files
    hub.spoilt.add("madebyollin/taef2/taef2_decoder.pth")
    done = inlay(hub, tmp_path, "fetch", "taef2")
    assert done.returncode == 5 and "a damaged download; fetch it again" in done.stderr
    hub.spoilt.clear()
    assert inlay(hub, tmp_path, "fetch", "taef2").returncode == 0  # the spoilt file did not stay in the cache


@pytest.mark.slow
def test_a_download_that_was_killed_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    names = [f"madebyollin/taef2/taef2_{half}.pth" for half in ("encoder", "decoder")]
    hub.files |= {name: os.urandom(24_000_000 + i) for i, name in enumerate(names)}
    hub.stall = 15_000_000  # the package writes pieces of 10 MB
    child = subprocess.Popen([sys.executable, "-m", "inlay", "fetch", "taef2"], env=online(hub, tmp_path),
                             stderr=subprocess.DEVNULL)  # fmt: skip
    wait_for(lambda: any(p.stat().st_size >= 10_000_000 for p in tmp_path.rglob("*.part")))
    child.kill()
    child.wait()
    hub.stall = None
    hub.awake.set()
    done = inlay(hub, tmp_path, "fetch", "taef2", "--json")
    assert done.returncode == 0, done.stderr
    assert hub.begun[0] == 0 and hub.begun[1] >= 10_000_000 and hub.begun[2:] == [0]
    folder = Path(json.loads(done.stdout)["fetched"]["taef2"])
    assert all((folder / Path(n).name).read_bytes() == hub.files[n] for n in names)
    assert not list(tmp_path.rglob("*.part"))


def wait_for(happened: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_published_digest_is_checked_and_force_fetches_again(hub: Hub, tmp_path: Path) -> None:
    repo = "nvidia/Cosmos-Tokenize1-CV4x8x8-360p"
    hub.files |= {f"{repo}/{half}.jit": b"not what NVIDIA published" for half in ("encoder", "decoder")}
    done = inlay(hub, tmp_path, "fetch", "cosmos-cv4x8x8-360p-jit")
    assert done.returncode == 5 and re.search(r"encoder\.jit has md5 \w{32}, not fe3a7193\w+: a damaged", done.stderr)
    hub.files |= {f"madebyollin/taef2/taef2_{half}.pth": half.encode() for half in ("encoder", "decoder")}
    assert inlay(hub, tmp_path, "fetch", "taef2").returncode == 0
    hub.asked.clear()
    assert inlay(hub, tmp_path, "fetch", "taef2", "--force").returncode == 0
    assert any(line.startswith("GET") for line in hub.asked)


def test_every_digest_in_the_table_is_one() -> None:
    for name, entry in BACKBONES.items():
        for file, digest in (entry.source.md5 if entry.source else {}).items():
            assert re.fullmatch(r"[0-9a-f]{32}", digest), (name, file)


@pytest.mark.parametrize("kind", ["sha256", "git", "md5"])
def test_a_file_is_held_against_every_kind_of_digest(kind: str, tmp_path: Path) -> None:
    from inlay.backbones.hub import _check

    path, data = tmp_path / "w.bin", b"weights"
    digest = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "git": hashlib.sha1(b"blob 7\0" + data).hexdigest(),
        "md5": hashlib.md5(data).hexdigest(),
    }[kind]
    given = (digest, None) if kind == "md5" else (None, digest)
    path.write_bytes(data)
    _check(path, given[0], want=given[1])
    path.write_bytes(b"weight!")
    with pytest.raises(MissingError, match=f"has {kind} .* a damaged download"):
        _check(path, given[0], want=given[1])
    assert not path.exists()


def test_names_of_the_hub_and_taus_of_the_paper() -> None:
    assert resolve("nvidia/Cosmos-Tokenize1-CV4x8x8-360p") == "cosmos-cv4x8x8-360p"
    assert resolve("nvidia/Cosmos-Tokenizer-CV4x8x8") == "cosmos-0.1-cv4x8x8"
    assert resolve("Daniel0724/OmniTokenizer") == "omnitokenizer-ucf"
    assert resolve("mini") == "mini"
    assert [default_tau(n) for n in ("cosmos-cv4x8x8-360p", "omnitokenizer-k600", "wan-2.1", "x")] == [
        0.3,
        1.2,
        None,
        None,
    ]
    for name, entry in BACKBONES.items():
        assert entry.licence and entry.about and min(entry.strides) >= 1, name


# --- one's own --------------------------------------------------------------------------------------------------------

MODULE = '''
import torch
from inlay.backbones import BackboneSpec, check_latents, check_pixels


class Halves:
    """Means of 2 frames and 4x4 pixels, and back by repetition."""

    def __init__(self, weights=None):
        self.weights = weights

    @property
    def spec(self):
        return BackboneSpec(
            name="halves", channels=3, time_stride=2, space_stride=4, causal=True, stateful=False,
            latent_mean=(0.0,) * 3, latent_std=(0.5,) * 3, weight_hash="none", parameters=0, licence="none",
        )

    def encode(self, x):
        check_pixels(x, self.spec)
        first = torch.nn.functional.avg_pool3d(x[:, :, :1], (1, 4, 4))
        if x.shape[2] == 1:
            return first
        return torch.cat([first, torch.nn.functional.avg_pool3d(x[:, :, 1:], (2, 4, 4))], dim=2)

    def decode(self, z):
        check_latents(z, self.spec)
        x = z.repeat_interleave(2, dim=2).repeat_interleave(4, dim=3).repeat_interleave(4, dim=4)
        return x[:, :, 1:]

    def to(self, *args, **kwargs):
        return self


class NoBackbone:
    pass


NUMBER = 3
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "halves_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("halves_of_mine", None)


def test_own_backbone_keeps_the_contract(own: Path) -> None:
    from inlay.backbones.contract import BackboneContract

    backbone = load_backbone("halves_of_mine:Halves")
    contract = BackboneContract()
    contract.still = 1e-6
    checks = [getattr(contract, name) for name in dir(contract) if name.startswith("test_") and "state" not in name]
    assert len(checks) == 7
    for check in checks:
        check(backbone)
    assert isinstance(backbone, Renamed) and backbone.spec.name == "halves_of_mine:Halves"
    assert load_backbone("halves_of_mine:Halves", weights=own).weights == own  # type: ignore[attr-defined]
    assert load_backbone("halves_of_mine.py:Halves").spec.channels == 3


def test_own_backbone_from_the_command_line_and_back(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moving_square(9, 24, 32).save("clip.mkv", lossless=True)
    words = ["encode", "clip.mkv", "--backbone", "halves_of_mine:Halves", "--tau", "0.1", "--device", "cpu", "--json"]
    assert main(words) == 0
    back = ["decode", "clip.inlay", "out.mkv", "--fill", "linear", "--device", "cpu"]
    assert main(back) == 4  # a file does not choose code
    assert main([*back, "--backbone", "halves_of_mine:Halves"]) == 0
    tokens = Tokenizer.from_pretrained("halves_of_mine:Halves", device="cpu").encode(moving_square(9, 24, 32), tau=0.1)
    assert tokens.mask.shape == (5, 6, 8) and tokens.recipe.time_stride == 2
    assert (own / "out.mkv").is_file()
    assert "halves_of_mine:Halves" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("nowhere_at_all:Thing", MissingError, "cannot be imported"),
        ("nowhere.py:Thing", MissingError, "there is no file"),
        ("halves_of_mine:Absent", UsageError, "has no Absent"),
        ("halves_of_mine:NUMBER", UsageError, "is a int"),
        ("halves_of_mine:NoBackbone", UsageError, "has no spec and no encode and no decode"),
    ],
)
def test_own_backbones_that_are_none(own: Path, name: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        load_backbone(name)


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "channels"), [("halves_of_mine:Halves", 3), ("taef2", 32)])
def test_a_lit_is_trained_for_any_channels_and_strides(
    own: Path, backbone: str, channels: int, taef2_files: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    from inlay.fill import load_lit

    (own / "clips").mkdir()
    for name, data in taef2_files.items():
        (own / Path(name).name).write_bytes(data)
    for i in range(2):
        moving_square(33, 64, 64, seed=i).save(own / "clips" / f"{i}.mkv", lossless=True)
    words = ["train", "lit", "clips", "--run", "run", "--preset", "smoke", "--backbone", backbone]
    words += ["--weights", ".", "--trust"] if backbone == "taef2" else []
    assert main([*words, "--steps", "2", "--device", "cpu", "--workers", "1", "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)["weights"]
    assert load_lit(Path(weights)).config.channels == channels
