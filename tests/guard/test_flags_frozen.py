# SPDX-License-Identifier: Apache-2.0
"""The command line's surface: a new flag is a decision, and its choices and defaults are the library's own."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import typer

from inlay.cli.examples import EXAMPLES
from inlay.cli.main import COMMANDS, GROUPS, app, main
from inlay.cli.options import CHOICES

MODEL = {"--backbone", "--weights", "--device", "--dtype", "--fill"}
MASK = {"--tau", "--criterion", "--reference"}
SPEECH = {"--json", "--quiet", "--verbose", "--threads"}  # of every command
TRUST = {"--trust"}
BUDGETS = {"--keep", "--tokens", "--bits", "--psnr", "--exact", "--bucket", "--noise"}
SEEK = {"--from", "--to"}
STREAM = {"--mode", "--chunk", "--key-every", "--cuts", "--resume"}
DATA = {"--frames", "--side", "--limit"}
TRAIN = SPEECH | {
    "--run", "--preset", "--validate", "--layout", "--device", "--workers", "--resume", "--stop-after",
    "--config", "--show-preset",
}  # fmt: skip

FLAGS: dict[str, set[str]] = {
    "encode": MODEL
    | MASK
    | TRUST
    | SPEECH
    | BUDGETS
    | STREAM
    | {
        "--precision",
        "--step",
        "--scale",
        "--key-slots",
        "--second-look",
        "--cache",
        "--size",
        "--keep-going",
        "--force",
        "--curve",
        "--profile",
    }
    | {"--out-dir"},
    "decode": MODEL
    | SPEECH
    | TRUST
    | SEEK
    | {"--lossless", "--crf", "--keep-going", "--large", "--untrusted", "--force", "--out-dir"},
    "info": SPEECH,
    "verify": SPEECH | {"--large"},
    "view": MODEL
    | MASK
    | TRUST
    | SPEECH
    | {"--mode", "--size", "--curve", "--sheet", "--original", "--large", "--force"},
    "compare": SPEECH | {"--metrics", "--size", "--device"},
    "demo": SPEECH | {"--video", "--out", "--size", "--frames", "--tau", "--fill", "--backbone", "--device", "--force"},
    "serve": SPEECH
    | {
        "--host",
        "--port",
        "--max-mb",
        "--max-seconds",
        "--max-side",
        "--side",
        "--waiting",
        "--sessions",
        "--names",
        "--max-work",
    }
    | {"--fill", "--backbone", "--weights", "--device"},
    "doctor": SPEECH,
    "backbones": SPEECH,
    "fetch": SPEECH | {"--folder", "--force"},
    "calibrate": MODEL - {"--fill"} | TRUST | SPEECH | DATA | {"--out", "--layout", "--split", "--step", "--force"},
    "eval": MODEL
    | TRUST
    | SPEECH
    | DATA
    | {
        "--rule",
        "--reconstructions",
        "--report",
        "--force",
        "--metrics",
        "--tau",
        "--rate",
        "--precision",
        "--layout",
        "--split",
        "--interval",
        "--profile",
        "--clips",
        "--out",
    },
    "study": MODEL
    | TRUST
    | SPEECH
    | DATA
    | {
        "--out",
        "--data-davis",
        "--data-bench",
        "--page",
        "--metrics",
        "--tau",
        "--lit",
        "--also",
        "--profile",
    },
    "tokenize": MODEL
    | MASK
    | TRUST
    | SPEECH
    | BUDGETS - {"--psnr"}
    | STREAM - {"--resume"}
    | {
        "--precision",
        "--step",
        "--scale",
        "--key-slots",
        "--second-look",
        "--cache",
        "--size",
        "--keep-going",
        "--engine",
        "--workers",
        "--address",
        "--format",
        "--shard-videos",
    }
    | {"--batch", "--path-column", "--caption-column"},
    "bench": SPEECH
    | {"--sizes", "--frames", "--batches", "--paths", "--stages", "--repeats", "--backbone", "--device", "--dtype"}
    | {"--seconds", "--against", "--out", "--force"},
    "export": TRUST
    | SPEECH
    | {"--parts", "--format", "--size", "--frames", "--batch", "--backbone", "--weights", "--force"},
    "cache pack": MASK
    | SPEECH
    | BUDGETS - {"--psnr", "--bucket", "--noise"}
    | {
        "--loss",
        "--format",
        "--precision",
        "--fill",
        "--shard-files",
        "--workers",
        "--verify",
        "--backbone",
        "--weights",
    }
    | {"--device"},
    "cache unpack": SPEECH | {"--fill"},
    "cache verify": SPEECH | {"--against", "--backbone", "--weights", "--device"},
    "cache make": MODEL - {"--fill"} | TRUST | SPEECH | {"--format", "--frames", "--size", "--text"},
    "train lit": TRAIN | TRUST | {"--backbone", "--weights", "--shape", "--from"},
    "train backbone": TRAIN | {"--from"},
    "train together": TRAIN | {"--from", "--from-lit"},
}
ROOT = {"--version", "--debug", "--install-completion", "--show-completion"}


def long_flags(command) -> set[str]:
    return {flag for p in command.params for flag in p.opts if flag.startswith("--")} - {"--help"}


def commands() -> dict[str, Any]:
    """Every command by the words that call it."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        below = getattr(command, "commands", None)
        found |= {name: command} if below is None else {f"{name} {word}": c for word, c in below.items()}
    return found


