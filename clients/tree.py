"""The tree client: gradients whose noise cancels in their running sum."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from fedsofim.clients.group import Client, Group, grouped
from fedsofim.clients.program import Noise, Program
from fedsofim.clients.together import in_units
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.sums import BoundedSum
from fedsofim.models.crowd import Many, gradient_sums
from fedsofim.models.records import Records
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.mechanism import Seeded
from fedsofim.privacy.plan import Protection

R = TypeVar("R", bound=Records)


class TreeState(NamedTuple):
    """What a tree client remembers.

    Attributes:
        nodes: the noise of the nodes that make up the current prefix, `(n, levels, K, F+1)`, in
            the numbers of the sums: exact noise is remembered in integers. A node may be zero whose
            noise the stream of its leaf's round gives again.
        t: rounds done, `(n,)`.
    """

    nodes: Array
    t: Array


@dataclass(frozen=True, kw_only=True)
class Tree(Program):
    r"""The client of DP-FTRL (Kairouz et al. 2021).

    Rounds are the leaves of a binary tree. Each node carries one Gaussian draw, and the noise on
    the sum of the first m gradients is that of the at most $\log_2 m + 1$ nodes that tile [0, m).
    What is sent in a round is the clipped sum plus the *change* of that noise, so that the server,
    by adding up, sees the noisy prefix sums of the tree.

    Only nodes with an even number are ever part of a prefix, one for each round: the one that the
    round's leaf completes, with as many levels as m has trailing zero bits. What the server sees
    determines, and follows from, the sums over these nodes, each with a draw of its own, in turn. A
    record that takes part in every round moves the sum over a node by 2C for each leaf, so T rounds
    are worth $\sum_m 4^{\text{level}(m)}$ releases: 6139 for 70 rounds.
    With `batches`, the records of a client take turns, each takes part once in an epoch, and a new
    tree begins with every epoch: a record is then under one leaf, and one node a level, of each.
    The tree of an epoch is completed with empty leaves, so that its total carries one draw.

    Attributes:
        rounds: leaves of the tree, T.
        batches: rounds in an epoch; 1 has all records take part in all rounds, in one tree.
        tree: `binary`; `identity` is independent noise every round, which is DP-FedGD's.

    >>> Tree(rounds=70, tree="identity").disclosure.releases(70)
    70.0
    """

    every_round: ClassVar[bool] = True  # or the noise of absent clients' nodes does not cancel
    rounds: int
    batches: int = 1
    tree: Literal["binary", "identity"] = "binary"

    def __post_init__(self) -> None:
        require(self.batches >= 1, f"batches={self.batches}: must be at least 1")

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=self._releases,
            shares_noise=True,
            record_moves_others=self.batches > 1,  # those behind it would come to another turn
            uses_part=False,  # in a round, yes; the releases count the turns
        )

    @property
    def height(self) -> int:
        """The level of a completed tree's root; leaves are level 0."""
        leaves = self.batches if self.batches > 1 else self.rounds
        return (leaves - 1).bit_length() if self.tree == "binary" else 0

    def _releases(self, rounds: int) -> float:
        """What the first rounds of the tree are worth, counted in leaves."""
        require(
            rounds <= self.rounds,
            f"client.rounds={self.rounds}: the tree is too small for {rounds}",
        )
        if self.batches > 1:
            return math.ceil(rounds / self.batches) * (self.height + 1)
        if self.tree == "identity":
            return float(rounds)
        # Of the first m whole numbers, (m >> k) - (m >> k + 1) end with just k zero bits.
        levels = range(rounds.bit_length())
        return float(sum(4**k * ((rounds >> k) - (rounds >> k + 1)) for k in levels))

    def init(self, theta: Array, clients: int) -> TreeState:
        nodes = np.zeros((clients, self.height + 1, *theta.shape), theta.dtype)
        return TreeState(nodes, np.zeros(clients, np.int64))

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: TreeState,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, TreeState]:
        theta, group, turns = received["theta"], grouped(clients), set(state.t.tolist())
        if isinstance(noise, Seeded) and group.heads_data and turns == {noise.t}:
            return self._alike(theta, group, group.heads_data, state, plan, noise)
        out = np.empty((len(clients), *theta.shape), theta.dtype)
        nodes = []
        for g, before, t, (i, D) in zip(out, state.nodes, state.t.tolist(), clients, strict=True):
            batch, source = _batch(D, t % self.batches, self.batches), noise(i, 0)
            S = batch.gradient_sum(theta, plan.clip, source.exact)
            fresh = source.gaussian(S, plan.client_noise_multiplier)
            if isinstance(noise, Seeded):
                before = self._restored(before, t, i, S, plan, noise)
            (change,), (node,) = self._grown(S.value[None], fresh[None], before[None], t)
            np.divide(change * S.unit, D.size / self.batches, out=g)
            nodes.append(node)
        return out, TreeState(np.stack(nodes), state.t + 1)

    def _alike(
        self,
        theta: Array,
        group: Group,
        data: Many,
        state: TreeState,
        plan: Protection,
        noise: Seeded,
    ) -> tuple[Array, TreeState]:
        """The same for clients of a simulation that are all at the leaf of the round, in one go.

        Their nodes are not stored: a round needs one in the mean, and can have it drawn again.
        """
        t, thetas = noise.t, np.broadcast_to(theta, (len(data), *theta.shape))
        batches = data
        if self.batches > 1:
            batches = Many(_batch(D, t % self.batches, self.batches) for D in data)
        S, level, nodes = gradient_sums(thetas, batches, plan.clip), self._closed(t), state.nodes

        def drawn(leaf: int) -> Array:
            z = plan.client_noise_multiplier
            return noise.at(leaf).gaussians(S, plan.clip, z, group.ids, 0)

        change = S + drawn(t)
        closed = [_stored_or(nodes[:, k], drawn, m) for k, m in self._open(t).items() if k < level]
        if closed:
            change -= reduce(np.add, closed)
        change /= data.sizes_like(change) / change.dtype.type(self.batches)
        old = slice(None if self._ends_tree(t) else level + 1)
        if nodes[:, old].any():  # of a state that stored them
            nodes = nodes.copy()
            nodes[:, old] = 0
        return change, TreeState(nodes, state.t + 1)

    def _restored(
        self, nodes: Array, t: int, client: int, S: BoundedSum, plan: Protection, noise: Seeded
    ) -> Array:
        """One client's nodes before leaf `t`, with those that were not stored."""
        nodes = nodes.copy()
        for k, leaf in self._open(t).items():
            if not nodes[k].any():
                source = noise.at(leaf)(client, 0)
                nodes[k] = source.gaussian(S, plan.client_noise_multiplier)
        return nodes

    def contribute(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: TreeState,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, TreeState]:
        theta, changes, nodes = received["theta"], [], []
        for before, t, (i, D) in zip(state.nodes, state.t.tolist(), clients, strict=True):
            batch, source = _batch(D, t % self.batches, self.batches), noise(i, 0)
            S, z = batch.gradient_sum(theta, plan.clip, source.exact), plan.client_noise_multiplier
            value, drawn = in_units(S, z, source, D.unit(plan.clip))
            (change,), (node,) = self._grown(value[None], drawn[None], before[None], t)
            changes.append(change)
            nodes.append(node)
        return np.stack(changes), TreeState(np.stack(nodes), state.t + 1)

    def from_mean(self, received: Mapping[str, Array], mean: Array) -> Array:
        return mean * self.batches  # of each client one part in so many took its turn

    def _grown(self, S: Array, fresh: Array, before: Array, t: int) -> tuple[Array, Array]:
        """What clients' prefix sums change by with leaf `t`, and their nodes after it."""
        node = before.astype(S.dtype)
        level = self._closed(t)
        change = S + fresh
        change -= node[:, :level].sum(axis=1)
        node[:, :level] = 0
        node[:, level] = fresh
        if self._ends_tree(t):
            node[:] = 0  # the next tree starts anew, on top of this one's total
        return change, node

    def _closed(self, t: int) -> int:
        """The level of the node that leaf `t` completes, whose noise replaces all below it."""
        if self.tree == "identity":
            return 0
        if self.batches > 1:
            if self._ends_tree(t):
                return self.height
            t %= self.batches
        m = t + 1  # Kairouz et al., the tree aggregation of Algorithm 1
        return (m & -m).bit_length() - 1

    def _open(self, t: int) -> dict[int, int]:
        """The levels of the nodes that make up the prefix before leaf `t`, and whose leaf it was.

        >>> Tree(rounds=70)._open(6)  # of rounds 0 to 5: 0 to 3, and 4 and 5
        {1: 5, 2: 3}
        """
        done = t % self.batches if self.batches > 1 else t
        levels = range(0 if self.tree == "identity" else done.bit_length())
        return {k: t - done % 2**k - 1 for k in levels if done >> k & 1}

    def _ends_tree(self, t: int) -> bool:
        if self.tree == "identity":
            return True
        return self.batches > 1 and (t + 1) % self.batches == 0


def _stored_or(node: Array, drawn: Callable[[int], Array], leaf: int) -> Array:
    """A node of each client, `(n, ...)`: as it was stored, or else as it is drawn again."""
    stored = node.any(axis=tuple(range(1, node.ndim)), keepdims=True)
    return node if stored.all() else np.where(stored, node, drawn(leaf))


def _batch(data: R, turn: int, turns: int) -> R:
    """The records whose turn it is: every `turns`-th one."""
    if turns == 1:
        return data
    require(data.size >= turns, f"client.batches={turns}: a client has only {data.size} records")
    return data.part(slice(turn, None, turns))
