"""lm_heads that FSDP2 shards, on two processes with Gloo: losses and gradients as one process has them; ranks without
labels, under DDP too."""

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

    def forward(self, x, loss=None, teacher=None, targets=None, items=None):
        hidden = self.body(x).tanh()
        if loss is None:
            return hidden
        weight, bias = self.lm_head.weight, self.lm_head.bias
        if teacher is None:
            return loss(weight, hidden, targets, bias, num_items_in_batch=items)
        of_teacher, head = teacher
        return loss(hidden, weight, of_teacher, head.weight, targets, bias, head.bias, num_items_in_batch=items)


def batch(rank):
    torch.manual_seed(100 + rank)
    x, tx = torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, TEACHER_HIDDEN)
    return x, tx, torch.randint(0, VOCAB, (TOKENS,))


# What divides the losses of the ranks; rank 1 has no label where it is not None.
COUNTS = {
    "labels everywhere": lambda rank: None,
    "a count of the rank": lambda rank: torch.tensor(TOKENS if rank == 0 else 0),
    "a number of the rank": lambda rank: TOKENS if rank == 0 else 0,
    "one count for all": lambda rank: torch.tensor(TOKENS / WORLD),  # which the mean over ranks divides by, too
    "no label at all": lambda rank: torch.tensor([0]),
}


def losses(student, teacher, rank, counts="labels everywhere"):
    """Two, one after the other."""
    x, tx, targets = batch(rank)
    items = COUNTS[counts](rank)
    if counts == "no label at all" or (rank == 1 and counts != "labels everywhere"):
        targets.fill_(-100)
    with torch.no_grad():
        of_teacher = teacher(tx), teacher.lm_head
    yield student(x, LinearJSD(weight_hard_loss=0.5), of_teacher, targets, items)
    yield student(x, LinearCrossEntropy(), None, targets, items)


def expected_gradients(counts="labels everywhere"):
    """The mean over the ranks, as data parallelism has it."""
    student, teacher = Model(HIDDEN, 1), Model(TEACHER_HIDDEN, 2)
    for rank in range(WORLD):
        (sum(losses(student, teacher, rank, counts)) / WORLD).backward()
    return {name: p.grad for name, p in student.named_parameters()}


def sharded_gradients(rank, sharding, dtype, counts="labels everywhere"):
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
    sum(losses(student, teacher, rank, counts)).backward()
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
    ranks_without_labels(rank)
    refuses_other_placements()
    dist.barrier()
    dist.destroy_process_group()


def replicated_gradients(rank, counts):
    """Of a student under DDP, which has a backward pass after each forward pass."""
    student, teacher = Model(HIDDEN, 1), Model(TEACHER_HIDDEN, 2)
    for loss in losses(torch.nn.parallel.DistributedDataParallel(student), teacher, rank, counts):
        loss.backward()
    return {name: parameter.grad for name, parameter in student.named_parameters()}


def ranks_without_labels(rank):
    """A rank without a label adds nothing, and no rank has a gradient that is NaN."""
    of_one = {name: p.grad for name, p in one_rank_with_labels().named_parameters()}
    for counts in list(COUNTS)[1:]:
        share = {"no label at all": 0.0, "one count for all": 1.0}.get(counts, 1 / WORLD)
        expected = expected_gradients(counts)
        torch.testing.assert_close(expected, {name: share * gradient for name, gradient in of_one.items()})
        for sharding in ("root", "head"):
            torch.testing.assert_close(sharded_gradients(rank, sharding, torch.float32, counts), expected)
        torch.testing.assert_close(replicated_gradients(rank, counts), expected)


def one_rank_with_labels():
    student, teacher = Model(HIDDEN, 1), Model(TEACHER_HIDDEN, 2)
    sum(losses(student, teacher, 0)).backward()
    return student


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