def test_flags_are_those_agreed_on() -> None:
    from inlay.train.config import option_fields

    got = {name: long_flags(command) for name, command in commands().items()}
    for name in got:
        if name.startswith("train "):
            found = option_fields(name.removeprefix("train "))
            settings = {f"--{field.name.replace('_', '-')}" for _, field in found}  # made from TrainConfig's fields
            switches = {flag.replace("--no-", "--") for flag in got[name]}
            assert settings <= switches, f"{name} has no flag for {settings - switches}"
            got[name] = {flag for flag in got[name] if flag.replace("--no-", "--") not in settings}
    assert long_flags(typer.main.get_command(app)) == ROOT
    assert got == FLAGS


OFF_UNLESS_GIVEN = {  # flags that ask for something more, or set what is otherwise not there
    "keep", "tokens", "bits", "psnr", "bucket_seconds", "curve", "sheet", "original", "weights", "profile", "out",
    "out_dir", "start_seconds", "end_seconds", "rate", "reconstructions", "report", "address", "folder", "lit", "also",
    "page", "data_davis", "data_bench", "against", "text", "init", "init_lit", "config", "show_preset", "shape",
    "backbone", "names",
}  # fmt: skip


def test_every_flag_shows_its_default() -> None:
    from inlay.train.config import option_fields

    settings = {field.name for _, field in option_fields()}  # whose defaults are the preset's: --show-preset
    for name, command in commands().items():
        for p in command.params:
            silent = (
                p.default is None and not p.required and "[default: " not in p.help and p.param_type_name == "option"
            )
            known = p.name in OFF_UNLESS_GIVEN | (settings if name.startswith("train ") else set())
            assert not silent or known, f"{name} {p.opts[0]}: the help does not say what holds without it"
            assert p.show_default or "[default: " in p.help, f"{name} {p.opts[0]}: its default is hidden"


def test_every_command_has_examples_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(EXAMPLES) == set(commands())
    for name, lines in EXAMPLES.items():
        assert main([*name.split(), "--help"]) == 0
        assert "\n".join(f"  {line}" for line in lines) in capsys.readouterr().out.split("Examples:\n")[1]


@pytest.mark.parametrize(
    ("group", "line"),
    [("", "inlay encode clip.mp4"), ("train", "inlay train lit videos/"), ("cache", "inlay cache pack latents/")],
)
def test_groups_have_examples_too(group: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*group.split(), "--help"]) == 0
    shown, examples = capsys.readouterr().out.split("Examples:\n")
    assert f"  {line}" in examples
    assert re.search(rf"^  {line.split()[1 + bool(group)]}  +\w", shown, re.M), "its commands are listed"
    assert "..." not in shown.split("Options:")[1], "each in words that fit its line"


