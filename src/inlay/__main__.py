# SPDX-License-Identifier: Apache-2.0
"""`python -m inlay`: the command line, for launchers that start modules."""

from __future__ import annotations

import sys

from inlay.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
