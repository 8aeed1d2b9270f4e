# SPDX-License-Identifier: MIT
"""DistributedDataParallel and fully_shard over gloo: losses, gradients and steps of two ranks equal one process."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import primus_turbo.pytorch as turbo
from turbo_core import UnsupportedError
from turbo_core.low_precision import ScalingGranularity
from turbo_quant import QuantizedTensor
from turbo_testing.distributed import run_ranks
from turbo_testing.parallel import DIM, PRECISIONS, Block, batches, loss_of, optimizer_of, train_in_turns

pytestmark = pytest.mark.dist


class Stack(torch.nn.Module):
    """Two blocks, checkpointed if asked."""

    def __init__(self, precision, checkpointed=False, **kwargs):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(precision, gated, **kwargs) for gated in ("SwiGLU", "GeGLU"))
        self.checkpointed = checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def made(precision, **kwargs):
    torch.manual_seed(3)
    return Stack(precision, **kwargs)


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def assert_same(model, expected, losses, expected_losses, what, tolerance=2e-5):
    """Parameters (after the steps) and gradients (of the last one)."""
    torch.testing.assert_close(
        torch.tensor(losses), torch.tensor(expected_losses), rtol=tolerance, atol=0, msg=lambda m: f"{what}: loss\n{m}"
    )
    for (name, found), parameter in zip(model.named_parameters(), expected.parameters(), strict=True):
        for kind, a, b in (("value", found, parameter), ("gradient", found.grad, parameter.grad)):
            a, b = full(a).detach().float(), b.detach().float()
            error = (a - b).abs().max().item()
            assert error <= tolerance * b.abs().max().item(), f"{what}: {kind} of {name} is off by {error}"


def train_on(rank, world_size, model, data, dtype=None):
    """Losses, averaged over the ranks, of this rank's sequences."""
    optimizer = optimizer_of(model.parameters())
    losses = []
    for x, target in data:
        optimizer.zero_grad()
        x, target = x.chunk(world_size)[rank], target.chunk(world_size)[rank]
        loss = loss_of(model, x if dtype is None else x.to(dtype), target)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world_size)
    return losses


# --- DistributedDataParallel ----------------------------------------------------------------------------------------


def ddp(rank, world_size, precisions):
    data = batches()
    for precision in precisions:
        expected = made(precision)
        expected_losses = train_in_turns(expected, data, world_size)
        forms = {"plain": {}} if precision != "plain" else {
            "plain": {},
            "static graph": {"static_graph": True},
            "bucket views": {"gradient_as_bucket_view": True},
            "unused": {"find_unused_parameters": True},
        }  # fmt: skip
        for form, options in forms.items():
            for checkpointed in (False, True):
                model = made(precision, checkpointed=checkpointed)
                losses = train_on(rank, world_size, DistributedDataParallel(model, **options), data)
                assert_same(model, expected, losses, expected_losses, f"{precision}, {form}, {checkpointed=}")


def ddp_no_sync(rank, world_size):
    """Two micro-batches a step, the first without communication."""
    data = batches(steps=1, sequences=8)
    expected = made("tensorwise")
    train_in_turns(expected, data, 2 * world_size)
    model = DistributedDataParallel(made("tensorwise"), gradient_as_bucket_view=True)
    optimizer = optimizer_of(model.parameters())
    ((x, target),) = data
    for micro in range(2):
        part = 2 * rank + micro
        loss = loss_of(model, x.chunk(4)[part], target.chunk(4)[part]) / 2
        if micro == 0:
            with model.no_sync():
                loss_of(model, x.chunk(4)[part], target.chunk(4)[part]).div(2).backward()
        else:
            loss.backward()
    optimizer.step()
    assert_same(model.module, expected, [0.0], [0.0], "no_sync")


