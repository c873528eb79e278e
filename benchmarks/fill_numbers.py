# SPDX-License-Identifier: Apache-2.0
"""Fill the numbers of README, site and model card from the records in this folder and from the weights that ship.

python benchmarks/fill_numbers.py            # writes them where the pages ask for them
python benchmarks/fill_numbers.py --check    # fails if a page says otherwise
python benchmarks/fill_numbers.py --list     # every name, and what it stands for now

A page asks by a name between two comments, which readers do not see: <!--n demo.kept-->41.1 %<!--/n-->. Of several
records of one kind the latest counts: new weights need new records and this command, and no page is edited by hand.
A mark never begins a line of a paragraph, where Markdown would take it for a block.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks"
WEIGHTS = ROOT / "src" / "inlay" / "weights"
PAGES = (
    "README.md", "docs/index.md", "docs/quick-start.md", "docs/idea.md", "docs/backbones.md", "docs/fill.md",
    "docs/pack.md", "docs/bits.md", "docs/masking.md", "docs/caches.md", "docs/robots.md",
    "src/inlay/weights/MODEL_CARD.md",
)  # fmt: skip
MARK = re.compile(r"<!--n ([\w.-]+)-->(.*?)<!--/n-->", re.S)
RATES = (("davis", 0.78), ("davis", 0.62), ("davis", 0.35), ("bench", 0.32))
LOOKS = {"key_slots_whole": "whole", "key_slots_thin": "thin", "second_look": "thin, second look"}
LOOK_RATES = (("davis", 0.62), ("davis", 0.35), ("bench", 0.32))
BESIDE = {"keep": "kept", "psnr": "PSNR, dB", "ssim": "SSIM", "lpips": "LPIPS", "fvd": "FVD"}
OUR_ROWS = {  # of the main study -> as the README calls them
    "full rate (backbone alone)": "`mini`, every cell",
    "ours, at the paper's keep rate": "`mini`, LIT",
    "ours, hold fill, at the paper's keep rate": "`mini`, hold",
}
PAPER_ROWS = {
    "Cosmos-CV4x8x8, full rate": "Cosmos-CV4x8x8, every cell",
    "ours, Cosmos, tau 0.3": "Cosmos-CV4x8x8, the paper's LIT",
    "OmniTokenizer-VAE, full rate": "OmniTokenizer-VAE, every cell",
    "ours, OmniTokenizer, tau 1.2": "OmniTokenizer-VAE, the paper's LIT",
    "ElasticTok-CV (MSE 0.003)": "ElasticTok-CV",
    "InfoTok (discrete)": "InfoTok, discrete",
}
SETS = {"davis": "DAVIS", "bench": "bench"}
READINGS = {
    "dense": "dense, every cell",
    "hold": "dense, dropped cells held",
    "sparse": "sparse, the kept cells",
    "sparse, no run lengths": "sparse, without run lengths",
    "random": "as many cells drawn by lot",
}


def latest(pattern: str) -> Path:
    """The newest record of a kind, by the date at the end of its name."""
    found = sorted(RECORDS.glob(pattern), key=lambda p: (re.findall(r"\d{4}-\d\d-\d\d", p.name) or [""], p.name))
    if not found:
        raise SystemExit(f"fill_numbers.py: no record benchmarks/{pattern}")
    return found[-1]


@cache
def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def demo() -> Path:
    return RECORDS / "demo_cpu.json"


def samples() -> Path:
    return RECORDS / "samples_cpu.json"


def main_study() -> Path:
    return RECORDS / "studies" / "sections" / "main.json"


def fills() -> Path:
    return latest("fills_*.json")


def looks(how: str) -> Path:
    """Of key slots kept whole, thinned out, or thinned out with a second look."""
    return fills() if how == "key_slots_whole" else latest(f"{how}_*.json")


def looks_table() -> str:
    """What each way to choose cells gives LIT at the same share of them."""
    found = {how: read(looks(how))["rows"] for how in LOOKS}
    lines = [f"| | full rate | {' | '.join(LOOKS.values())} |", "|---" * (len(LOOKS) + 2) + "|"]
    for name, rate in LOOK_RATES:
        full, *cells = (
            next(r["psnr"] for r in rows if (r["set"], r["keep_rate"], r["fill"]) == (name, kept, fill))
            for rows, kept, fill in [
                (found["key_slots_whole"], 1.0, "full rate"),
                *((rows, rate, "lit") for rows in found.values()),
            ]
        )
        shown = " | ".join(f"{value:.2f}" for value in (full, *cells))
        lines.append(f"| {SETS[name]}, {100 * rate:.0f} % kept | {shown} |")
    return "\n\n" + "\n".join(lines) + "\n\n"


def by_default(name: str, rate: float) -> str:
    """What `--keep` does by itself, and what every cell gives."""
    rows = {(r["set"], r["keep_rate"], r["fill"]): r["psnr"] for r in read(looks("key_slots_thin"))["rows"]}
    return f"{rows[name, rate, 'lit']:.1f} dB of PSNR, all of them {rows[name, 1.0, 'full rate']:.1f} dB"


def ratio() -> Path:
    return latest("cpu_ratio_*.json")


def places() -> Path:
    return latest("frame_places_*.json")


def spread(name: str) -> str:
    """The best place in a slot above the worst, every cell kept."""
    return f"{read(places())['rows'][f'{name}, all']['pulse']:.1f} dB"


def caches() -> Path:
    return latest("caches_cpu_*.json")


def tokenised() -> Path:
    return latest("tokenize_rate_cpu_*.json")


def sparse(task: str) -> Path:
    return latest(f"sparse_classifier_{task}_cpu_*.json")


def pipeline() -> Path:
    """Of the records of speed on a GPU, in their order, the last that timed the whole pipeline."""
    sys.path.insert(0, str(RECORDS))
    from speed_tables import GPU

    names = [name for name in GPU if "cosmos batch 1 compiled" in read(RECORDS / name)["stages"].get("pipeline", {})]
    return RECORDS / names[-1]


def psnr(name: str, rate: float, fill: str) -> float:
    """By the set, the share kept, and the fill; `full rate` has one value for all shares."""
    wanted = 1.0 if fill == "full rate" else rate
    rows = read(fills())["rows"]
    return next(r["psnr"] for r in rows if (r["set"], r["keep_rate"], r["fill"]) == (name, wanted, fill))


def fills_table() -> str:
    """A block of its own: the marks stand on lines above and below it."""
    lines = ["| | full rate | lit | hold | linear |", "|---|---|---|---|---|"]
    for name, rate in RATES:
        values = {fill: psnr(name, rate, fill) for fill in ("full rate", "lit", "hold", "linear")}
        best = max(value for fill, value in values.items() if fill != "full rate")
        cells = [f"**{v:.2f}**" if v == best else f"{v:.2f}" for v in values.values()]
        lines.append(f"| {SETS[name]}, {rate:.0%} kept | {' | '.join(cells)} |".replace("% kept", " % kept"))
    return "\n\n" + "\n".join(lines) + "\n\n"


def paper_network() -> str:
    davis = " / ".join(f"{psnr(name, rate, 'lit-paper'):.2f}" for name, rate in RATES if name == "davis")
    return f"{davis} dB on DAVIS\nand {psnr('bench', 0.32, 'lit-paper'):.2f} dB on bench"


def beside_table() -> str:
    """Our rows of the main study on DAVIS above the paper's."""
    from inlay.research.studies.paper import MAIN

    found = next(t for t in read(main_study())["tables"] if " davis " in t["caption"])
    at = {name.split(" ")[0].lower(): i for i, name in enumerate(found["columns"])}
    rows = {row[0]["text"]: [row[at[name]]["value"] for name in BESIDE] for row in found["rows"]}
    lines = [f"| | {' | '.join(BESIDE.values())} |", "|---" * (len(BESIDE) + 1) + "|"]
    lines += [_beside(name, rows[row]) for row, name in OUR_ROWS.items()]
    lines += [_beside(name, list(MAIN["davis"][row])) for row, name in PAPER_ROWS.items()]
    return "\n\n" + "\n".join(lines) + "\n\n"


