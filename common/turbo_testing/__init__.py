# SPDX-License-Identifier: MIT
"""Python shared by the tests of every wheel; never shipped.

plugin        pytest options, markers, fixtures, one GPU per xdist worker, the skip table
devices       counting, pinning and describing devices without touching them
interpreter   Triton's CPU interpreter for test sessions, mended
metrics       tolerances, SNR, comparisons that name the first and the worst bad coordinate
references    float64 formulas that the operators must equal
poison        makes unwritten memory show
cases         loads a wheel's tests/cases.py by path
distributed   runs a function on several ranks
"""
