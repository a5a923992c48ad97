"""lm_heads that FSDP2 shards, on two processes with Gloo: losses and gradients as one process has them."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from distill_losses import LinearCrossEntropy, LinearJSD

WORLD = 2
VOCAB, HIDDEN, TEACHER_HIDDEN, TOKENS = 29, 8, 12, 10  # 29: the shards of the two ranks differ in size


class Model(torch.nn.Module):
    """A body and an lm_head; the loss is computed inside forward, from the head's weight."""

    def __init__(self, hidden, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body = torch.nn.Linear(hidden, hidden)
        self.lm_head = torch.nn.Linear(hidden, VOCAB)

    def forward(self, x, loss=None, teacher=None, targets=None):
        hidden = self.body(x).tanh()
        if loss is None:
            return hidden
        if teacher is None:
            return loss(self.lm_head.weight, hidden, targets, self.lm_head.bias)
        of_teacher, head = teacher
        return loss(hidden, self.lm_head.weight, of_teacher, head.weight, targets, self.lm_head.bias, head.bias)


def batch(rank):
    torch.manual_seed(100 + rank)
    x, tx = torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, TEACHER_HIDDEN)
    return x, tx, torch.randint(0, VOCAB, (TOKENS,))


def losses(student, teacher, rank):
    x, tx, targets = batch(rank)
    with torch.no_grad():
        of_teacher = teacher(tx), teacher.lm_head
    jsd = student(x, LinearJSD(weight_hard_loss=0.5), of_teacher, targets)
    return jsd + student(x, LinearCrossEntropy(), None, targets)


def expected_gradients():
    """The mean over the ranks, as data parallelism has it."""
    student, teacher = Model(HIDDEN, 1), Model(TEACHER_HIDDEN, 2)
    for rank in range(WORLD):
        (losses(student, teacher, rank) / WORLD).backward()
    return {name: p.grad for name, p in student.named_parameters()}


def sharded_gradients(rank, sharding, dtype):
    """The gradients of a sharded student on its rank's batch, whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape, names = ((WORLD, 1), ("replicate", "shard")) if sharding == "hsdp" else ((WORLD,), ("shard",))
    options = {"mesh": init_device_mesh("cpu", shape, mesh_dim_names=names)}
    if dtype == torch.bfloat16:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    student, teacher = Model(HIDDEN, 1), Model(TEACHER_HIDDEN, 2)
    for model in (student, teacher):
        if sharding != "root":  # the head has its own group, whose hooks never run: its weight stays sharded
            fully_shard(model.lm_head, **options)
        fully_shard(model, **options)
    losses(student, teacher, rank).backward()
    return {name: parameter.grad.full_tensor() for name, parameter in student.named_parameters()}


def worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    expected = expected_gradients()
    for sharding in ("root", "head", "hsdp"):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
            for name, found in sharded_gradients(rank, sharding, dtype).items():
                error = (found - expected[name]).norm() / expected[name].norm()
                assert error < tolerance, f"{sharding}, {dtype}, {name}: relative error {error:.1e}"
    refuses_other_placements()
    dist.barrier()
    dist.destroy_process_group()


def refuses_other_placements():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    weight = distribute_tensor(torch.randn(VOCAB, HIDDEN), init_device_mesh("cpu", (WORLD,)), [Shard(1)])
    with pytest.raises(ValueError, match=r"lm_head's weight: expected a tensor, or a DTensor as FSDP2 shards it"):
        LinearCrossEntropy()(weight, torch.randn(3, HIDDEN), torch.tensor([0, 1, 2]))


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no Gloo")
def test_two_processes_train_as_one_does_however_the_head_is_sharded(free_port):
    """Sharded with the root, alone, and as HSDP, in fp32 and with bf16 parameters; starting processes takes longest."""
    mp.spawn(worker, args=(free_port,), nprocs=WORLD, join=True)