def bits_study() -> Path:
    return latest("bits_davis_*.json")


def times_the_bits(codec: str, data: str = "davis") -> str:
    """Of ours at equal PSNR, the mean over budgets and clips; at least as many, or at most, where a curve ended."""
    table = next(t for t in read(bits_study())["tables"] if f"at equal PSNR on {data}" in t["caption"])
    column = next(i for i, name in enumerate(table["columns"]) if codec in name)
    cell = next(row for row in table["rows"] if row[0]["text"].startswith("mean"))[column]
    bound = {"≥": "at least ", "≤": "at most ", "≈": "about "}.get(cell["text"][0], "")
    return f"{bound}{cell['value']:.2f} times"


def shipped() -> str:
    """The hash of the weights that ship."""
    return str(read(WEIGHTS / "mini.profile.json")["weight_hash"])


def sparse_weights() -> str:
    return str(re.findall(r"weights (\w{16})", read(sparse("object"))["data"])[0])


def main_weights() -> str:
    """Nothing, unless the main study was measured with other weights than those that ship."""
    measured = read(main_study())["setup"]["backbone"].rpartition(" ")[2]
    if measured == shipped():
        return ""
    full, kept = psnr("davis", 1.0, "full rate"), psnr("davis", 0.62, "lit")
    return (
        f" with the earlier weights {measured}; those that ship now have {full:.2f} dB with every cell of the 29 val "
        f"sequences and {kept:.2f} dB with 62 %"
    )


