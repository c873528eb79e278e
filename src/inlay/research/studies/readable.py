# SPDX-License-Identifier: Apache-2.0
"""A data set in, the same without the clips that break off when read out: said before anything is measured."""

from __future__ import annotations

from inlay.errors import VideoError
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.evaluate import Tell
from inlay.research.studies.records import Store, make_key

FILE = "read.json"  # in the store: the clips that were read to their end


def sound(data: DataSet, store: Store, tell: Tell = lambda line: None) -> DataSet:
    """Each clip is read once; one that cannot be is left out of every rule and table alike, with the reason.

    A header may promise frames that the file does not hold. What was read to its end is remembered in the store, so
    that a second run reads nothing.
    """
    known = dict(store.read_json(FILE) or {})
    new: dict[str, str] = {}
    broken: dict[str, str] = {}
    for clip in data.clips:
        key = make_key(clip=clip.identity)
        if key in known:
            continue
        try:
            clip.load()
            new[key] = clip.name
        except VideoError as error:
            broken[clip.name] = str(error)
            tell(f"left out: {error}")
    if new:
        store.write_json(FILE, {**known, **new})
    return data.without(broken)
