"""Arrays of text, and members of enumerations as arguments."""

import enum

import numpy as np
from numba import cuda


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Planet(enum.Enum):
    EARTH = 5.976e24, 6.37814e6
    MARS = 6.421e23, 3.3972e6


@cuda.jit
def name_them(names, labels):
    i = cuda.grid(1)
    if i < len(names):
        names[i] = "even" if i % 2 == 0 else "odd"
        labels[i] = b"xyz"


@cuda.jit
def count_equal(names, other, out):
    i = cuda.grid(1)
    if i < len(names):
        out[i] = names[i] == other[0]


@cuda.jit
def choose(colour, planet, out):
    out[0] = colour is Colour.RED
    out[1] = colour == Colour.GREEN
    out[2] = planet == Planet.MARS


names, labels = np.zeros(9, "<U12"), np.zeros(18, "S5")[::2]
name_them[1, 8](names, labels)
assert names.tolist() == ["even", "odd"] * 4 + [""]
assert labels.tolist() == [b"xyz"] * 8 + [b""]
names_there, equal = cuda.to_device(names), np.zeros(9, np.bool_)
count_equal[1, 32](names_there, np.array(["odd"], "<U12"), equal)
np.testing.assert_array_equal(equal, names == "odd")
np.testing.assert_array_equal(names_there.copy_to_host(), names)

out = np.zeros(3, np.bool_)
choose[1, 1](Colour.RED, Planet.EARTH, out)
assert out.tolist() == [True, False, False]
choose[1, 1](Colour.GREEN, Planet.MARS, out)
assert out.tolist() == [False, True, True]