def _beside(name: str, values: list[float]) -> str:
    kept, psnr, ssim, lpips, fvd = values
    return f"| {name} | {100 * kept:.0f} % | {psnr:.2f} | {ssim:.3f} | {lpips:.3f} | {fvd:.0f} |"


def filmed() -> str:
    row = next(r for r in read(samples())["rows"] if "film" in r)
    hold, lit = row["hold"]["psnr"], row["lit"]["psnr"]
    return f"{100 * row['keep_rate']:.0f} % of the cells kept: hold {hold:.1f} dB, LIT {lit:.1f} dB"


def ahead_of_us() -> str:
    gaps = [row["x264"]["psnr"] - row["lit"]["psnr"] for row in read(samples())["rows"]]
    return f"{min(gaps):.1f} to {max(gaps):.1f} dB"


def cache_ratio() -> str:
    """By how much latents shrink at the default loss."""
    row = next(r for r in read(caches())["losses"] if r["loss_asked_for"] == 0.1)
    return f"{row['latent_ratio']:.1f} times"


def cache_losses() -> str:
    """What each loss that one may ask for costs and saves."""
    decoded = read(caches())["losses"][0]["clips_decoded"]
    head = ["`--loss`", "cells kept", "latents shrink", "difference of the latents, mean / worst clip"]
    lines = [f"| {' | '.join(head)} | decoded, from the decoded originals ({decoded} clips) |", "|---|---|---|---|---|"]
    for row in read(caches())["losses"]:
        cells = [f"{row['loss_asked_for']:g}", f"{100 * row['keep_rate']:.0f} %", f"{row['latent_ratio']:.1f} times"]
        cells.append(f"{100 * row['relative_error']:.1f} % / {100 * row['worst_relative_error']:.1f} %")
        lines.append(f"| {' | '.join(cells)} | {row['decoded_psnr']:.1f} dB |")
    return "\n\n" + "\n".join(lines) + "\n\n"


def cache_speed() -> str:
    lines = ["| `--precision` | packs | unpacks | latents shrink |", "|---|---|---|---|"]
    for row in read(caches())["rows"]:
        speed = f"{row['mb_per_cpu_second']:.0f} | {row['unpack_mb_per_cpu_second']:.0f}"
        lines.append(f"| `{row['precision']}` | {speed} | {row['latent_ratio']:.1f} times |")
    return "\n\n" + "\n".join(lines) + "\n\n"


def paper_seconds(name: str) -> str:
    from inlay.research.studies.paper import COST

    return f"{next(cost[1] for row, cost in COST.items() if row.startswith(name)):.2f} s"


def accuracy(task: str, reading: str) -> str:
    row = next(r for r in read(sparse(task))["rows"] if r["reading"] == reading)
    return f"{100 * row['accuracy']:.1f} ± {100 * row['accuracy_sd']:.1f} %"


def share_of_tokens() -> str:
    rows = {r["reading"]: r for r in read(sparse("object"))["rows"]}
    return f"{rows['sparse']['tokens_per_clip'] / rows['dense']['tokens_per_clip']:.0%}".replace("%", " %")


