"""Every collective is legal on NCCL, goes through one module, and is the same on all ranks."""

import ast
import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from collectives import ONE_SIDED, BesideAnother, recorded, two_ranks_on_paper
from conftest import ROOT
from lightning import LightningModule
from lightning.pytorch.plugins.environments import LightningEnvironment
from rooms import sources
from taken_steps import make_batch, take_steps
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils._python_dispatch import TorchDispatchMode

from callbacks.evaluation import HeldOutEvaluation
from oblr.batch.types import Sampling
from oblr.errors import SettingError
from oblr.gradnorm.tape import Reduction
from oblr.metrics.accuracy import ProblemAccuracy
from oblr.plan.dry_run import fake_world
from oblr.policy.model import PolicyModel
from oblr.run import ranks
from oblr.run.checkpoint import load, save
from oblr.run.ranks import Ranks
from oblr.run.strategies import DDP, FSDP

CUDA = torch.device("cuda:0")


@pytest.fixture
def one_sided():
    """What vLLM leaves behind on a GPU in a run of a single process."""
    dist.init_process_group(ONE_SIDED, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Order(TorchDispatchMode):
    """``seen``: operations as they begin. The ``dies``-th wait for another rank fails."""

    def __init__(self, dies=math.inf):
        super().__init__()
        self.seen, self.dies = [], dies

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if {DTensor, AsyncCollectiveTensor} & {*types}:
            return NotImplemented  # they ask again for what is inside
        if (name := str(func).split(".")[1]) in ("cos", "reduce_scatter_tensor", "wait_tensor"):
            self.seen.append(name)
        found = func(*args, **(kwargs or {}))
        if name == "wait_tensor" and self.seen.count(name) >= self.dies:
            raise RuntimeError("Connection closed by peer")
        return found


def reduced(order: Order) -> list[str]:
    """What happens, in its order, when three gradients are."""
    with fake_world(2) as mesh:
        params = [nn.Parameter(distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)])) for _ in range(3)]
        with torch.no_grad(), order, Reduction() as reduction:
            for p in params:
                reduction.add(p, torch.ones(4, 3).cos())
    return order.seen


def test_a_gradient_travels_while_the_next_is_computed():
    """Nothing waits for it before the next one is on its way, too."""
    start, wait = ["cos", "reduce_scatter_tensor"], ["wait_tensor"]
    assert reduced(Order()) == [*start, *start, *wait, *start, *wait, *wait]


@pytest.mark.parametrize("dies", [1, 2])
def test_all_that_has_started_is_waited_for_where_another_rank_dies(dies):
    """Else torch adds lines of its own to the one that says why the run has ended."""
    order = Order(dies)
    with pytest.raises(RuntimeError, match="closed by peer"):
        reduced(order)
    assert order.seen.count("wait_tensor") == order.seen.count("reduce_scatter_tensor") == dies + 1


def test_the_stand_in_refuses_what_nccl_refuses(one_sided):
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))


def test_a_process_alone_leaves_a_foreign_group_alone(one_sided, tmp_path):
    metric = ProblemAccuracy()
    metric.update(torch.tensor([[1.0, 0.0]]))
    assert metric.compute().mean == 0.5
    assert ranks.on_every_rank(lambda: 3) == [3]
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    save(tmp_path / "a.ckpt", model, optimizer, {"epoch": 3})
    assert load(tmp_path / "a.ckpt", model, optimizer) == {"epoch": 3}


@pytest.mark.wide
def test_a_run_survives_the_group_that_vllm_leaves(train, monkeypatch):
    """Training, both evaluations, checkpoints and export; then again from the checkpoint."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests' / 'helpers'}")
    run = (
        *("rollout.engine=vllm", "rollout.engines.vllm._target_=collectives.OneSidedVLLM", "callbacks=benchmarks"),
        *("callbacks.evaluation.every=1", "callbacks.checkpoints.every=1", "callbacks.benchmarks.limit=4"),
    )
    for settings in (("steps=1",), ("steps=2", "ckpt_path=last")):
        result = train(*run, *settings)
        assert result.returncode == 0, result.stderr


def test_what_fails_on_one_rank_fails_on_all(monkeypatch):
    monkeypatch.setattr(ranks, "_run", BesideAnother(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        ranks.on_every_rank(lambda: 3)


def test_the_accuracy_is_that_of_all_ranks_problems(monkeypatch):
    """This rank has two, both right; the other one's is wrong."""
    monkeypatch.setattr(ranks, "_run", BesideAnother([0.0]))
    data = SimpleNamespace(
        held_out=["a", "b", "c"], rollouts=lambda ids, *_: [SimpleNamespace(reward=1.0) for _ in ids]
    )
    trainer = SimpleNamespace(datamodule=data, global_rank=0, world_size=2)
    found = HeldOutEvaluation(every=1, seed=1).accuracy(trainer, Sampling(1, 1.0, 4, ()))
    assert found.mean == pytest.approx(2 / 3)


@pytest.mark.parametrize(("own", "other"), [(5.0, 3.0), (3.0, 5.0), (-1.0, 2.0)])
def test_greatest_and_least_are_of_all_ranks(own, other):
    assert BesideAnother(other).greatest(own) == max(own, other)
    assert BesideAnother(-other).least(own) == min(own, other)


