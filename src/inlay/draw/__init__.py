# SPDX-License-Identifier: Apache-2.0
"""Everything that becomes a picture: lit cells, films, keep curves, contact sheets of masks, plots."""