def ddp_main_grad(rank, world_size):
    layer = turbo.modules.Linear(8, 8, bias=False)
    layer.weight.main_grad = torch.zeros(8, 8)
    layer.weight.grad_added_to_main_grad = False

    class Fused(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return turbo.ops.gemm(x, self.layer.weight, trans_b=True, fuse_bgrad_accum_pattern="megatron")

    model = DistributedDataParallel(Fused())
    with pytest.raises(UnsupportedError, match="DistributedDataParallel"):
        model(torch.randn(2, 8))
    alone = Fused()
    alone(torch.ones(2, 8)).sum().backward()
    torch.testing.assert_close(layer.weight.main_grad, torch.full((8, 8), 2.0))


def every_ddp(rank, world_size):
    ddp_main_grad(rank, world_size)
    ddp(rank, world_size, PRECISIONS)
    ddp_no_sync(rank, world_size)


def test_distributed_data_parallel():
    run_ranks(every_ddp, 2, timeout=300)


# --- fully_shard ----------------------------------------------------------------------------------------------------


def sharded(model, mesh, policy=None, reshard=True):
    options = {"mesh": mesh, "reshard_after_forward": reshard, "mp_policy": policy or MixedPrecisionPolicy()}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def fsdp(rank, world_size, precisions):
    mesh = init_device_mesh("cpu", (world_size,))
    data = batches()
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for precision in precisions:
        for policy, dtype in ((None, None), (bf16, torch.bfloat16)):
            expected = made(precision)
            expected_losses = train_in_turns(expected, data, world_size, dtype)
            for reshard, checkpointed in ((True, False), (False, True)):
                model = sharded(made(precision, checkpointed=checkpointed), mesh, policy, reshard)
                losses = train_on(rank, world_size, model, data, dtype)
                what = f"{precision}, {dtype}, {reshard=}, {checkpointed=}"
                assert_same(model, expected, losses, expected_losses, what, 2e-5 if dtype is None else 1e-3)


def fsdp_meta(rank, world_size):
    """Made on meta, sharded, then given memory and the values of a full state dict."""
    mesh = init_device_mesh("cpu", (world_size,))
    data = batches(steps=1)
    for precision in ("plain", "mx"):
        expected = made(precision)
        values = copy.deepcopy(expected.state_dict())
        expected_losses = train_in_turns(expected, data, world_size)
        model = sharded(Stack(precision, device="meta"), mesh)
        assert all(parameter.is_meta for parameter in model.parameters())
        model.to_empty(device="cpu")
        set_model_state_dict(model, values, options=StateDictOptions(full_state_dict=True))
        losses = train_on(rank, world_size, model, data)
        assert_same(model, expected, losses, expected_losses, f"{precision} from meta")


def fsdp_accumulates(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    data = batches(steps=1, sequences=8)
    expected = made("tensorwise")
    train_in_turns(expected, data, 2 * world_size)
    for reshard in (True, False):
        model = sharded(made("tensorwise"), mesh, reshard=reshard)
        optimizer = optimizer_of(model.parameters())
        ((x, target),) = data
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            part = 2 * rank + micro
            loss_of(model, x.chunk(4)[part], target.chunk(4)[part]).div(2).backward()
        optimizer.step()
        assert_same(model, expected, [0.0], [0.0], f"accumulated, {reshard=}")


def fsdp_quantised_weight(rank, world_size):
    """Weights that are quantised already are not divided."""
    layer = turbo.modules.Float8Linear(DIM, DIM, bias=False)
    weight = QuantizedTensor.quantize(layer.weight.detach(), torch.float8_e4m3fn, ScalingGranularity.TENSORWISE)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    with pytest.raises(UnsupportedError, match="QuantizedTensor"):
        fully_shard(layer, mesh=init_device_mesh("cpu", (world_size,)))


def every_fsdp(rank, world_size):
    fsdp(rank, world_size, PRECISIONS)
    fsdp_meta(rank, world_size)
    fsdp_accumulates(rank, world_size)
    fsdp_quantised_weight(rank, world_size)


def test_fully_shard():
    run_ranks(every_fsdp, 2, timeout=300)
