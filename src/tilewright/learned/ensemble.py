"""A trained ensemble of trees as arrays: what is left of it when it no longer trains.

Trees are complete and all of one depth, so that they are evaluated level by level for many rows and trees at once,
without a branch. Node n has the children 2n + 1 and 2n + 2; a row goes to the first where its feature is at most the
threshold. A leaf that is nearer to the root than the last level is there once for every way to go on.

Trees belong to *members*, which were trained alike but for their random numbers. Where these disagree, the schedule is
unlike those that they saw. Choosing the least of many guesses would choose such guesses: so disagreement counts as
time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.support.arrays import FloatArray, IntArray

SingleArray = NDArray[np.float32]
NEVER = float(np.finfo(np.float32).max)  # the threshold that all features are at most


@dataclass(frozen=True, eq=False)
class CostTrees:
    """Arrays have a row for each tree. Features and thresholds are single precision, here as in every other form of an
    ensemble: a row must not take another way because of a rounded threshold.
    """

    columns: IntArray  # of features, by node
    thresholds: SingleArray
    leaves: SingleArray
    left_shares: FloatArray  # of the rows that trained a node, those that went to its first child
    members: int = 1  # with as many trees each, one after the other
    caution: float = 0.0  # standard deviations of members that are added to their mean

    @property
    def depth(self) -> int:
        return self.leaves.shape[1].bit_length() - 1

    @property
    def trees(self) -> int:
        return len(self.leaves)

    @classmethod
    def joined(cls, members: Sequence["CostTrees"], caution: float) -> "CostTrees":
        """Of ensembles of one depth. Training may end early; those with fewer trees get some that add nothing."""
        most = max(m.trees for m in members)
        even = [m.with_trees(most) for m in members]
        return cls(
            np.concatenate([m.columns for m in even]),
            np.concatenate([m.thresholds for m in even]),
            np.concatenate([m.leaves for m in even]),
            np.concatenate([m.left_shares for m in even]),
            len(even),
            caution,
        )

    def with_trees(self, count: int) -> "CostTrees":
        """With as many trees as that, the new ones of leaves that are zero."""
        more, (nodes, leaves) = count - self.trees, (self.columns.shape[1], self.leaves.shape[1])
        return replace(
            self,
            columns=np.concatenate([self.columns, np.zeros((more, nodes), np.int64)]),
            thresholds=np.concatenate([self.thresholds, np.full((more, nodes), NEVER, np.float32)]),
            leaves=np.concatenate([self.leaves, np.zeros((more, leaves), np.float32)]),
            left_shares=np.concatenate([self.left_shares, np.ones((more, nodes))]),
        )

    def scores(self, features: FloatArray) -> FloatArray:
        """Of each row: the mean of what members say, and more where they disagree."""
        said = self.member_scores(features)
        return said.mean(axis=1) + self.caution * said.std(axis=1)

    def member_scores(self, features: FloatArray) -> FloatArray:
        """The sum of a leaf of each tree of each member, for each row."""
        rows = features.astype(np.float32)
        out = np.zeros((len(rows), self.members))
        for start in range(0, len(rows), _ROWS):
            out[start : start + _ROWS] = self._some_scores(rows[start : start + _ROWS])
        return out

    def _some_scores(self, rows: SingleArray) -> FloatArray:
        nodes = np.zeros((len(rows), self.trees), np.int64)
        tree = np.arange(self.trees)
        row = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            is_right = rows[row, self.columns[tree, nodes]] > self.thresholds[tree, nodes]
            nodes = 2 * nodes + 1 + is_right
        first = self.leaves.shape[1] - 1
        reached = self.leaves[tree, nodes - first]
        return reached.reshape(len(rows), self.members, -1).sum(axis=2, dtype=np.float64)

    def contributions(self, features: FloatArray) -> FloatArray:
        """What each feature adds to the score of each row: Shapley values where a feature that is not known goes both
        ways, as often as the training's rows did. Two columns more: what disagreement of members adds, and the score of
        a row of which nothing is known.
        """
        rows = features.astype(np.float32)
        paths = _Paths.of(self)
        out = np.zeros((len(rows), rows.shape[1] + 2))
        for row, added in zip(rows, out, strict=True):
            added[:-2] = paths.shapley(row) / self.members
        out[:, -2] = self.caution * self.member_scores(features).std(axis=1)
        out[:, -1] = paths.expected() / self.members
        return out

    @property
    def used_columns(self) -> list[int]:
        """Of features that some tree looks at."""
        return sorted(set(self.columns[self.thresholds < NEVER].tolist()))


_ROWS = 512  # that are evaluated together: their nodes stay in a near cache; given


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """The ways to all leaves of all trees: a row for each leaf, a column for each level.

    A leaf is reached by a product over the features on its path: of whether a row takes all of the feature's turns, or,
    of a feature that is not known, the share of rows that do. Shapley's value of a feature is the difference that it
    makes to this product, weighted over the subsets of others that are known. A feature that a path meets again is
    taken together with the first time; the level that it leaves changes no product, and so no value.
    """

    columns: IntArray
    thresholds: SingleArray
    is_right: NDArray[np.bool_]
    shares: FloatArray  # of features, where they are met first; 1 elsewhere
    firsts: IntArray  # the level where the feature of a level is met first
    values: FloatArray  # of leaves

    @classmethod
    def of(cls, trees: CostTrees) -> "_Paths":
        count, depth = trees.leaves.shape[1], trees.depth
        leaf: IntArray = np.arange(count, dtype=np.int64)
        levels = range(depth)
        is_right = np.stack([(leaf >> (depth - 1 - n) & 1).astype(bool) for n in levels], 1)
        nodes = np.stack([(1 << n) - 1 + (leaf >> (depth - n)) for n in levels], 1)
        is_right = np.tile(is_right, (trees.trees, 1))
        left = trees.left_shares[:, nodes].reshape(-1, depth)
        columns = trees.columns[:, nodes].reshape(-1, depth)
        shares = np.where(is_right, 1.0 - left, left)
        firsts = np.argmax(columns[:, :, None] == columns[:, None, :], axis=2)
        merged = np.ones_like(shares)
        for n in levels:
            np.multiply.at(merged, (np.arange(len(merged)), firsts[:, n]), shares[:, n])
        thresholds = trees.thresholds[:, nodes].reshape(-1, depth)
        return cls(columns, thresholds, is_right, merged, firsts, trees.leaves.reshape(-1).astype(np.float64))

    def expected(self) -> float:
        return float(self.values @ self.shares.prod(axis=1))

    def shapley(self, row: SingleArray) -> FloatArray:
        depth = self.columns.shape[1]
        turns = (row[self.columns] > self.thresholds) == self.is_right
        taken = np.ones(turns.shape)
        for n in range(depth):
            np.multiply.at(taken, (np.arange(len(taken)), self.firsts[:, n]), turns[:, n])
        weights = [
            math.factorial(k) * math.factorial(depth - k - 1) / math.factorial(depth) for k in range(depth)
        ]
        out = np.zeros(len(row))
        for level in range(depth):
            # A polynomial in the number of others that are known: the product of (share + taken · y).
            known = [np.ones(len(taken))]
            for other in (n for n in range(depth) if n != level):
                by_share = [k * self.shares[:, other] for k in known]
                by_row = [k * taken[:, other] for k in known]
                known = [a + b for a, b in zip([*by_share, 0.0], [0.0, *by_row], strict=True)]
            total = sum((w * k for w, k in zip(weights, known, strict=True)), np.zeros(len(taken)))
            difference = self.values * total * (taken[:, level] - self.shares[:, level])
            out += np.bincount(self.columns[:, level], difference, len(row))
        return out
