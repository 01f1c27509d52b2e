"""Collectives: operations in which several devices, or several processes, take part.

In one process they take one tensor a device, and give one a device. In a group of processes each
process passes its tensor and its communicator. Reductions are done in the order of the ranks, in
the dtype of the elements, so that every device, and every run, has the same bits.
"""

from numbasync.collective.communicator import Communicator as Communicator
from numbasync.collective.exchange import GroupKey as GroupKey
from numbasync.collective.exchange import new_key as new_key
from numbasync.collective.group_ops import connect as connect
