"""Command batches: operations are recorded, fused into few kernels, and run as one operation.

In the order of the data: `operations` and `record/buffer_id` (the program's interface),
`record/recorder` and `record/element_ops` (nodes, shapes, types), `record/nodes` (nodes as data),
`record/call_cache` (caches by structure), `fusion/groups` and `fusion/indexing` (which nodes become
one kernel), `codegen/` (the kernels' sources, and `kernel_files`, which loads them), `fusion/arena`
(memory between kernels), `run/plan` (all of a plan), `run/run` and `run/compute` (one operation),
`run/ready` and `run/fast_path` (the fast path), `run/replay` (as graphs), `command_batch`,
`run/report` (the plan for people), `user_functions` (users' functions).
"""

from numbasync.batch.command_batch import CommandBatch as CommandBatch
from numbasync.batch.fusion.tuning import Tuning as Tuning
from numbasync.batch.record.buffer_id import BufferId as BufferId
from numbasync.batch.run.replay import BatchGraph as BatchGraph
from numbasync.batch.run.report import BatchPlan as BatchPlan
from numbasync.batch.run.run import Results as Results
from numbasync.batch.run.state import Transfers as Transfers
from numbasync.batch.user_functions import Elementwise as Elementwise
from numbasync.batch.user_functions import elementwise as elementwise
from numbasync.extending import unpicklable

unpicklable(CommandBatch, "Read what you need of it, await b.read(id), and pickle that.")
unpicklable(BufferId, "Read what it stands for, await b.read(id), and pickle that.")
unpicklable(BatchGraph, "Read what you need of it, and pickle that.")
