"""Names of other libraries that are none of their interface: all that we use, each with a look at the library."""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable

import lightning as L
import pytest
import torch
from conftest import ROOT
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher, subprocess_script
from mpmath import iv
from rooms import imported, sources
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.utils.tensorboard import SummaryWriter
from transformers import PretrainedConfig, PreTrainedModel

#: What is said of vLLM's is checked against its sources by `make contract`.
CONTRACT = (ROOT / "benchmarks" / "contract.yaml").read_text()
#: Imported, as module.name → why.
IMPORTS = {
    "torch.distributed.checkpoint.filesystem._StorageInfo": "a checkpoint's description is read as data and made anew",
    "torch._guards.active_fake_mode": "a plan leaves alone what DTensor tries out",
    "torch._subclasses.fake_tensor.FakeTensor": "a plan runs the step without numbers",
    "torch._subclasses.fake_tensor.FakeTensorMode": "a plan runs the step without numbers",
    "torch.autograd.graph._engine_run_backward": "a plan knows where a backward pass is under way",
    "torch.distributed.distributed_c10d._resolve_process_group": "a plan knows how many ranks an operation is among",
    "torch.utils._python_dispatch.TorchDispatchMode": "a plan counts operations",
    "torch.testing._internal.distributed.fake_pg.FakeStore": "a plan has ranks that are not there",
}


def keeps(owner: type, name: str) -> bool:
    """Whether a class, or one that it is made from, sets this attribute of its own."""
    sources = [inspect.getsource(base) for base in owner.__mro__ if base.__module__ != "builtins"]
    return re.search(rf"self\.{name}(:.*)? = ", "".join(sources)) is not None


#: Attributes → whether they are where we look for them.
ATTRIBUTES: dict[str, Callable[[], bool]] = {
    # Lightning's
    "_device": lambda: keeps(L.LightningModule, "_device"),  # of micro-batches, where shards lie in host memory
    "_device_mesh": lambda: keeps(L.LightningModule, "_device_mesh"),  # of shards, or of copies and shards
    "_data_parallel_size": lambda: keeps(ModelParallelStrategy, "_data_parallel_size"),  # the mesh is made of both
    "_tensor_parallel_size": lambda: keeps(ModelParallelStrategy, "_tensor_parallel_size"),
    "_launch_process_observer": lambda: hasattr(subprocess_script, "_launch_process_observer"),  # ours watches ranks
    "procs": lambda: keeps(_SubprocessScriptLauncher, "procs"),  # of the other ranks
    # torch's
    "_compiled_call_impl": lambda: hasattr(torch.nn.Module, "_compiled_call_impl"),  # a compiled model is not watched
    # TensorBoard's
    "_get_file_writer": lambda: hasattr(SummaryWriter, "_get_file_writer"),  # what it wrote is on the disk
    # transformers'
    "_init_weights": lambda: hasattr(PreTrainedModel, "_init_weights"),
    "_attn_implementation": lambda: hasattr(PretrainedConfig(), "_attn_implementation"),
    "_name_or_path": lambda: hasattr(PretrainedConfig(), "_name_or_path"),  # what an adapter says it belongs to
    # mpmath's, of intervals: their ends
    "_mpi_": lambda: len(iv.mpf(1)._mpi_) == 2,
    "_mpci_": lambda: [len(side) for side in iv.mpc(1, 2)._mpci_] == [2, 2],
    # torch's
    "_get_fsdp_state": lambda: hasattr(FSDPModule, "_get_fsdp_state"),  # the self-check gathers shards in float32
    "_lazy_init": lambda: hasattr(FSDPState, "_lazy_init"),
    "_mp_policy": lambda: keeps(FSDPState, "_mp_policy"),
    "_fsdp_param_groups": lambda: "_fsdp_param_groups" in inspect.getsource(FSDPState),
    "_init_mp_dtypes": lambda: hasattr(FSDPParamGroup, "_init_mp_dtypes"),
    "_orig_dtype": lambda: "_orig_dtype" in inspect.getsource(FSDPParamGroup),
    "_unsharded_param": lambda: "_unsharded_param" in inspect.getsource(FSDPParam),
    "_parameters": lambda: nn.Linear(2, 3)._parameters.keys() == {"weight", "bias"},  # for a moment others
    "_cdata": lambda: isinstance(torch.zeros(1)._cdata, int),  # which tensor it is, whoever holds it
    "_schema": lambda: len(torch.ops.aten.mm.default._schema.arguments) == 2,
    "_subclasses": lambda: hasattr(torch, "_subclasses"),
    "_c10d_functional": lambda: hasattr(torch.ops._c10d_functional, "all_reduce"),
    "_allgather_base_": lambda: hasattr(torch.ops.c10d, "_allgather_base_"),
    "_reduce_scatter_base_": lambda: hasattr(torch.ops.c10d, "_reduce_scatter_base_"),
    **{
        name: functools.partial(hasattr, torch.ops.aten, name)
        for name in ("_fused_rms_norm", "_fused_rms_norm_backward", "_local_scalar_dense", "_unsafe_index")
    },
}
#: Documented, or Hydra's name for a class.
PUBLIC = {"_exit", "_getframe", "_asdict", "_replace", "_target_"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_imports():
    found = {
        name
        for path in sources(ROOT)
        for name in imported(path)
        if any(map(is_private, name.split("."))) and name.split(".")[0] not in ("oblr", "callbacks", "__future__")
    }
    assert found == IMPORTS.keys()


@pytest.mark.parametrize("name", IMPORTS)
def test_what_is_imported_is_there(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_attributes():
    """Those that nothing here defines."""
    own, used = set(), set()
    for path in sources(ROOT):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
                (own if is_self and isinstance(node.ctx, ast.Store) else used).add(node.attr)
    foreign = {name for name in used - own if name in ATTRIBUTES or not re.search(rf"\b{name}\b", CONTRACT)} - PUBLIC
    assert foreign | {"_data_parallel_size", "_tensor_parallel_size", "procs"} == ATTRIBUTES.keys()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_are_there(name):
    assert ATTRIBUTES[name]()
    assert not keeps(L.LightningModule, "_no_such_thing")
