# SPDX-License-Identifier: Apache-2.0
"""The hunt for files that crash, mislead or cost too much, `make fuzz`; and for what is lost or grows, `make soak`."""
