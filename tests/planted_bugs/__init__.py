"""Tests as somebody writes them who knows Numba, and of numbasync its documents alone."""
