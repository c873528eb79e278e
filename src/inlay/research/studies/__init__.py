# SPDX-License-Identifier: Apache-2.0
"""Data sets in, the paper's tables and figures out: named studies that stop and go on, records, one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_LAZY = {  # public name -> its module, imported on first use
    "STUDIES": "inlay.research.studies.catalogue",
    "RULES": "inlay.research.studies.rules",
    "Bench": "inlay.research.studies.evaluate",
    "ClipSpec": "inlay.research.studies.datasets",
    "DataSet": "inlay.research.studies.datasets",
    "Record": "inlay.research.studies.records",
    "Setting": "inlay.research.studies.rules",
    "Store": "inlay.research.studies.records",
    "Workspace": "inlay.research.studies.workspace",
    "collect": "inlay.research.studies.evaluate",
    "open_data": "inlay.research.studies.datasets",
    "run_study": "inlay.research.studies.catalogue",
}

__all__ = [
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
    from inlay.research.studies.catalogue import STUDIES, run_study
    from inlay.research.studies.datasets import ClipSpec, DataSet, open_data
    from inlay.research.studies.evaluate import Bench, collect
    from inlay.research.studies.records import Record, Store
    from inlay.research.studies.rules import RULES, Setting
    from inlay.research.studies.workspace import Workspace


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module 'inlay.research.studies' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
