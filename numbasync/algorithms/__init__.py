"""Algorithms of whole tensors, as operations: reductions, scans, sorts and selections.

Each takes a tensor, a NumPy array, or an operation that gives one, and gives a new tensor; nothing
runs before it is awaited. Names and rules are NumPy's. The result's bits depend on the input alone,
not on the grid.
"""

from numbasync.algorithms.norms import layer_norm as layer_norm
from numbasync.algorithms.norms import rms_norm as rms_norm
from numbasync.algorithms.prefix import Prefix as Prefix
from numbasync.algorithms.reductions import all as all
from numbasync.algorithms.reductions import any as any
from numbasync.algorithms.reductions import argmax as argmax
from numbasync.algorithms.reductions import argmin as argmin
from numbasync.algorithms.reductions import count_nonzero as count_nonzero
from numbasync.algorithms.reductions import max as max
from numbasync.algorithms.reductions import mean as mean
from numbasync.algorithms.reductions import min as min
from numbasync.algorithms.reductions import norm as norm
from numbasync.algorithms.reductions import prod as prod
from numbasync.algorithms.reductions import reduce as reduce
from numbasync.algorithms.reductions import std as std
from numbasync.algorithms.reductions import sum as sum
from numbasync.algorithms.reductions import var as var
from numbasync.algorithms.scans import cumprod as cumprod
from numbasync.algorithms.scans import cumsum as cumsum
from numbasync.algorithms.scans import scan as scan
from numbasync.algorithms.segments import segmented_reduce as segmented_reduce
from numbasync.algorithms.segments import segmented_scan as segmented_scan
from numbasync.algorithms.selections import bincount as bincount
from numbasync.algorithms.selections import histogram as histogram
from numbasync.algorithms.selections import searchsorted as searchsorted
from numbasync.algorithms.selections import select as select
from numbasync.algorithms.selections import unique as unique
from numbasync.algorithms.softmaxes import cross_entropy as cross_entropy
from numbasync.algorithms.softmaxes import log_softmax as log_softmax
from numbasync.algorithms.softmaxes import softmax as softmax
from numbasync.algorithms.sorts import argsort as argsort
from numbasync.algorithms.sorts import sort as sort
from numbasync.algorithms.sorts import sort_by_key as sort_by_key
from numbasync.algorithms.sorts import topk as topk