def sparse_table(task: str) -> str:
    """The readings of one task; what reads kept cells is in bold where it is better by more than both deviations."""
    rows = read(sparse(task))["rows"]
    by_name = {r["reading"]: r for r in rows}
    ours, dense = by_name["sparse"], by_name["dense"]
    wins = ours["accuracy"] - ours["accuracy_sd"] > dense["accuracy"] + dense["accuracy_sd"]
    lines = ["| reading | accuracy | tokens a clip | speed |", "|---|---|---|---|"]
    for row in rows:
        strong = "**" if row is ours and wins else ""
        cells = [f"{strong}{READINGS[row['reading']]}{strong}", f"{strong}{accuracy(task, row['reading'])}{strong}"]
        cells += [f"{row['tokens_per_clip']:.0f}", f"{row['clips_per_second']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n\n" + "\n".join(lines) + "\n\n"


def gpu_times() -> str:
    rows = read(pipeline())["stages"]["pipeline"]
    fast, eager = (rows[f"cosmos batch 1 {form}"]["clip_ms"] for form in ("compiled", "eager"))
    alone = fast["encode and decode alone"]
    return f"{fast['whole']:.1f} ms, mask and LIT included ({alone:.1f} without them), against {eager['whole']:.0f} ms"


def rate_row(**wanted: str) -> dict[str, Any]:
    return next(r for r in read(tokenised())["rows"] if all(r.get(k) == v for k, v in wanted.items()))


@cache
def parameters(file: str) -> str:
    """Of the weights that ship, in millions."""
    from inlay.backbones import load_mini
    from inlay.fill import load_lit

    network = load_mini(WEIGHTS) if file == "mini" else load_lit(WEIGHTS / f"{file}.safetensors")
    return f"{sum(p.numel() for p in network.parameters()) / 1e6:.1f} M"


def megabytes(file: str) -> str:
    return f"{(WEIGHTS / f'{file}.safetensors').stat().st_size / 1e6:.1f} MB"


def profile_keeps() -> str:
    profile = read(WEIGHTS / "mini.profile.json")
    rates = zip(profile["taus"], profile["keep_rates"], strict=True)
    return f"{min(rates, key=lambda row: abs(row[0] - profile['tau']))[1]:.0%}".replace("%", " %")


def compared(name: str, rate: float, one: str, other: str) -> str:
    return f"{psnr(name, rate, one) - psnr(name, rate, other):.2f} dB"


SHIPPED = {"mini": "mini", "lit": "mini.lit", "lit-paper": "mini.lit-paper", "taef2-lit": "taef2.lit"}
LINKS: dict[str, Callable[[], Path]] = {  # the records themselves, as links from wherever the page lies
    "demo": demo,
    "samples": samples,
    "main": main_study,
    "bits": bits_study,
    "looks-whole": lambda: looks("key_slots_whole"),
    "looks-thin": lambda: looks("key_slots_thin"),
    "looks-second": lambda: looks("second_look"),
    "fills": fills,
    "caches": caches,
    "places": places,
    "cpu-ratio": ratio,
    "tokenize": tokenised,
    "pipeline": pipeline,
    **{f"sparse-{task}": (lambda task=task: sparse(task)) for task in ("object", "motion", "subject")},
}
NUMBERS: dict[str, Callable[[], str]] = {
    "demo.frames": lambda: f"{read(demo())['frames']} frames, {read(demo())['width']}x{read(demo())['height']}",
    "demo.kept": lambda: f"{100 * read(demo())['keep_rate']:.1f} %",
    "demo.bytes": lambda: f"{read(demo())['bytes']:,} bytes",
    "demo.bits": lambda: f"{read(demo())['bits_per_pixel']:.3f} bits a pixel",
    "demo.psnr": lambda: f"{read(demo())['psnr']:.1f} dB",
    "samples.film": filmed,
    "samples.x264": ahead_of_us,
    "beside.table": beside_table,
    "main.weights": main_weights,
    "bits.x264": lambda: times_the_bits("x264"),
    "bits.x265": lambda: times_the_bits("x265"),
    "bits.svt-av1": lambda: times_the_bits("SVT-AV1"),
    "bits.bench.x264": lambda: times_the_bits("x264", "bench"),
    "bits.bench.x265": lambda: times_the_bits("x265", "bench"),
    "bits.bench.svt-av1": lambda: times_the_bits("SVT-AV1", "bench"),
    "places.davis": lambda: spread("davis"),
    "places.bench": lambda: spread("bench"),
    "caches.smaller": cache_ratio,
    "caches.losses": cache_losses,
    "caches.speed": cache_speed,
    "caches.kept": lambda: f"{100 * read(caches())['rows'][0]['keep_rate']:.0f} %",
    "peers.ours": lambda: paper_seconds("ours"),
    "peers.infotok": lambda: paper_seconds("InfoTok"),
    "peers.elastictok": lambda: paper_seconds("ElasticTok"),
    "fills.table": fills_table,
    "looks.table": looks_table,
    "looks.bench-32": lambda: by_default("bench", 0.32),
    "fills.paper": paper_network,
    "fills.full.davis": lambda: f"{psnr('davis', 1.0, 'full rate'):.2f} dB",
    "fills.full.bench": lambda: f"{psnr('bench', 1.0, 'full rate'):.2f} dB",
    "fills.lit.bench-32": lambda: f"{psnr('bench', 0.32, 'lit'):.2f} dB",
    "fills.loss.davis-62": lambda: compared("davis", 0.62, "full rate", "lit"),
    "fills.loss.bench-32": lambda: compared("bench", 0.32, "full rate", "lit"),
    "fills.gain.davis-35": lambda: compared("davis", 0.35, "lit", "hold"),
    "sparse.weights": lambda: ", of earlier weights" * (sparse_weights() != shipped()),
    "sparse.tokens": lambda: (
        f"; the tokens are of earlier weights, {sparse_weights()}" * (sparse_weights() != shipped())
    ),
    "sparse.object.kept": lambda: accuracy("object", "sparse"),
    "sparse.object.all": lambda: accuracy("object", "dense"),
    "sparse.object.share": share_of_tokens,
    **{f"sparse.{task}.table": (lambda task=task: sparse_table(task)) for task in ("object", "motion", "subject")},
    "cpu.whole": lambda: f"{read(ratio())['mini']['whole_s']:.1f} s",
    "cpu.ratio": lambda: f"{read(ratio())['ratio']:.1f} times",
    "gpu.pipeline": gpu_times,
    "tokenize.weights": lambda: ", timed with earlier weights" * (read(tokenised()).get("weight_hash") != shipped()),
    "tokenize.local": lambda: f"{rate_row(engine='local')['videos_per_second']:.1f} videos",
    "tokenize.ray": lambda: f"{rate_row(engine='ray')['videos_per_second']:.1f}",
    "tokenize.ray-steady": lambda: f"{rate_row(engine='ray')['steady']:.1f}",
    "tokenize.bare": lambda: f"{rate_row(bare='encode')['videos_per_second']:.1f}",
    "channels.mini": lambda: str(len(read(WEIGHTS / "mini.profile.json")["latent_std"])),
    "profile.tau": lambda: f"{read(WEIGHTS / 'mini.profile.json')['tau']:g}",
    "profile.keeps": profile_keeps,
    **{
        f"{what}.{name}": (lambda count=count, file=file: count(file))
        for what, count in (("parameters", parameters), ("size", megabytes))
        for name, file in SHIPPED.items()
    },
}


def text_of(name: str, page: Path) -> str:
    """What a name stands for, on a page."""
    if name.startswith("record."):
        kind = name.removeprefix("record.")
        if kind not in LINKS:
            raise SystemExit(f"fill_numbers.py: {page}: no record is called {kind}; there are {', '.join(LINKS)}")
        return f"[record]({Path(os.path.relpath(LINKS[kind](), page.parent)).as_posix()})"
    if name not in NUMBERS:
        raise SystemExit(f"fill_numbers.py: {page}: no number is called {name}; see --list")
    return NUMBERS[name]()


def filled(page: Path) -> str:
    """The page with its numbers as the records have them."""
    text = page.read_text(encoding="utf-8")
    return MARK.sub(lambda found: f"<!--n {found[1]}-->{text_of(found[1], page)}<!--/n-->", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page says otherwise")
    parser.add_argument("--list", action="store_true", help="print every name and what it stands for")
    args = parser.parse_args()
    if args.list:
        for name in [*NUMBERS, *(f"record.{kind}" for kind in LINKS)]:
            print(f"{name:<24} {' '.join(text_of(name, ROOT / 'README.md').split())}")
        return
    stale = []
    for name in PAGES:
        page = ROOT / name
        old, new = page.read_text(encoding="utf-8"), filled(page)
        stale += [
            f"{name}: {a[1]}: says {a[2]!r}, the record {b[2]!r}"
            for a, b in zip(MARK.finditer(old), MARK.finditer(new), strict=True)
            if a[2] != b[2]
        ]
        if old != new and not args.check:
            page.write_text(new, encoding="utf-8")
    if stale and args.check:
        raise SystemExit("\n".join([*stale, "run: make numbers"]))
    print("\n".join(stale) if stale else "every number is that of its record")


if __name__ == "__main__":
    main()
