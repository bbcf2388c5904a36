"""Engines that do not take new weights as they should, and one that looks about, for tests of what notices."""

import os
import time
from dataclasses import replace

import torch

from oblr.errors import EngineDiedError
from oblr.rollout.hf import HFEngine
from oblr.rollout.server import ServerEngine
from oblr.rollout.vllm import VLLMEngine


class ForgetfulHF(HFEngine):
    def sync(self, weights, version):
        self.weight_version = version


class ForgetfulVLLM(VLLMEngine):
    def sync(self, weights, version):
        self.weight_version = version


class ForgetfulRank(HFEngine):
    """Of several ranks, one misses the syncs from the second on."""

    def sync(self, weights, version):
        if version > 1 and os.environ.get("LOCAL_RANK") == "1":
            self.weight_version = version
        else:
            super().sync(weights, version)


class OffRank(HFEngine):
    """Has the right weights, but on one rank other probabilities."""

    def __init__(self, model, dtype, off):
        super().__init__(model, dtype)
        self.off = float(off)

    def generate(self, prompts, sampling, seeds, done=None):
        groups = super().generate(prompts, sampling, seeds)
        if os.environ.get("LOCAL_RANK") != "1":
            return groups
        return [[replace(one, logprobs=[lp - self.off for lp in one.logprobs]) for one in group] for group in groups]


class HangingHF(HFEngine):
    """From the second sync on, one rank hangs and the others wait for it in a collective."""

    def sync(self, weights, version):
        if version > 1 and os.environ.get("LOCAL_RANK", "1") == "1":
            time.sleep(1000)
        super().sync(weights, version)


class CorruptingServer(ServerEngine):
    """One number of the second policy arrives as another."""

    def sync(self, weights, version):
        def corrupted():
            for name, weight in weights:
                if version > 1 and name == "model.layers.0.self_attn.q_proj.weight":
                    weight = weight.clone()
                    weight[3, 5] += 10
                yield name, weight

        super().sync(corrupted(), version)


class OffServer(ServerEngine):
    """Computes otherwise from the second policy on, although it has its numbers."""

    def generate(self, prompts, sampling, seeds, done=None):
        groups = super().generate(prompts, sampling, seeds)
        off = 0.5 if self.weight_version > 1 else 0.0
        return [[replace(one, logprobs=[lp - off for lp in one.logprobs]) for one in group] for group in groups]


class DyingHF(HFEngine):
    """From the second step on it never survives."""

    def generate(self, *asked):
        if self.weight_version > 1:
            raise EngineDiedError("it died")
        return super().generate(*asked)


class NoticingVLLM(VLLMEngine):
    """Ends where the memory that its ranks share has a name that another run's could have."""

    def start(self):
        super().start()
        if self.gpu or not hasattr(torch.ops._C, "init_shm_manager"):
            return  # they share none, nor do they in vLLM's build for processors without AVX-512
        names = [name for name in os.listdir("/dev/shm") if name.endswith("-[0-1]-cpushm_0")]
        assert any(name.startswith(os.environ["MASTER_PORT"]) for name in names), names
