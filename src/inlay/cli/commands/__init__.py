# SPDX-License-Identifier: Apache-2.0
"""One file per command; each holds one function whose signature is the command's flags."""
