# SPDX-License-Identifier: Apache-2.0
"""Make the tables of docs/speed.md from records of `speed_gpu.py` and `cpu_speed.py`: no number is typed by hand.

python benchmarks/speed_tables.py            # writes them between the marks in docs/speed.md
python benchmarks/speed_tables.py --check    # fails if they are not what the records say
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "speed.md"
BEGIN, END = "<!-- tables of benchmarks/speed_tables.py -->", "<!-- end of tables -->"
GPU = tuple(f"speed_{run}_h200_2026-11-15.json" for run in ("third", "fourth", "fifth"))  # later stages replace earlier
CPU = max(path.name for path in (ROOT / "benchmarks").glob("cpu_speed_*.json"))  # the latest


def tables() -> str:
    """All that the records at hand say."""
    gpu = {name: json.loads((ROOT / "benchmarks" / name).read_text()) for name in GPU}
    cpu = json.loads((ROOT / "benchmarks" / CPU).read_text())
    return "\n\n".join([*gpu_tables(gpu), *cpu_table(cpu, link(CPU, "record"))])


def link(name: str, said: str) -> str:
    return f"[{said}](../benchmarks/{name})"


def gpu_tables(records: dict[str, dict[str, Any]]) -> list[str]:
    *_, latest = records.values()
    stages = {name: found for record in records.values() for name, found in record["stages"].items()}
    sources = {
        stage: name
        for name, record in records.items()
        for stage, found in record["stages"].items()
        if any(is_measured(row) for row in found.values())
    }
    rows = {key: row for stage in stages.values() for key, row in stage.items() if is_measured(row)}
    where = f"{latest['device']}, torch {latest['torch']}, {latest['dtype'].removeprefix('torch.')}"
    taken = ", ".join(link(name, " and ".join(s for s in sources if sources[s] == name)) for name in records)
    goals = [row for goal in GOALS if (row := goal_row(rows, *goal))]
    parts = [f"{where}; records: {taken}.", table(("what", "goal", "measured"), goals)]
    if big := [growth_row(key, row) for key, row in stages.get("growth", {}).items() if is_measured(row)]:
        held = [" and the gigabytes the largest of them takes", "GB"] if len(big[0]) == 6 else ["", ""]
        head = ("batch x frames x height x width", "encode", "mask", "LIT", "decode", held[1])
        parts += [f"`mini` and its LIT, milliseconds of a call{held[0]}:", table(head[: len(big[0])], big)]
    if (PAGE.parent / "pictures" / "growth.png").is_file():
        parts.append("![Growth with frames, pixels and batch](pictures/growth.png)")
    return parts


def is_measured(row: Any) -> bool:
    return isinstance(row, dict) and "error" not in row and ({"ms", "clip_ms", "encode"} & set(row)) != set()


# what it is, what was asked or foretold, the row of the record, what of it
GOALS: list[tuple[str, str, str, str]] = [
    ("mask, latent-l1, 4096 clips, share of a copy's rate", "70 %", "latent-l1 4096x16 last bfloat16", "share_of_copy"),
    ("mask, latent-l2", "70 %", "latent-l2 4096x16 last bfloat16", "share_of_copy"),
    ("mask, latent-cosine", "70 %", "latent-cosine 4096x16 last bfloat16", "share_of_copy"),
    ("mask, latent-l1, channels first", "70 %", "latent-l1 4096x16 first bfloat16", "share_of_copy"),
    ("mask, latent-l2, channels first", "70 %", "latent-l2 4096x16 first bfloat16", "share_of_copy"),
    ("mask, latent-cosine, channels first", "70 %", "latent-cosine 4096x16 first bfloat16", "share_of_copy"),
    ("mask, latent-l1, 48 channels", "70 %", "latent-l1 2048x48 last bfloat16", "share_of_copy"),
    ("mask, latent-l2, 48 channels", "70 %", "latent-l2 2048x48 last bfloat16", "share_of_copy"),
    ("mask, latent-cosine, 48 channels", "70 %", "latent-cosine 2048x48 last bfloat16", "share_of_copy"),
    ("mask, latent-l1, 48 channels, channels first", "70 %", "latent-l1 2048x48 first bfloat16", "share_of_copy"),
    ("mask, latent-l2, 48 channels, channels first", "70 %", "latent-l2 2048x48 first bfloat16", "share_of_copy"),
    ("mask, latent-cosine, 48 channels, channels first", "70 %", "latent-cosine 2048x48 first bfloat16",
     "share_of_copy"),
    ("mask, latent-l1, 4 channels", "70 %", "latent-l1 4096x4 last bfloat16", "share_of_copy"),
    ("mask, latent-l2, 4 channels", "70 %", "latent-l2 4096x4 last bfloat16", "share_of_copy"),
    ("mask, latent-cosine, 4 channels", "70 %", "latent-cosine 4096x4 last bfloat16", "share_of_copy"),
    ("mask, one clip, plain / ms", "", "one clip, plain", "ms"),
    ("mask, one clip, fused, from a graph / ms", "", "one clip, fused from a graph", "ms"),
    ("LIT `plus`, one clip, eager / ms", "", "plus batch 1 eager", "ms"),
    ("LIT `plus`, one clip, kernels from a graph / ms", "1.2", "plus batch 1 kernels, from a graph", "ms"),
    ("LIT `plus`, 8 clips, eager / ms a clip", "", "plus batch 8 eager", "clip_ms"),
    ("LIT `plus`, 8 clips, kernels from a graph / ms a clip", "1.0", "plus batch 8 kernels, from a graph", "clip_ms"),
    ("LIT `plus`, floor / ms", "", "plus batch 1 eager", "floor_ms"),
    ("LIT `paper`, one clip, eager / ms", "", "paper batch 1 eager", "ms"),
    ("LIT `paper`, one clip, from a graph / ms", "", "paper batch 1 fast, from a graph", "ms"),
    ("Cosmos-360p, whole way, one clip, eager / ms", "", "cosmos batch 1 eager", "clip_ms.whole"),
    ("Cosmos-360p, whole way, one clip, compiled / ms", "31", "cosmos batch 1 compiled", "clip_ms.whole"),
    ("Cosmos-360p, encode and decode alone, one clip, compiled / ms", "", "cosmos batch 1 compiled",
     "clip_ms.encode and decode alone"),
    ("Cosmos-360p, mask + LIT over encode + decode, one clip", "5 %", "cosmos batch 1 compiled", "adaptivity_share"),
    ("Cosmos-360p, what the whole way takes beyond encode + decode, one clip", "5 %", "cosmos batch 1 compiled",
     "adaptivity_added"),
    ("Cosmos-360p, whole way, 8 clips, compiled / ms a clip", "28", "cosmos batch 8 compiled", "clip_ms.whole"),
    ("Cosmos-360p, mask + LIT over encode + decode, 8 clips", "5 %", "cosmos batch 8 compiled", "adaptivity_share"),
    ("Cosmos-360p, what the whole way takes beyond encode + decode, 8 clips", "5 %", "cosmos batch 8 compiled",
     "adaptivity_added"),
    ("`mini`, whole way, one clip, eager / ms", "", "mini batch 1 eager", "clip_ms.whole"),
    ("`mini`, whole way, one clip, fast / ms", "", "mini batch 1 fast", "clip_ms.whole"),
    ("`mini`, whole way, 8 clips, fast / ms a clip", "", "mini batch 8 fast", "clip_ms.whole"),
]  # fmt: skip


def goal_row(rows: dict[str, Any], what: str, goal: str, key: str, of: str) -> tuple[str, ...] | None:
    value: Any = rows.get(key)
    for name in of.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        return None
    if "share" in of or "added" in of:
        return what, goal, f"{100 * value:.3g} %"
    return what, goal, number(value)


def growth_row(key: str, row: dict[str, Any]) -> tuple[str, ...]:
    steps = ("encode", "mask", "lit", "decode")
    held = [row[step]["call_gb"] for step in steps if "call_gb" in row[step]]
    return key.replace("x", " x "), *(number(row[step]["ms"]) for step in steps), *map(number, sorted(held)[-1:])


def cpu_table(record: dict[str, Any], link: str) -> list[str]:
    rows = [
        (stage.replace("_", " "), number(row["plain_wall_s"]), number(row["fast_wall_s"]), f"{row['ratio_wall']:.2f}")
        for stage, row in record["stages"].items()
    ]
    said = (
        f"One clip of {record['clip']} on a CPU, {record['threads']} threads, load {record['load_average']:.1f} "
        f"({link}); seconds. PSNR of the fast form less that of the plain one: "
        f"{record['psnr_change_db']:+.4f} dB."
        + (
            f" Fill and decode: {record['frames_a_second']['fast']:.1f} frames a second."
            if "frames_a_second" in record
            else ""
        )
    )
    return [said, table(("stage", "plain", "fast", "ratio"), rows), beginnings(record)]


def beginnings(record: dict[str, Any]) -> str:
    """What is paid once in a process, and what comes before the first stage."""
    plain, fast, video = record["first"]["plain"], record["first"]["fast"], record["video"]
    rows = [
        ("`import inlay`", number(record["import_s"]), number(record["import_s"])),
        ("`inlay.Tokenizer`, which imports torch", *(number(form["import_tokenizer_s"]) for form in (plain, fast))),
        ("`from_pretrained`: read the weights", *(number(form["load_s"]) for form in (plain, fast))),
        ("first encode and decode", *(number(form["first_encode_decode_s"]) for form in (plain, fast))),
    ]
    reading = (
        f"Reading video: {number(video['read_s'])} s for {video['frames']} frames of 256x256 in H.264, "
        f"{number(video['frames_a_second'])} frames a second."
    )
    head = ("once in a process", "plain", "fast")
    return f"{table(head, rows)}\n\n{reading}"


def number(x: float) -> str:
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def filled(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page says otherwise")
    a = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    if not a.check:
        PAGE.write_text(filled(text), encoding="utf-8")
        print("docs/speed.md: its tables are those of the records")
    elif filled(text) != text:
        sys.exit("docs/speed.md is not what the records say; run python benchmarks/speed_tables.py")


if __name__ == "__main__":
    main()
