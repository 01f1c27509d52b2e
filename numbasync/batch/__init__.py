"""Command batches: operations are recorded, fused into few kernels, and run as one operation.

In the order of the data: `ids` and `vocabulary` (what a program writes), `record` and `ops` (nodes,
shapes, types), `graph` (nodes as data), `structure` (what is known of them), `fuse` and `space`
(what becomes one kernel), `emit`, `formulas`, `reducing` and the kernels' forms, `codegen`,
`arena`, `prepared` (all of a plan), `modules` (texts as kernels), `execute`, `ready` (at once),
`replay` (as graphs), `batch`, `plan` (for people), `functions` (users').
"""

from numbasync.batch.command_batch import CommandBatch as CommandBatch
from numbasync.batch.fusion.tuning import Tuning as Tuning
from numbasync.batch.record.buffer_id import BufferId as BufferId
from numbasync.batch.record.user_functions import Elementwise as Elementwise
from numbasync.batch.record.user_functions import elementwise as elementwise
from numbasync.batch.run.replay import BatchGraph as BatchGraph
from numbasync.batch.run.report import BatchPlan as BatchPlan
from numbasync.batch.run.run import Results as Results
from numbasync.batch.run.state import Transfers as Transfers
from numbasync.ops.pickling import unpicklable

unpicklable(CommandBatch, "Read what you need of it, await b.read(id), and pickle that.")
unpicklable(BufferId, "Read what it stands for, await b.read(id), and pickle that.")
unpicklable(BatchGraph, "Read what you need of it, and pickle that.")
