# SPDX-License-Identifier: Apache-2.0
"""The command line: the only package that prints."""
