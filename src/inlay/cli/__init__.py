# SPDX-License-Identifier: Apache-2.0
"""The command line: the only package that prints."""

import os

# Threads that wait for work give way to other programs. By default they spin, and beside another busy program a command
# takes several times as long. They spin for a moment all the same: to sleep at once costs a tenth on an idle machine.
# Read when torch is loaded, so it stands before anything else.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
