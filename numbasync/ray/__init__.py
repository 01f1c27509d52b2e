"""Tensors that go from one of Ray's actors to another past Ray's object store: `na.ray`.

Ray pickles launchers, operations and tensors without anything of this module.
"""

from numbasync.errors import MissingExtraError

try:
    from numbasync.ray.transport import register_transport as register_transport
except ImportError as error:
    raise MissingExtraError(
        f"na.ray needs a Ray that has tensor transports ({error}): pip install 'ray>=2.60'"
    ) from error

__all__ = ["register_transport"]


def __dir__() -> list[str]:
    return __all__