def test_flags_stand_under_headings_and_none_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in commands().items():
        assert main([*name.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(re.search(rf"^  (-\w, )?{p.opts[0]}\b", shown, re.M) for p in command.params if p.opts[0][0] == "-")
        assert "\nScreen and machine:\n" in shown
    main(["train", "lit", "--help"])
    heads = re.findall(r"^(\w[^:\n]*):$", capsys.readouterr().out, re.M)
    wanted = ["Training", "Clips", "Loss", "Optimiser"]
    assert [head.split(",")[0] for head in heads if "preset" in head] == wanted


def test_every_flag_and_argument_explains_itself() -> None:
    for name, command in commands().items():
        assert command.help, f"{name} has no description"
        silent = [p.name for p in command.params if not getattr(p, "help", None)]
        assert not silent, f"{name}: no help for {silent}"


def test_arguments_are_explained_in_the_order_in_which_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in commands().items():
        typed = [str(p.metavar) for p in command.params if p.param_type_name == "argument"]
        main([*name.split(), "--help"])
        _, _, below = capsys.readouterr().out.partition("Arguments:\n")
        places = [below.find(f"  {metavar}  ") for metavar in typed]
        assert -1 not in places and places == sorted(places), f"{name}: {typed} at {places}"


def test_no_name_is_cut_in_two(capsys: pytest.CaptureFixture[str]) -> None:
    for name in commands():
        main([*name.split(), "--help"])
        shown = capsys.readouterr().out
        assert shown.isascii() and not re.search(r"\w-$", shown, re.M), f"{name}: a name with a hyphen goes on below"


def test_names_in_help_are_those_of_the_tables() -> None:
    from inlay.cli.commands.compare import METRIC_NAMES
    from inlay.measure import METRICS
    from inlay.research.studies.rules import RULES

    assert set(METRIC_NAMES) == {name for name, metric in METRICS.items() if metric.per_video}
    words = set(re.findall(r"[\w-]+", commands()["eval"].help))
    assert set(RULES) <= words, f"inlay eval --help says nothing of {set(RULES) - words}"
    for name in ("encode", "tokenize"):
        text = next(p.help for p in commands()[name].params if p.name == "key_slots")
        assert all(re.search(rf"\b{choice}\b", text) for choice in CHOICES["key_slots"])


def library_choices() -> dict[str, set[str]]:
    from inlay.codec import AUTO, MODES
    from inlay.fill import FILLS, LIT_FILES
    from inlay.masking import CACHE, CRITERIA, LADDER, OWN, REFERENCES
    from inlay.types import KEY_SLOTS, PRECISIONS, SCALES

    return {
        "criterion": set(CRITERIA),
        "reference": set(REFERENCES),
        "precision": set(PRECISIONS),
        "step": {*LADDER, CACHE, OWN},
        "scale": {AUTO, *SCALES},
        "key_slots": {AUTO, *KEY_SLOTS},
        "fill": {*FILLS, *LIT_FILES},
        "dtype": {"float32", "bfloat16"},
        "mode": {AUTO, *MODES},
    }


def test_the_tokenizers_names_are_the_librarys() -> None:
    from typing import get_args

    from inlay.tokenizer import KeySlots, Scale, Step

    for kind, names in (("step", Step), ("scale", Scale), ("key_slots", KeySlots)):
        assert set(get_args(names)) == library_choices()[kind]


def test_choices_are_the_librarys_tables() -> None:
    assert {kind: set(names) for kind, names in CHOICES.items()} == library_choices()


@pytest.mark.parametrize("command", ["encode", "view"])
def test_defaults_are_the_librarys_defaults(command: str) -> None:
    from inlay.masking import MaskConfig
    from inlay.types import Recipe

    given = inspect.signature(COMMANDS[command]).parameters
    assert (given["criterion"].default, given["reference"].default) == (MaskConfig().criterion, MaskConfig().reference)
    if "precision" in given:
        assert given["precision"].default == Recipe(backbone="x", weight_hash="x", tau=0).precision


@pytest.mark.parametrize("command", ["encode", "tokenize"])
def test_the_codecs_defaults_are_the_commands(command: str) -> None:
    from dataclasses import fields

    from inlay.codec import EncodeConfig

    given = inspect.signature(COMMANDS[command]).parameters
    assert EncodeConfig() == EncodeConfig(**{field.name: given[field.name].default for field in fields(EncodeConfig)})


def test_the_librarys_defaults_are_the_commands() -> None:
    """`Tokenizer.encode` and `inlay encode` are told of the same things by the same names, and assume the same."""
    from inlay.tokenizer import Tokenizer

    command, method = (inspect.signature(f).parameters for f in (COMMANDS["encode"], Tokenizer.encode))
    names = [name for name in method if name not in ("self", "source", "axes", "fps", "unknown")]
    for name in names:
        assert method[name].default == command[name].default, name


def test_default_quality_is_the_video_writers() -> None:
    from inlay.video.writer import DEFAULT_CRF

    assert inspect.signature(COMMANDS["decode"]).parameters["crf"].default == DEFAULT_CRF


def test_help_lists_every_command_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.split("\nExamples:\n")[0]
    _, *panels = re.split(r"^(Use|Train|Measure|Research):\n", listed, flags=re.M)
    found = {head: re.findall(r"^  (\w+) ", text, re.M) for head, text in zip(panels[::2], panels[1::2], strict=True)}
    assert list(found) == ["Use", "Train", "Measure", "Research"]
    assert sorted(name for names in found.values() for name in names) == sorted({*COMMANDS, *GROUPS})


def test_budgets_stand_in_one_order_wherever_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("encode", "tokenize", "cache pack"):
        assert main([*name.split(), "--help"]) == 0
        shown = re.findall(r"^  --(\w+)", capsys.readouterr().out.split("\nBudget:\n")[1].split("\n\n")[0], re.M)
        wanted = ["tau", "keep", "tokens", "bits", "psnr", "loss", "exact", "bucket", "noise"]
        assert shown == [flag for flag in wanted if flag in shown], name