def test_tensors_travel_by_the_strategys_device():
    with two_ranks_on_paper() as (_, recorder):
        world = Ranks(dist.group.WORLD, CUDA)
        for own in (torch.ones(3), torch.ones(3, device=CUDA)):
            assert world.reduce(own).device == own.device
            assert world.gather(own).device == own.device
            assert world.gather(own).shape == (6,)
    assert len(recorder.seen) == 6
    for _, _, tensors in recorder.seen:
        assert all(one.startswith("cuda") for one in tensors)


def test_shards_in_host_memory_travel_by_the_strategys_device(monkeypatch):
    with two_ranks_on_paper() as (mesh, recorder):
        monkeypatch.setattr(ranks, "_run", Ranks(dist.group.WORLD, CUDA))
        spec = DTensorSpec(mesh, (Shard(0),), TensorMeta(torch.Size([5, 3]), (3, 1), torch.float32))
        lm = nn.Module()
        lm.weight = nn.Parameter(DTensor(torch.ones(3, 3), spec, requires_grad=False))
        monkeypatch.setattr("oblr.policy.model.head_path", lambda lm: None)  # it has no head, only a weight
        ((_, weight),) = PolicyModel(lm, 1.0).weights(torch.bfloat16)
    assert weight.shape == (5, 3)
    assert weight.dtype == torch.bfloat16
    gathers = [tensors for _, operation, tensors in recorder.seen if "gather" in operation]
    assert gathers == [["cuda[3, 3]"]]


def test_a_strategy_that_does_not_say_who_its_ranks_are_is_refused(tmp_path, monkeypatch):
    """Lightning's own: each rank would take the others' share of the gradient for nothing."""
    two = Ranks()
    two.count = 2
    monkeypatch.setattr(ranks, "_run", two)
    with pytest.raises(SettingError, match=r"^trainer\.strategy: SingleDeviceStrategy does not say"):
        take_steps(tmp_path, make_batch(tmp_path, tied=True))


@pytest.mark.parametrize("strategy", [DDP, FSDP])
def test_groups_have_both_sides_on_a_gpu(strategy, monkeypatch):
    assert strategy().process_group_backend == "gloo"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert strategy().process_group_backend == "cpu:gloo,cuda:nccl"


def collective(node: ast.AST) -> bool:
    """Whether it asks :mod:`torch.distributed` itself for anything; its sub-modules have libraries of their own."""
    if isinstance(node, ast.Import):
        return any(alias.name == "torch.distributed" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        return node.module == "torch.distributed" or "torch.distributed" in names
    if isinstance(node, ast.Attribute):
        moves = {"all_gather", "broadcast", "reduce", "barrier", "reduce_boolean_decision", "sync_dist"}
        of_lightning = node.attr in moves and ast.unparse(node.value).endswith(("self", "trainer", "strategy"))
        return of_lightning or ast.unparse(node.value) == "torch.distributed"
    return isinstance(node, ast.keyword) and node.arg == "sync_dist"


def test_nobody_else_asks_for_a_group_or_moves_a_tensor():
    found = {path.stem for path in sources(ROOT) if any(map(collective, ast.walk(ast.parse(path.read_text()))))}
    # Where ranks meet; a plan makes a world of its own, and who looks on in another trainer is in that one's.
    assert found == {"ranks", "meeting", "dry_run", "gathered"}


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_run_of_two_ranks_goes_by_the_plan(train, tmp_path, monkeypatch, kind):
    """Everything that a run has: the same collectives on both ranks, by no other route than those of the plan."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests' / 'helpers'}")
    result = train(
        *(f"trainer={kind}", "trainer.devices=2", "trainer.accelerator=cpu", "steps=2", "callbacks=benchmarks"),
        *("callbacks.evaluation.every=1", "callbacks.checkpoints.every=1", "callbacks.benchmarks.limit=3"),
        *("baseline=rloo", "callbacks.grad_stats.every=1"),
        f"+callbacks.record={{_target_: collectives.Record, path: {tmp_path / 'seen'}}}",
    )
    assert result.returncode == 0, result.stderr
    seen = recorded(tmp_path / "seen")
    ours = {"ranks.py:objects", "ranks.py:reduce", "ranks.py:gather"}
    sharded = {"torch/distributed/fsdp", "torch/distributed/checkpoint", "model.py:whole", "tape.py:_summed_over_ranks"}
    sharded |= {"head.py:weighted"}
    routes = {route for route, _, _ in seen} - {"lightning"}
    assert ours <= routes <= ours | sharded
    assert {"torch/distributed/fsdp", "model.py:whole"} <= routes or kind == "ddp"
    # Lightning waits, hands out paths, and compares the lengths of loaders, on the strategy's device, before the run.
    by_lightning = [operation for route, operation, _ in seen if route == "lightning"]
    assert set(by_lightning) <= {"barrier", "broadcast", "allreduce", "allgather"}
    assert by_lightning.count("allreduce") == 2


def test_a_sharded_policy_computes_where_its_strategy_does():
    """Although nothing moves it there: shards may lie in host memory."""
    strategy, module = FSDP(), LightningModule()
    strategy._lightning_module = module
    strategy.parallel_devices, strategy.cluster_environment = [CUDA], LightningEnvironment()
    strategy.model_to_device()
    assert module.device == CUDA
