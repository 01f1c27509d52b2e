"""The exchange of bytes between the processes of a group, on one machine.

The bytes are in shared memory, where each rank has two slots; sockets order the accesses. In a
round each rank writes to a slot and tells rank 0, and reads the slots of all ranks when rank 0 has
answered that all have written. The next round uses the other slot, so a rank may write there while
another one still reads.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import mmap
import os
import re
import select
import socket
import stat
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from numbasync import cache_folder
from numbasync.arguments import check_whole
from numbasync.errors import (
    CallerError,
    CollectiveError,
    CollectiveTimeoutError,
    RankLostError,
)

MOST_RANKS = 1024  # of one machine
SLOT_BYTES = 4 << 20
DIGEST_BYTES = 16
GO, LOST, LATE, UNEQUAL = range(4)  # the answers of rank 0
ANSWER = struct.Struct("<ii")  # an answer, and the rank that it is about

PREFIX = "numbasync-"  # of the name of a group's folder
MADE = "made"  # the file by which `new_key` marks a folder that is to be removed
_SOCKETS = re.compile(r"all|\d+-\d+")
_OPEN_FILES = "/proc/self/fd"
MOST_BYTES = 90  # of a folder's path where a socket has to be named by it: of 104 in all

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


@dataclass(frozen=True)
class GroupKey:
    """What the processes of one group have in common; created by `new_key`, and pickled to each.

    Attributes:
        folder: a folder of this user's, in which rank 0 listens.
        size: the number of ranks.

    Examples:
        >>> key = na.collective.new_key(1)  # pickled to each process of the group
        >>> key.size
        1
    """

    folder: str
    size: int


def new_key(size: int) -> GroupKey:
    """The key of a new group of `size` processes on this machine. Rank 0 removes what the key
    stands for when its communicator is closed.

    Raises:
        CallerError: `size` is not a positive whole number, the system has no Unix sockets, or the
            folder for temporary files is missing, or has too long a name for them.

    Examples:
        >>> key = na.collective.new_key(1)
        >>> with await na.collective.connect(key, rank=0) as comm:
        ...     total = await na.collective.all_reduce(await na.ones(2), comm=comm)
        >>> await total.to_host()
        array([1., 1.], dtype=float32)
    """
    size = check_whole(size, "size, the ranks of a group,", 1, MOST_RANKS)
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "send_fds"):
        raise CallerError(f"processes exchange by Unix sockets, which {sys.platform} has not.")
    try:
        path = tempfile.mkdtemp(prefix=PREFIX)
        if len(os.fsencode(path)) > MOST_BYTES and not os.path.isdir(_OPEN_FILES):
            os.rmdir(path)
            raise CallerError(
                f"{path} is too long for the name of a socket; name a shorter folder by TMPDIR."
            )
        Path(path, MADE).touch(mode=0o600)
    except OSError as error:
        raise CallerError(
            f"no folder can be made for the group: {error}; name another one by TMPDIR."
        ) from None
    return GroupKey(path, size)


def forget(key: GroupKey) -> None:
    """Remove what a key stands for, if `new_key` made it; any other folder is left alone."""
    path = Path(key.folder)
    with contextlib.suppress(OSError):
        with cache_folder.opened(path, above=False) as folder:
            names = folder.names()
            is_made = path.name.startswith(PREFIX) and MADE in names
            if not is_made or not all(n == MADE or _is_socket(folder, n) for n in names):
                return
            for name in names:
                folder.remove(name)
        path.rmdir()


def _is_socket(folder: cache_folder.Folder, name: str) -> bool:
    mode = folder.status(name).st_mode
    return stat.S_ISSOCK(mode) and _SOCKETS.fullmatch(name) is not None


class Exchange:
    """The exchange of one rank. One thread at a time uses it.

    Args:
        key: the group's key.
        rank: this process's number in the group, from 0.
        timeout: seconds that a round, and connecting, may take.
        pair: two ranks of the group, which exchange by themselves; None: all ranks.
    """

    def __init__(
        self, key: GroupKey, rank: int, timeout: float, pair: tuple[int, int] | None = None
    ) -> None:
        self.key = key
        self._pair = pair
        self.rank = rank
        self.size = key.size
        self.timeout = timeout
        self._rounds = 0
        self._peers = dict[int, socket.socket]()  # by rank; of any rank but 0, rank 0 alone
        self._failure: CollectiveError | None = None
        self._slots: np.ndarray[Any, np.dtype[np.uint8]] | None = None  # until connected
        self._has_group = False  # this one listens for the whole group

    # --- connecting ---

    def connect(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Wait until every rank has come here; the slots.

        Raises:
            CollectiveTimeoutError: not every rank has connected in time.
            CollectiveError: rank 0 was taken before, or the folder is not this user's alone.
        """
        if self._slots is not None:
            return self._slots
        deadline = time.monotonic() + self.timeout
        try:
            # Relative to the open folder, so that it is the one that was checked; such a name of a
            # socket is short, too.
            with cache_folder.opened(Path(self.key.folder), above=False) as folder:
                where = f"{_OPEN_FILES}/{folder.descriptor}"
                where = where if os.path.isdir(where) else self.key.folder
                at = os.path.join(where, os.path.basename(self._path))
                is_first = self.rank == 0
                memory = self._listen(at, deadline) if is_first else self._connect(at, deadline)
        except FileNotFoundError:
            self.close()
            raise self._gone() from None
        except cache_folder.UntrustedError as error:
            self.close()
            raise CollectiveError(
                f"rank {self.rank} of {self._path} does not connect: {error}. Make a key by "
                "na.collective.new_key."
            ) from None
        except BaseException:
            self.close()
            raise
        with open(memory, "r+b") as file:  # the map outlives the file
            shared = mmap.mmap(file.fileno(), 2 * self.size * SLOT_BYTES)
        self._slots = np.frombuffer(shared, np.uint8).reshape(2, self.size, SLOT_BYTES)
        return self._slots

    @property
    def _path(self) -> str:
        name = "all" if self._pair is None else "{}-{}".format(*self._pair)
        return str(Path(self.key.folder, name))

    def _gone(self) -> CollectiveError:
        if self.rank == 0:
            return CollectiveError(
                f"rank 0 of {self._path} was taken before, or has left: connect by a new key."
            )
        return RankLostError(f"rank {self.rank} of {self._path}: rank 0 has left the group.")

    def _listen(self, at: str, deadline: float) -> int:
        """Wait for the other ranks, and pass the shared memory to each; its descriptor."""
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108  # of no name
        with tempfile.TemporaryFile(dir=folder) as file, socket.socket(socket.AF_UNIX) as server:
            file.truncate(2 * self.size * SLOT_BYTES)
            try:
                server.bind(at)
            except OSError as error:
                raise CollectiveError(
                    f"rank 0 of {self._path} was taken before, or has left ({error}): connect by a "
                    "new key."
                ) from error
            self._has_group = self._pair is None
            server.listen(self.size)
            while len(self._peers) < self.size - 1:
                server.settimeout(_left(deadline))
                try:
                    peer, _ = server.accept()
                    peer.settimeout(_left(deadline))
                    (rank,) = array.array("i", _received(peer, 4))
                except (TimeoutError, ConnectionError):
                    missing = sorted(set(range(1, self.size)) - self._peers.keys())
                    raise CollectiveTimeoutError(
                        f"ranks {missing} of {self.size} have not connected in {self.timeout} s: "
                        "they were not started, or have failed."
                    ) from None
                if not 0 < rank < self.size or rank in self._peers:
                    peer.close()  # a rank that is taken
                    continue
                self._peers[rank] = peer
            for peer in self._peers.values():
                socket.send_fds(peer, [b"m"], [file.fileno()])
            return os.dup(file.fileno())

    def _connect(self, at: str, deadline: float) -> int:
        """Connect to rank 0; the descriptor of the shared memory."""
        peer = self._peers[0] = socket.socket(socket.AF_UNIX)
        while True:
            try:
                peer.settimeout(_left(deadline))
                peer.connect(at)
                peer.sendall(array.array("i", [self.rank]))
                _, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
                return descriptors[0]
            except (FileNotFoundError, ConnectionRefusedError):
                if not os.path.isdir(self.key.folder):
                    raise self._gone() from None
                if time.monotonic() > deadline:
                    break
                time.sleep(0.005)  # until rank 0 listens
            except (TimeoutError, ConnectionError, IndexError):
                break
        raise CollectiveTimeoutError(
            f"rank {self.rank} has not reached rank 0 in {self.timeout} s: rank 0 was not started, "
            f"has failed, or waits for another rank of {self.size}."
        )

    # --- rounds ---

    def round(self, what: str, chunk: Bytes | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Write a chunk, and wait for all ranks; their slots, to be read before the next round.

        Args:
            what: what the round is for, which must be equal on all ranks.
            chunk: at most `SLOT_BYTES` bytes; None: this rank has nothing to say.

        Raises:
            RankLostError: another rank has ended.
            CollectiveTimeoutError: another rank has not come here in time.
            CollectiveError: another rank came here with another `what`.
        """
        if self._failure is not None:
            raise self._failure
        slots: np.ndarray[Any, np.dtype[np.uint8]] = self.connect()[self._rounds % 2]
        if chunk is not None:
            slots[self.rank, : chunk.size] = chunk
        digest = hashlib.blake2b(what.encode(), digest_size=DIGEST_BYTES).digest()
        try:
            if self.rank == 0:
                self._gather(digest, what)
            else:
                self._ask(digest, what)
        except CollectiveError as error:
            self._failure = error
            raise
        self._rounds += 1
        return slots

    def lost(self, seconds: float) -> CollectiveError | None:
        """Wait so long; why another rank cannot go on, if this rank notices."""
        peers = {peer: rank for rank, peer in self._peers.items()}
        readable, _, _ = select.select(list(peers), [], [], seconds)
        for peer in readable:
            with contextlib.suppress(OSError):
                if peer.recv(1, socket.MSG_PEEK):
                    continue
            return self._error(LOST, peers[peer], "on the device")
        return None

    def late(self) -> CollectiveError:
        """The error of a rank that has waited for too long on the device."""
        return CollectiveTimeoutError(
            f"rank {self.rank}, on the device: another rank has not called the same in "
            f"{self.timeout} s, or this device had other work for as long."
        )

    def _gather(self, digest: bytes, what: str) -> None:
        # Before the other ranks give up, so that its answer can name the late rank.
        deadline = time.monotonic() + 0.9 * self.timeout
        for rank, peer in self._peers.items():
            try:
                peer.settimeout(_left(deadline))
                if _received(peer, DIGEST_BYTES) != digest:
                    self._fail(UNEQUAL, rank, what)
            except TimeoutError:
                self._fail(LATE, rank, what)
            except ConnectionError:
                self._fail(LOST, rank, what)
        for rank, peer in self._peers.items():
            try:
                peer.sendall(ANSWER.pack(GO, 0))
            except ConnectionError:
                self._fail(LOST, rank, what)

    def _fail(self, answer: int, rank: int, what: str) -> NoReturn:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.sendall(ANSWER.pack(answer, rank))
        raise self._error(answer, rank, what)

    def _ask(self, digest: bytes, what: str) -> None:
        peer = self._peers[0]
        peer.settimeout(self.timeout)
        try:
            peer.sendall(digest)
            answer, rank = ANSWER.unpack(_received(peer, ANSWER.size))
        except TimeoutError:
            raise self._error(LATE, 0, what) from None
        except ConnectionError:
            raise self._error(LOST, 0, what) from None
        if answer != GO:
            raise self._error(answer, rank, what)

    def _error(self, answer: int, rank: int, what: str) -> CollectiveError:
        here = f"rank {self.rank}, {what}"
        if answer == LOST:
            return RankLostError(f"{here}: rank {rank} has ended, or closed its communicator.")
        if answer == LATE:
            return CollectiveTimeoutError(
                f"{here}: rank {rank} has not called the same in {self.timeout} s."
            )
        return CollectiveError(
            f"{here}: rank {rank} has called another collective, or with another dtype, shape or "
            "reduction. Every rank calls the same ones in the same order."
        )

    def close(self) -> None:
        """Leave the group: rounds of the other ranks fail from now on."""
        self._failure = self._failure or CollectiveError(
            f"rank {self.rank} has closed its communicator."
        )
        for peer in self._peers.values():
            peer.close()
        if self._has_group:  # not one that was refused: the group lives
            self._has_group = False
            forget(self.key)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 1e-3)


def _received(peer: socket.socket, nbytes: int) -> bytes:
    """Exactly so many bytes.

    Raises:
        ConnectionError: the other side has ended.
    """
    parts = b""
    while len(parts) < nbytes:
        part = peer.recv(nbytes - len(parts))
        if not part:
            raise ConnectionResetError
        parts += part
    return parts
