# SPDX-License-Identifier: Apache-2.0
"""Data sets in, the paper's tables and figures out: named studies that stop and go on, records, one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_DOORS = {  # public name -> the module that holds it; opened on first use
    "STUDIES": "inlay.study.catalogue",
    "RULES": "inlay.study.rules",
    "LAYOUTS": "inlay.study.layouts",
    "Bench": "inlay.study.evaluate",
    "ClipSpec": "inlay.study.datasets",
    "DataSet": "inlay.study.datasets",
    "Record": "inlay.study.records",
    "Setting": "inlay.study.rules",
    "Store": "inlay.study.records",
    "Workspace": "inlay.study.workspace",
    "collect": "inlay.study.evaluate",
    "open_data": "inlay.study.datasets",
    "run_study": "inlay.study.catalogue",
}

__all__ = [
    "LAYOUTS",
    "RULES",
    "STUDIES",
    "Bench",
    "ClipSpec",
    "DataSet",
    "Record",
    "Setting",
    "Store",
    "Workspace",
    "collect",
    "open_data",
    "run_study",
]

if TYPE_CHECKING:
    from inlay.study.catalogue import STUDIES, run_study
    from inlay.study.datasets import ClipSpec, DataSet, open_data
    from inlay.study.evaluate import Bench, collect
    from inlay.study.layouts import LAYOUTS
    from inlay.study.records import Record, Store
    from inlay.study.rules import RULES, Setting
    from inlay.study.workspace import Workspace


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _DOORS:
        raise AttributeError(f"module 'inlay.study' has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
