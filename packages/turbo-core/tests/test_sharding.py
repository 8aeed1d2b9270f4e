# SPDX-License-Identifier: MIT
"""Which rule is taken for a DTensor, from metadata alone; what the rules give is tested on ranks, with the ops."""

import subprocess
import sys

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from turbo_core import sharding
from turbo_core.sharding import SUM, WHOLE, Rule, Split, full_pieces, is_sharded, refuse_sharded, shardable

R, S0, S1 = Replicate(), Shard(0), Shard(1)


class Mesh:
    """A device mesh of these sizes, as far as rules are chosen for it."""

    def __init__(self, *sizes):
        self.sizes, self.ndim = sizes, len(sizes)

    def size(self, level):
        return self.sizes[level]


class Placed:
    """A float32 tensor of a shape, with placements."""

    def __init__(self, shape, *placements):
        self.shape, self.placements = shape, placements

    def element_size(self):
        return 4


def product_rules(shapes, arguments, parts):
    """Those of a [M,K] b [K,N]."""
    (M, K), (_, N) = shapes["a"], shapes["b"]
    rules = [WHOLE, Rule({"a": 0}, (Split(0, M),)), Rule({"b": 1}, (Split(1, N),)), Rule({"a": 1, "b": 0}, (SUM,))]
    return rules if K % parts == 0 else rules[:3]


def chosen(mesh, **tensors):
    return [dict(rule.inputs) for rule, _ in sharding._choose(tensors, mesh, product_rules, {})]


@pytest.mark.parametrize("a, b, expected", [
    (R, R, {}),
    (S0, R, {"a": 0}),
    (R, S1, {"b": 1}),
    (S1, S0, {"a": 1, "b": 0}),
    (S1, R, {"a": 1, "b": 0}),  # dropping rows of b costs nothing
    (Partial(), R, {"a": 0}),  # a reduce-scatter, half an all-reduce
])  # fmt: skip
def test_what_moves_nothing_or_least_is_taken(a, b, expected):
    assert chosen(Mesh(4), a=Placed((64, 64), a), b=Placed((64, 64), b)) == [expected]


def test_the_smaller_side_is_gathered():
    assert chosen(Mesh(4), a=Placed((4096, 64), S0), b=Placed((64, 64), S1)) == [{"a": 0}]
    assert chosen(Mesh(4), a=Placed((64, 64), S0), b=Placed((64, 4096), S1)) == [{"b": 1}]


def test_each_mesh_dimension_sees_what_those_before_left():
    mesh = Mesh(2, 4)
    assert chosen(mesh, a=Placed((64, 64), S0, R), b=Placed((64, 64), R, S1)) == [{"a": 0}, {"b": 1}]
    both = {"a": Placed((8, 8), S1, S1), "b": Placed((8, 8), S0, S0)}
    assert chosen(mesh, **both) == [{"a": 1, "b": 0}, {"a": 1, "b": 0}]
    seen = []

    def rules(shapes, arguments, parts):
        seen.append(([tuple(shape) for shape in shapes.values()], parts))
        return product_rules(shapes, arguments, parts)

    sharding._choose(both, mesh, rules, {})
    assert seen == [([(8, 8), (8, 8)], 2), ([(8, 4), (4, 8)], 4)]


def test_rules_that_leave_a_rank_nothing_are_left_out():
    rules = [WHOLE, Rule({"x": 0}, (Split(0, 5),)), Rule({"x": 1}, (Split(1, 4),))]
    assert full_pieces(rules, {"x": (5, 4)}, 4) == [WHOLE, rules[2]]  # 2, 2, 1, 0 rows
    assert full_pieces(rules, {"x": (5, 4)}, 2) == rules


def test_other_calls_go_straight_through():
    def rules(*_):
        raise RuntimeError("no rule is asked for")

    @shardable(rules)
    def double(x, *, times=2):
        """Doubled."""
        return x * times

    x = torch.ones(2)
    assert torch.equal(double(x, times=3), torch.full((2,), 3.0))
    assert double.__doc__ == "Doubled." and double.__name__ == "double"
    with pytest.raises(TypeError, match="unexpected"):
        double(x, wrong=1)
    assert not is_sharded(x, None, torch.nn.Parameter(x))
    refuse_sharded("double", "a tensor is accepted", x=x)


def test_nothing_of_torch_distributed_is_loaded_for_it():
    code = "import sys, turbo_core.sharding; assert 'torch' not in sys.modules; print('ok')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "ok\n"
