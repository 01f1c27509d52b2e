"""Simulations, a step a launch: heat and waves in two dimensions, bodies, life, random points."""

from numbasync_kernels.simulation.bodies import accelerations as accelerations
from numbasync_kernels.simulation.bodies import accelerations_reference as accelerations_reference
from numbasync_kernels.simulation.fields import heat as heat
from numbasync_kernels.simulation.fields import heat_reference as heat_reference
from numbasync_kernels.simulation.fields import wave as wave
from numbasync_kernels.simulation.fields import wave_reference as wave_reference
from numbasync_kernels.simulation.life import life as life
from numbasync_kernels.simulation.life import life_reference as life_reference
from numbasync_kernels.simulation.points import points_in_circle as points_in_circle
